"""Choice of whether the engine recomputes activations as the machine would.

PopTorch has no such option: its pipelines recompute because an IPU has little memory.
"""

from __future__ import annotations

from poptorch_emu.config import HostRecomputation
from poptorch_emu.emulator.given_values import check_choice, check_options
from poptorch_emu.options import Options


def set_recomputation(options: Options, choice: str) -> None:
    """Sets whether the engine executes the recomputation that the options request (exact).

    Plans of the machine (memory, cycles) always follow the options, and results have the same
    bits in any case: the choice trades memory of this computer for time.

    Args:
        options: options that are not frozen.
        choice: "automatic" (recompute if the stashes would take more than half of the memory
            that is free when the model is compiled), "modelled" (never) or "executed" (always).

    Raises:
        AttributeError: the options are frozen.
        Error: `choice` is unknown.
    """
    check_options(options)
    check_choice("recomputation", choice, [known.value for known in HostRecomputation])
    options.Emulator.host_recomputation = HostRecomputation(choice)
