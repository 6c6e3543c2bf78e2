"""`Options.Emulator`: settings of the emulator, which PopTorch does not have."""

from __future__ import annotations

from poptorch_emu.config import HostRecomputation
from poptorch_emu.options.base import OptionsDict


class EmulatorOptions(OptionsDict, path="options.Emulator"):
    """Settings that functions of `poptorch_emu.emulator` check and set (exact).

    Attributes:
        host_recomputation: see `emulator.set_recomputation`.
        has_modelled_latencies: see `emulator.set_latencies`.
        max_guarded_programs: see `emulator.set_value_guards`; 0 refuses values of inputs.
    """

    _counts = {"max_guarded_programs": ("max_guarded_programs", range(2**31))}

    host_recomputation: HostRecomputation
    has_modelled_latencies: bool
    max_guarded_programs: int

    def __init__(self) -> None:
        """Sets the defaults."""
        super().__init__(
            host_recomputation=HostRecomputation.AUTOMATIC,
            has_modelled_latencies=False,
            max_guarded_programs=0,
        )
