"""Backend options that PopTorch sets itself, and warnings about other values from the user."""

from __future__ import annotations

from typing import Any

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import StrategyKind
from poptorch_emu.log import compiler_logger
from poptorch_emu.options.options import Options

# Values of PopART's enumerations `RecomputationType` and `VirtualGraphMode`.
_PIPELINE_RECOMPUTATION = 3
_MANUAL_VIRTUAL_GRAPH, _EXECUTION_PHASES = 1, 3


def warn_about_forced(options: Options, executable: Executable) -> None:
    """Warns about each backend option whose value differs from the one that PopTorch sets."""
    for name, wanted in _wanted(executable).items():
        chosen = options._Popart.options.get(name, wanted)
        if chosen != wanted and name not in options._Popart.by_front_end:
            compiler_logger.warning(
                "%s forced by the user from default to %s, ignoring value %s", name, chosen, wanted
            )


def _wanted(executable: Executable) -> dict[str, Any]:
    config = executable.config
    kind = config.strategy.kind
    num_ipus = executable.schedule.num_ipus
    is_pipelined = kind is StrategyKind.PIPELINED and num_ipus > 1
    is_phased = kind in (StrategyKind.SERIAL_PHASED, StrategyKind.PARALLEL_PHASED)
    wanted: dict[str, Any] = {
        "enablePipelining": is_pipelined,
        "enableLoadAndOffloadRNGState": True,
        "constantWeights": False,
    }
    if is_pipelined:
        wanted["autoRecomputation"] = _PIPELINE_RECOMPUTATION
    if num_ipus > 1:
        wanted["virtualGraphMode"] = _EXECUTION_PHASES if is_phased else _MANUAL_VIRTUAL_GRAPH
    if config.gradient_accumulation > 1:
        wanted["enableGradientAccumulation"] = True
    if config.replication_factor > 1:
        wanted["enableReplicatedGraphs"] = True
    return wanted
