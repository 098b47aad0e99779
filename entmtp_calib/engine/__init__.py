"""The engine: tokens in, steps out. Importing it imports torch."""

from entmtp_calib.engine.decoder import Decoder, Step, autoregressive
from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.pair import Pair, load_pair
from entmtp_calib.engine.stopping import StopRule

__all__ = ["Decoder", "Pair", "Step", "StopRule", "autoregressive", "choose_placement", "load_pair", "load_target"]
