"""Table of the rewrites of the engine's graph, with their conditions and their order.

A rewrite is a function that changes an `EngineGraph` and returns the number of changes. The
machine's graph stays unchanged. Rewrites depend on the graph, its sizes and the processor, never on
the stages, so that no bit depends on the end of a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from poptorch_emu.config import CompileConfig
from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.layout.preparation import is_prepared
from poptorch_emu.engine.rewrites.attention import leave_out_attention_copies
from poptorch_emu.engine.rewrites.attention_by_heads import attend_by_heads
from poptorch_emu.engine.rewrites.convolution import fold_norms, pack_convolutions
from poptorch_emu.engine.rewrites.cross_entropy import compute_losses_by_rows, fuse_loss_gradients
from poptorch_emu.engine.rewrites.embedding import (
    divide_before_expanding,
    fetch_rows_ahead,
    keep_gradients_as_rows,
)
from poptorch_emu.engine.rewrites.gradient_sums import (
    add_products_to_sums,
    choose_gradient_kernels,
    use_column_sums,
)
from poptorch_emu.engine.rewrites.half_precision import widen_half_kernels
from poptorch_emu.engine.rewrites.joined_batches import join_micro_batches
from poptorch_emu.engine.rewrites.linear import (
    add_biases_in_products,
    choose_layer_kernels,
    choose_product_kernels,
)
from poptorch_emu.engine.rewrites.neutral_operations import leave_out_neutral_operations
from poptorch_emu.engine.rewrites.pooled_convolution import pool_convolutions
from poptorch_emu.engine.rewrites.recurrent import take_last_steps, train_by_rows
from poptorch_emu.passes.simplify import remove_dead


class When(Enum):
    """Kinds of programs that a rewrite may change.

    If floating-point numbers are checked after each operation, only `ALWAYS` applies: a gradient
    that is left to a sum is no operation of a segment. In inference, the same holds for stochastic
    rounding.
    """

    TRAINING = "training"
    INFERENCE = "inference"
    BOTH = "both"
    ALWAYS = "always"

    def holds(self, config: CompileConfig) -> bool:
        """Returns whether programs of this configuration are rewritten."""
        if self is When.ALWAYS:
            return True
        if not config.is_training:
            return self is not When.TRAINING and is_prepared(config)
        return self is not When.INFERENCE and not config.checks_floating_point


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of the engine's graph.

    Attributes:
        apply: function that changes the graph and returns the number of changes.
        when: programs that the rewrite may change.
        after: rewrites that must run before this one.
        why: reason for the order.
    """

    apply: Callable[[EngineGraph], int]
    when: When = When.BOTH
    after: tuple[Callable[[EngineGraph], int], ...] = ()
    why: str = ""


REWRITES = (
    Rewrite(leave_out_neutral_operations),
    Rewrite(widen_half_kernels),
    Rewrite(
        add_biases_in_products,
        after=(widen_half_kernels,),
        why="products of float16 are of float32 by now, and what follows knows biases in products",
    ),
    Rewrite(fold_norms, When.INFERENCE),
    Rewrite(compute_losses_by_rows, When.TRAINING),
    Rewrite(take_last_steps, When.TRAINING),
    Rewrite(
        fuse_loss_gradients,
        When.TRAINING,
        after=(compute_losses_by_rows,),
        why="it finds losses that go by rows",
    ),
    Rewrite(
        join_micro_batches,
        after=(widen_half_kernels,),
        why="it looks at the sizes of results; what finds losses and norms stands before it, too",
    ),
    Rewrite(
        train_by_rows,
        When.ALWAYS,
        after=(join_micro_batches,),
        why="it chooses by the number of rows",
    ),
    Rewrite(
        pool_convolutions,
        When.INFERENCE,
        after=(fold_norms, join_micro_batches),
        why="a folded norm no longer stands before a pooling, and sizes are those of all images",
    ),
    Rewrite(
        pack_convolutions,
        When.INFERENCE,
        after=(fold_norms, join_micro_batches, pool_convolutions),
        why="it packs the weights that a folded norm has scaled, for as many images as there are, "
        "of the convolutions that are left",
    ),
    Rewrite(
        choose_gradient_kernels,
        When.TRAINING,
        after=(widen_half_kernels, join_micro_batches),
        why="it finds products of float32, of as many rows as there are",
    ),
    Rewrite(
        use_column_sums,
        When.TRAINING,
        after=(choose_gradient_kernels,),
        why="it finds what products of gradients read",
    ),
    Rewrite(
        choose_layer_kernels,
        after=(widen_half_kernels, join_micro_batches),
        why="a layer of float16 is a product of float32 by now, of as many rows as there are",
    ),
    Rewrite(
        choose_product_kernels,
        When.TRAINING,
        after=(choose_gradient_kernels, choose_layer_kernels),
        why="it takes the products that are left",
    ),
    Rewrite(leave_out_attention_copies),
    Rewrite(
        attend_by_heads,
        When.INFERENCE,
        after=(join_micro_batches, leave_out_attention_copies),
        why="those know PyTorch's attention alone",
    ),
    Rewrite(divide_before_expanding, When.TRAINING),
    Rewrite(fetch_rows_ahead),
    Rewrite(
        add_products_to_sums,
        When.TRAINING,
        after=(use_column_sums,),
        why="no other rewrite knows a product that has no value",
    ),
    Rewrite(
        keep_gradients_as_rows,
        When.ALWAYS,
        after=(divide_before_expanding,),
        why="no other rewrite knows a gradient that is never made",
    ),
)


def rewrite(code: EngineGraph) -> int:
    """Applies all rewrites that the program may have; returns the number of changes."""
    num_changes = 0
    for each in REWRITES:
        if each.when.holds(code.config):
            changed = each.apply(code)
            if changed > 0:
                remove_dead(code.graph)
            num_changes += changed
    return num_changes
