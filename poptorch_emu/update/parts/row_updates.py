"""Which weights an update changes in single rows only: those whose gradient has rows (embeddings).

SGD without momentum and weight decay takes nothing from a weight whose gradient is 0, so the engine
leaves out all rows that no gradient was added to: the bits are the same.
"""

from __future__ import annotations

from poptorch_emu.config import CompileConfig
from poptorch_emu.segments.placement import location_of
from poptorch_emu.update.formulas.config import OptimizerConfig, OptimizerKind
from poptorch_emu.update.parts.update_parts import Gradient


def updates_rows(gradient: Gradient, optimizer: OptimizerConfig, config: CompileConfig) -> bool:
    """Returns whether the update of a weight can leave out the rows without gradient.

    All rows are needed where replicas add up their sums, where weight or sum comes from streaming
    memory, and where the user looks at the whole. A factor that is found while the program runs
    (of clipped gradients, of an automatic loss scale) may be no number.
    """
    return (
        gradient.is_by_rows
        and _ignores_zeros(optimizer, gradient.group)
        and config.replication_factor * config.num_processes == 1
        and not location_of(config, False).is_remote(gradient.weight.num_elements)
        and not config.locations.accumulator.is_remote(gradient.weight.num_elements)
        and not any(anchor.long_name.endswith(f"___{gradient.name}") for anchor in config.anchors)
    )


def _ignores_zeros(optimizer: OptimizerConfig, group_index: int) -> bool:
    """Returns whether a weight stays what it is where its gradient is 0."""
    if optimizer.kind not in (OptimizerKind.SGD1, OptimizerKind.SGD2):
        return False
    if optimizer.clips or optimizer.loss_scale_rule is not None:
        return False
    group = optimizer.groups[group_index]
    return group.is_constant_zero("momentum") and group.is_constant_zero("weight_decay")
