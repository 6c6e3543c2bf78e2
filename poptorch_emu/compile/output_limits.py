"""Checks of outputs and anchors, for example their periods and names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import compiler_error
from poptorch_emu.schedule.partition import Partition


def check_return_periods(config: CompileConfig) -> None:
    """Checks the period of outputs and anchors that are returned every N micro-batches.

    Raises:
        Error: N is larger than the device iterations of a call, or does not divide them.
    """
    iterations = config.device_iterations
    for mode, period in _modes(config):
        if mode is not OutputMode.EveryN:
            continue
        if period > iterations:
            rule = "Return period must be <= to"
        elif iterations % period != 0:
            rule = "Return period must be a factor of"
        else:
            continue
        raise compiler_error(
            f"{rule} the number of batches per step: the period is {period}, and "
            f"Options.deviceIterations is {iterations}. Change one of them.",
            type="popart_exception",
        )


def check_pipelined_outputs(placed: Partition, config: CompileConfig) -> None:
    """Checks that a pipeline returns no output or anchor every N micro-batches.

    Raises:
        Error: an output or anchor has this mode.
    """
    is_every_n = any(mode is OutputMode.EveryN for mode, _ in _modes(config))
    if is_every_n and placed.num_stages > 1:
        raise compiler_error(
            "AnchorReturnType::EVERYN is not valid for pipelined models. Use another "
            "poptorch.OutputMode, or poptorch.ShardedExecution.",
            type="popart_exception",
        )


def _modes(config: CompileConfig) -> list[tuple[OutputMode, int]]:
    """Returns mode and period of the outputs and of each anchor."""
    anchors = [(anchor.output_mode, anchor.return_period) for anchor in config.anchors]
    return [(config.output_mode, config.output_return_period), *anchors]


def check_anchors(config: CompileConfig, found: Collection[str], names: Collection[str]) -> None:
    """Checks that every anchored tensor exists.

    Args:
        config: configuration of the compilation.
        found: short names of the anchors that the graph has.
        names: names of all tensors that can be anchored.

    Raises:
        Error: an anchored tensor does not exist.
    """
    for anchor in config.anchors:
        if anchor.short_name not in found:
            near = difflib.get_close_matches(anchor.long_name, names, n=3, cutoff=0.4)
            raise compiler_error(
                f"Anchor tensor '{anchor.long_name}' not found in the graph. The nearest names are "
                f"{', '.join(near) or 'none'}; compile without the anchor and call "
                "getTensorNames() for all."
            )
