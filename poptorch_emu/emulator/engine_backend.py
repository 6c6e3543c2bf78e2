"""Choosing whose code the engine runs for the operations of a model."""

from __future__ import annotations

from poptorch_emu.config import EngineBackend
from poptorch_emu.errors import make_error
from poptorch_emu.options import Options


def set_backend(options: Options, choice: str) -> None:
    """Chooses whose code the engine runs for the operations of forward and backward (exact).

    Schedules, updates, random numbers and the plans of the machine stay the same. TorchInductor
    fuses operations, so that results differ from PyTorch's by some units in the last place. It
    takes long the first time, some 10 seconds for each segment of a pipeline; its libraries are
    kept beside the executables (`Options.enableExecutableCaching`), else in its own cache. What it
    cannot compile runs as with "aten". Executables of compiled code are not saved in files.

    Args:
        options: not yet frozen.
        choice: "aten" (PyTorch's kernels, the default) or "inductor" (code that TorchInductor makes
            ahead of time). `POPTORCH_EMU_BACKEND` chooses for all options made from then on.

    Raises:
        AttributeError: the options are frozen.
        Error: there is no such choice.
    """
    options._check_unfrozen()
    choices = [known.value for known in EngineBackend]
    if choice not in choices:
        raise make_error(f"Unknown backend: {choice!r}. Choose one of {choices}.")
    options._engine_backend = EngineBackend(choice)
