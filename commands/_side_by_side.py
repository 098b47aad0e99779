"""The end of `run`: one prompt that nothing has seen, decoded with the bank and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._output import Output
from ._session import load

if TYPE_CHECKING:
    from entmtp_calib.calibrate.pipeline import Calibration


def side_by_side(screen: Output, calibration: Calibration) -> None:
    """Decode one prompt that nothing has seen, with the bank and without."""
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.comparison import compare_with_plain

    bank = load_bank(calibration.run.file("bank.json"))
    name, ids = calibration.splits.test[0]
    found = compare_with_plain(calibration.pair, bank, "auto", ids, calibration.stop, calibration.config.seed)
    screen.text(f"\nHeld-out prompt {name}, decoded with the bank ({bank.recommended}) and without:")
    screen.text("\n".join("  " + line for line in found.text.splitlines()[:12]))
    screen.fields("side_by_side", {"prompt": name} | _figures(found))
    if bank.acceptance["rule"] != "exact":
        logps = {"mean_log_probability_bank": found.logp, "mean_log_probability_greedy": found.plain_logp}
        screen.fields("quality", logps, "Not lossless: log probability of a token under the model, in nats")
    elif not found.same_text:
        where = f"the texts part at token {found.parted_at}, where the two best logits are {found.gap:.3g} apart"
        screen.warn(f"{where} ({found.verdict})")
        if calibration.config.dtype != "float32":
            _exact(screen, calibration, bank, ids)


def _exact(screen: Output, calibration: Calibration, bank: Any, ids: list[int]) -> None:
    """Decode the prompt once more in float32, where trees and plain decoding write the same text."""
    from entmtp_calib.calibrate.comparison import compare_with_plain

    config = calibration.config
    pair = load(Output(quiet=True), config.model, config.heads, config.device, "float32")
    found = compare_with_plain(pair, bank, "auto", ids, calibration.stop, calibration.config.seed)
    screen.text("The same prompt in float32, where texts do not depend on rounding:")
    screen.fields("side_by_side_float32", _figures(found))


def _figures(found: Any) -> dict[str, Any]:
    return {
        "same_text": found.same_text,
        "tokens": found.tokens,
        "tokens_per_step": found.tokens_per_step,
        "tokens_per_s_bank": found.tokens_per_s,
        "tokens_per_s_plain": found.plain_tokens_per_s,
        "ratio": found.tokens_per_s / found.plain_tokens_per_s,
    }
