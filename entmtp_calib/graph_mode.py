"""When steps are captured as CUDA graphs: what users may ask for, and what is taken where they do not say. Captures nothing."""

from __future__ import annotations

from entmtp_calib.errors import UsageError

MODES = ("auto", "on", "off")


def check_mode(mode: str) -> None:
    """Refuse an unknown mode.

    Raises:
        UsageError: it is not "auto", "on" or "off".
    """
    if mode not in MODES:
        raise UsageError(f"unknown choice of graphs {mode!r}.", f"Known: {', '.join(MODES)}.")


def wants_graphs(mode: str, device: str, exact: bool) -> bool:
    """Whether steps are captured: by default on CUDA, where acceptance is exact.

    Args:
        device: as torch names it.

    Raises:
        UsageError: an unknown mode, or graphs asked for where there are none.
    """
    check_mode(mode)
    cuda = device.partition(":")[0] == "cuda"
    if mode == "on" and not cuda:
        raise UsageError(f"--graphs on was given and the model runs on {device}.", "CUDA graphs need a CUDA device.")
    return mode == "on" or (mode == "auto" and cuda and exact)
