"""Choosing whether the engine computes activations again, as the machine would.

PopTorch has no option for it: its pipelines recompute to save memory that an IPU does not have.
"""

from __future__ import annotations

from poptorch_emu.config import HostRecomputation
from poptorch_emu.emulator.given_values import check_choice, check_options
from poptorch_emu.options import Options


def set_recomputation(options: Options, choice: str) -> None:
    """Chooses what the engine does of the recomputation that the options ask for (exact).

    Plans of the machine (memory, cycles) always follow the options, and no bit of a result depends
    on this choice: it trades memory of this computer for time.

    Args:
        options: not yet frozen.
        choice: "automatic" (recompute where the stashes would take more than half of the memory
            that is free when the model is compiled), "modelled" (never) or "executed" (always).

    Raises:
        AttributeError: the options are frozen.
        Error: there is no such choice.
    """
    check_options(options)
    check_choice("recomputation", choice, [known.value for known in HostRecomputation])
    options._host_recomputation = HostRecomputation(choice)
