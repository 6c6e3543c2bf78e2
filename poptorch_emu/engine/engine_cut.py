"""Which segments the engine runs: the machine's, without its recomputation and its layouts.

Recomputation changes no bit and saves memory of an IPU. The host has more memory than that, and
recomputing took up to 40 % of the speed, so the engine recomputes only where the stashes would not
fit, or where the user asks for it. Nor does it make gradients that are zero but for a few rows,
products that go to a sum, or copies that others copy; its images lie as the host's kernels like
them, and so do the classes of its losses; large products go to the library that is faster. In
inference, where weights stay for many calls, it computes with what is made of them once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from torch import fx

from poptorch_emu.config import CompileConfig, HostRecomputation
from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.layout.channels_last import use_channels_last
from poptorch_emu.engine.layout.copies import leave_out_copies
from poptorch_emu.engine.layout.preparation import is_prepared
from poptorch_emu.engine.rewrites.attention import leave_out_attention_copies
from poptorch_emu.engine.rewrites.bias_gradients import use_column_sums
from poptorch_emu.engine.rewrites.expanded_rows import divide_before_expanding
from poptorch_emu.engine.rewrites.folded_norm import fold_norms
from poptorch_emu.engine.rewrites.half_precision import widen_half_kernels
from poptorch_emu.engine.rewrites.large_products import move_large_products
from poptorch_emu.engine.rewrites.loss_gradients import fuse_loss_gradients
from poptorch_emu.engine.rewrites.matrix_products import use_our_products
from poptorch_emu.engine.rewrites.packed_convolution import pack_convolutions
from poptorch_emu.engine.rewrites.packed_linear import pack_layers
from poptorch_emu.engine.rewrites.packed_weights import load_packed_weights, pack_weights
from poptorch_emu.engine.rewrites.recurrent import take_last_steps
from poptorch_emu.engine.rewrites.row_lookups import fetch_rows_ahead
from poptorch_emu.engine.rewrites.rowwise_loss import compute_losses_by_rows
from poptorch_emu.environment import free_memory_bytes
from poptorch_emu.log import compiler_logger
from poptorch_emu.passes.simplify import remove_dead
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.segments.links import plan_links
from poptorch_emu.segments.product_gradients import (
    ProductGradient,
    product_gradients,
    use_gradient_products,
)
from poptorch_emu.segments.recomputation import (
    recomputation_of,
    recomputed_operations,
    views_of_weights,
)
from poptorch_emu.segments.replica_equal import replica_equal_values
from poptorch_emu.segments.row_gradients import RowGradient, row_gradients
from poptorch_emu.segments.segmented_graph import cut
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.parts.update_plan import plan_update

# Assumed: the other half is for weights, workspaces and the user's own data.
_LARGEST_SHARE = 0.5


def engine_inventory(
    of_machine: Inventory, optimizer: OptimizerConfig | None, parameters: tuple[str, ...]
) -> Inventory:
    """Returns what the engine runs, given what the machine would.

    Args:
        of_machine: with the machine's recomputation, and whole gradients.
        optimizer: in training.
        parameters: the trainable ones, in the order that the optimiser knows.
    """
    config = of_machine.config
    inventory = of_machine
    if optimizer is not None:
        inventory = _without_recomputation(of_machine, optimizer, parameters)
    elif is_prepared(config):
        inventory = _for_inference(of_machine)
    whole = {
        name: variable
        for name, variable in inventory.variables.items()
        if not inventory.is_remote(variable) and not variable.is_sharded
    }
    inventory = replace(inventory, cut=load_packed_weights(inventory.cut, whole))
    # Roundings are drawn in the order of memory.
    if config.rounds_stochastically:
        return inventory
    segments = inventory.cut
    if not config.checks_floating_point:
        segments = leave_out_copies(segments)
    # In inference, weights are prepared in any case.
    segments = use_channels_last(inventory.graph, segments, converts_once=config.is_training)
    return replace(inventory, cut=segments)


def _for_inference(of_machine: Inventory) -> Inventory:
    """Returns operations that suit the host better, for the same results."""
    code = EngineGraph.copy_of(of_machine.graph, of_machine.placed)
    num_changes = widen_half_kernels(code) + fold_norms(code)
    remove_dead(code.graph)
    num_changes += pack_convolutions(code) + pack_layers(code) + leave_out_attention_copies(code)
    num_changes += fetch_rows_ahead(code)
    if num_changes == 0:
        return of_machine
    remove_dead(code.graph)
    changed = replace(of_machine, graph=code.graph, placed=code.placed)
    return _cut_again(changed, frozenset(), {}, {})


def _without_recomputation(
    of_machine: Inventory, optimizer: OptimizerConfig, parameters: tuple[str, ...]
) -> Inventory:
    of_machine = _for_training(of_machine)
    graph, placed, config = of_machine.graph, of_machine.placed, of_machine.config
    by_rows = row_gradients(graph, config, optimizer)
    by_products = product_gradients(graph, config, optimizer)
    stashing = _cut_again(of_machine, views_of_weights(graph, placed), by_rows, by_products)
    if _is_recomputing(config, stashing):
        recomputed = recomputed_operations(graph, placed, recomputation_of(config, placed))
        stashing = _cut_again(of_machine, recomputed, by_rows, by_products)
    if not by_rows:
        return stashing
    update = plan_update(stashing.cut, placed, of_machine.variables, config, optimizer, parameters)
    return replace(stashing, update=update)


def _for_training(of_machine: Inventory) -> Inventory:
    """Returns operations that suit the host better, for the same results."""
    if of_machine.config.checks_floating_point:
        return of_machine
    code = EngineGraph.copy_of(of_machine.graph, of_machine.placed)
    num_changes = widen_half_kernels(code)
    num_changes += compute_losses_by_rows(code) + take_last_steps(code)
    remove_dead(code.graph)
    num_changes += fuse_loss_gradients(code)
    num_changes += use_gradient_products(code.graph) + use_column_sums(code)
    num_changes += move_large_products(code) + pack_weights(code, of_machine.config)
    num_changes += use_our_products(code)
    num_changes += leave_out_attention_copies(code) + divide_before_expanding(code)
    num_changes += fetch_rows_ahead(code)
    if num_changes == 0:
        return of_machine
    remove_dead(code.graph)
    return replace(of_machine, graph=code.graph, placed=code.placed)


def _is_recomputing(config: CompileConfig, stashing: Inventory) -> bool:
    """Returns whether the engine recomputes, too."""
    if config.host_recomputation is not HostRecomputation.AUTOMATIC:
        return config.host_recomputation is HostRecomputation.EXECUTED
    free_bytes = free_memory_bytes()
    num_bytes = config.replication_factor * waiting_bytes(stashing)
    if free_bytes is None or num_bytes <= _LARGEST_SHARE * free_bytes:
        return False
    compiler_logger.info(
        "The engine recomputes, too: stashes of %.1f GiB would take more than half of the %.1f GiB "
        "that are free.",
        num_bytes / 2**30,
        free_bytes / 2**30,
    )
    return True


def waiting_bytes(inventory: Inventory) -> int:
    """Returns how many bytes all links of a replica hold at most."""
    return sum(link.depth * inventory.item_bytes(link) for link in inventory.links)


def _cut_again(
    of_machine: Inventory,
    recomputed: Set[fx.Node],
    by_rows: Mapping[fx.Node, RowGradient],
    by_products: Mapping[fx.Node, ProductGradient],
) -> Inventory:
    graph, placed, config = of_machine.graph, of_machine.placed, of_machine.config
    segments = cut(graph, placed, config.is_training, recomputed, by_rows, by_products)
    equal_values = replica_equal_values(graph, config)
    links = plan_links(segments, placed, of_machine.schedule, config, equal_values)
    return replace(of_machine, cut=segments, links=links)
