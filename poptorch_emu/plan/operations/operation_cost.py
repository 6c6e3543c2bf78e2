"""Cost of each operation of a graph on an IPU, computed from its shapes and its family."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.control import FOR_LOOP, HOST_CALL, region_names
from poptorch_emu.ir.exchange import ALL_GATHER, ALL_REDUCE
from poptorch_emu.ir.graph import Graph, record_of, tensors_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.machine.costs import collective, movement
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.elementwise import elementwise, is_modelled
from poptorch_emu.machine.costs.gather import look_up
from poptorch_emu.machine.costs.normalisation import Sequence, sequence
from poptorch_emu.machine.costs.product import Product, plan_product
from poptorch_emu.machine.costs.recurrent import step
from poptorch_emu.machine.costs.reduction import reduction
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.costs.vertices import Precision, Window
from poptorch_emu.plan.operations.elementwise_names import computes_integers, programs_of
from poptorch_emu.plan.operations.operation_family import (
    bare_name,
    family_of,
    item_bytes,
    operands_of,
    query_and_key,
    recurrent_operands,
)
from poptorch_emu.plan.operations.operation_products import products_of
from poptorch_emu.plan.operations.operation_rows import rows_plan

# A convolution over fewer input channels may be cheaper if its window becomes part of the channels.
_FEW_CHANNELS = 16
_LARGER_FLOAT_BYTES = 4


@dataclass(frozen=True)
class OperationCost:
    """The cost of an operation, and the quality of its model.

    Attributes:
        is_known: whether the family is modelled; other operations are costed as elementwise ones.
        is_rough: whether the model of the family is only rough.
    """

    cost: Cost
    is_known: bool = True
    is_rough: bool = False


class OperationCosts:
    """Costs of operations on the tiles of one IPU. The cost of each operation is computed once."""

    def __init__(
        self,
        tiles: Tiles,
        regions: dict[str, Graph],
        proportion_of: Callable[[fx.Node], float],
        has_half_products: bool,
        has_half_convolutions: bool,
        ipus_per_replica: int,
        fused: Mapping[fx.Node, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        """Makes a table of costs, which is filled on demand.

        Args:
            tiles: the tiles that compute.
            regions: bodies of loops and branches, by name.
            proportion_of: returns the fraction of a tile's memory that a product may use.
            has_half_products: whether products of float16 numbers are summed in float16.
            has_half_convolutions: whether convolutions of float16 numbers are summed in float16.
            ipus_per_replica: number of IPUs of a replica, which share the links between replicas.
            fused: names of the programs of operations that the machine fuses with others.
        """
        self._tiles = tiles
        self._regions = regions
        self._proportion_of = proportion_of
        self._ipus_per_replica = ipus_per_replica
        self._has_half = {True: has_half_convolutions, False: has_half_products}
        self._fused = fused
        self._found: dict[fx.Node, OperationCost] = {}

    def of(self, node: fx.Node) -> OperationCost:
        """Returns the cost of an operation."""
        if node not in self._found:
            self._found[node] = self._of(node)
        return self._found[node]

    def _of(self, node: fx.Node) -> OperationCost:
        family = family_of(node)
        if family is Family.VIEW:
            return OperationCost(Cost())
        if region_names(node):
            return self._of_regions(node)
        if node.target is HOST_CALL:
            return OperationCost(Cost(), is_rough=True)
        if not any(value.numel() for value in tensors_of([node])):
            return OperationCost(Cost())
        makers: dict[Family, Callable[[fx.Node], Cost]] = {
            Family.PRODUCT: self._product,
            Family.CONVOLUTION: self._convolution,
            Family.ATTENTION: self._attention,
            Family.RECURRENT: self._recurrent,
            Family.SOFTMAX: self._softmax,
            Family.NORM: self._norm,
            Family.LOSS: self._loss,
            Family.GATHER: self._gather,
            Family.SORT: self._sort,
            Family.REDUCTION: self._reduction,
            Family.POOL: self._pool,
            Family.COPY: self._copy,
            Family.CAST: self._cast,
            Family.RANDOM: self._random,
            Family.COLLECTIVE: self._collective,
        }
        if node in self._fused:
            return OperationCost(self._programs(node, self._fused[node]))
        if family in makers:
            is_rough = family in (Family.RECURRENT, Family.SORT) or _is_odd(node)
            return OperationCost(makers[family](node), is_rough=is_rough)
        names = programs_of(node)
        return OperationCost(self._elementwise(node), all(map(is_modelled, names)))

    def _of_regions(self, node: fx.Node) -> OperationCost:
        """Returns the cost of all iterations of a loop, or of the slower side of a branch."""
        sums = [
            sum((self.of(inner).cost for inner in self._regions[name].operations), Cost())
            for name in region_names(node)
        ]
        arguments: Any = node.args
        count = arguments[1] if node.target is FOR_LOOP else 1
        return OperationCost(max(sums, key=lambda c: c.cycles).times(count), is_rough=True)

    def _products(self, node: fx.Node) -> list[Cost]:
        has_half = self._has_half[family_of(node) is Family.CONVOLUTION]
        return [self._planned(node, product) for product in products_of(node, has_half)]

    def _planned(self, node: fx.Node, product: Product) -> Cost:
        plain = self._plan(node, product)
        if product.reduced >= _FEW_CHANNELS or product.window.num_positions == 1:
            return plain
        positions = product.window.num_positions
        folded = replace(product, reduced=product.reduced * positions, window=Window())
        num_bytes = _operand_bytes(product.precision) * folded.rows * folded.reduced * folded.count
        with_copy = self._plan(node, folded) + movement.relayout(num_bytes, self._tiles)
        return min(plain, with_copy, key=lambda cost: cost.cycles)

    def _plan(self, node: fx.Node, product: Product) -> Cost:
        tiles = self._tiles
        plan = plan_product(product, tiles.chip, tiles.count, self._proportion_of(node))
        compute = plan.cycles - plan.exchange_cycles - plan.sync_cycles
        return Cost(compute, plan.exchange_cycles, plan.sync_cycles, 1, Evidence.DERIVED)

    def _product(self, node: fx.Node) -> Cost:
        cost = sum(self._products(node), Cost())
        operands = operands_of(node)
        if bare_name(node) in ("addmm", "baddbmm", "addbmm", "addmv"):
            cost += self._biased(node, operands[0])
        if record_of(node).phase is Phase.BACKWARD:
            cost += self._relaid(node)
        return cost

    def _biased(self, node: fx.Node, bias: torch.Tensor) -> Cost:
        (result,) = tensors_of([node])
        size = item_bytes(node, result)
        spread = bias.numel() * size if bias.numel() < result.numel() else 0
        name = "add_scalar" if spread else "add"
        return elementwise(name, result.numel(), size, self._tiles, spread)

    def _relaid(self, node: fx.Node) -> Cost:
        """Returns the cost of rearranging operands whose layout suits the forward pass only.

        A gradient of weights is a sum over rows, so both operands are rearranged, because neither
        is laid out for that. A gradient of data rearranges the weights only.
        """
        values = [value for value in node.args if isinstance(value, fx.Node)][-2:]
        moved = values if _is_transposed(values[0]) else values[1:]
        return sum((movement.relayout(_num_bytes(value), self._tiles) for value in moved), Cost())

    def _convolution(self, node: fx.Node) -> Cost:
        cost = sum(self._products(node), Cost())
        arguments: Any = node.args
        if bare_name(node) == "convolution":
            bias = arguments[2]
            return cost + self._biased(node, bias.meta["val"]) if bias is not None else cost
        gradient, source, weight = arguments[:3]
        wanted = arguments[10]
        moved = ([weight] if wanted[0] else []) + ([gradient, source] if wanted[1] else [])
        for value in moved:
            cost += movement.relayout(_num_bytes(value), self._tiles)
        if wanted[2]:
            total, size = gradient.meta["val"].numel(), item_bytes(node, gradient.meta["val"])
            channels = gradient.meta["val"].shape[1]
            cost += reduction(total, channels, size, self._tiles, is_inner=False)
        return cost

    def _attention(self, node: fx.Node) -> Cost:
        cost = sum(self._products(node), Cost())
        query, key = query_and_key(node)
        size = item_bytes(node, query)
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        kinds = [Sequence.SOFTMAX]
        if "backward" in bare_name(node):
            kinds.append(Sequence.SOFTMAX_GRAD)
        for kind in kinds:
            cost += elementwise("mul_scalar", scores, size, self._tiles)
            cost += sequence(kind, scores, size, self._tiles)
        arguments: Any = (*node.args, *node.kwargs.values())
        if any(argument is True for argument in arguments) or len(operands_of(node)) > 3:
            cost += elementwise("select", scores, size, self._tiles)
        return cost

    def _recurrent(self, node: fx.Node) -> Cost:
        """Returns the cost of a recurrent layer: one product of all inputs, then one for each step.

        A backward step costs twice a forward step (derived).
        """
        sequence, _, weight = recurrent_operands(node)
        (steps, rows), width = sequence.shape[:2], weight.shape[1]
        inputs, hidden, *others = self._products(node)
        size = item_bytes(node, weight)
        own = step(rows * width, weight.shape[0] // width, size, self._tiles)
        passes = 2 if "backward" in bare_name(node) else 1
        return inputs + (hidden + own).times(passes * steps) + sum(others, Cost())

    def _softmax(self, node: fx.Node) -> Cost:
        name = bare_name(node)
        kind = Sequence.LOG_SOFTMAX if "log" in name else Sequence.SOFTMAX
        return self._sequence(node, Sequence.SOFTMAX_GRAD if "backward" in name else kind)

    def _norm(self, node: fx.Node) -> Cost:
        name = bare_name(node)
        is_inference = "no_training" in name or node.args[5:6] == (False,)
        kind = Sequence.NORM_OF_INFERENCE if is_inference else Sequence.NORM
        return self._sequence(node, Sequence.NORM_GRAD if "backward" in name else kind)

    def _sequence(self, node: fx.Node, kind: Sequence) -> Cost:
        value = next(tensors_of([node]))
        return sequence(kind, value.numel(), item_bytes(node, value), self._tiles)

    def _loss(self, node: fx.Node) -> Cost:
        value = max(tensors_of([node]), key=torch.Tensor.numel)
        size = item_bytes(node, value)
        if "backward" in bare_name(node):
            return elementwise("fill", value.numel(), size, self._tiles) + self._tiles.cost(0, 1)
        operand = operands_of(node)[0]
        rows = operand.numel() // max(1, operand.shape[-1])
        width = operand.shape[-1] if operand.dim() else 1
        found = look_up(width, 1, rows, size, self._tiles)
        return found.cost + reduction(rows, 1, size, self._tiles, is_inner=False)

    def _gather(self, node: fx.Node) -> Cost:
        return rows_plan(node, self._tiles).cost

    def _sort(self, node: fx.Node) -> Cost:
        value = operands_of(node)[0]
        length = value.shape[-1] if value.dim() else 1
        return movement.sort(value.numel(), length, item_bytes(node, value), self._tiles)

    def _reduction(self, node: fx.Node) -> Cost:
        operand = max(tensors_of(node.all_input_nodes), key=torch.Tensor.numel)
        result = next(tensors_of([node]))
        size = item_bytes(node, operand)
        inner = result.shape[-1:] != operand.shape[-1:] or result.shape == operand.shape
        return reduction(operand.numel(), result.numel(), size, self._tiles, is_inner=inner)

    def _pool(self, node: fx.Node) -> Cost:
        name = bare_name(node)
        is_gradient = "backward" in name
        small = operands_of(node)[0] if is_gradient else next(tensors_of([node]))
        large = next(tensors_of([node])) if is_gradient else operands_of(node)[0]
        window = _window_of(node) or max(1, large.numel() // max(1, small.numel()))
        is_max = is_gradient and "max" in name
        return movement.pool(small.numel(), window, item_bytes(node, small), self._tiles, is_max)

    def _copy(self, node: fx.Node) -> Cost:
        return sum(
            (
                movement.copy(value.numel() * item_bytes(node, value), self._tiles)
                for value in tensors_of([node])
            ),
            Cost(),
        )

    def _collective(self, node: fx.Node) -> Cost:
        arguments: Any = node.args
        replicas = collective.Replicas(arguments[1], self._ipus_per_replica)
        value, size = next(tensors_of([node])), item_bytes(node, next(tensors_of([node])))
        if node.target is ALL_REDUCE:
            return collective.all_reduce(value.numel(), size, replicas, self._tiles)
        make = collective.all_gather if node.target is ALL_GATHER else collective.all_to_all
        return make(value.numel() * size, replicas, self._tiles)

    def _cast(self, node: fx.Node) -> Cost:
        (source,), (result,) = operands_of(node), tensors_of([node])
        if source.dtype == result.dtype:
            return self._copy(node)
        is_float = source.is_floating_point() and result.is_floating_point()
        size = max(item_bytes(node, source), item_bytes(node, result))
        return elementwise(
            "cast" if is_float else "cast_integer", result.numel(), size, self._tiles
        )

    def _random(self, node: fx.Node) -> Cost:
        value = next(tensors_of([node]))
        name = "fill" if "bernoulli" in bare_name(node) else "dropout"
        return elementwise(name, value.numel(), item_bytes(node, value), self._tiles)

    def _elementwise(self, node: fx.Node) -> Cost:
        return self._programs(node, programs_of(node))

    def _programs(self, node: fx.Node, names: tuple[str, ...]) -> Cost:
        result = next(tensors_of([node]))
        operands = list(tensors_of(node.all_input_nodes))
        numbers = [value for value in operands if value.is_floating_point()]
        is_integer = computes_integers(node)
        size = max((item_bytes(node, v) for v in (*numbers, result)), default=1)
        if numbers:
            size = min(size, max(item_bytes(node, v) for v in numbers))
        count = max([result.numel(), *(v.numel() for v in operands)])
        if bare_name(node).startswith("_cdist"):
            rows, others = query_and_key(node)
            count = rows.numel() * others.shape[-2]
        smaller = [v.numel() * size for v in operands if 1 < v.numel() < count]
        cost = Cost()
        for index, name in enumerate(names):
            spread = sum(smaller) if index == 0 else 0
            is_spread_scalar = name in ("add", "mul") and bool(smaller)
            name = f"{name}_scalar" if is_spread_scalar else name
            cost += elementwise(name, count, size, self._tiles, spread, is_integer)
        return cost


def _operand_bytes(precision: Precision) -> int:
    return _LARGER_FLOAT_BYTES if precision is Precision.FLOAT else torch.half.itemsize


def _num_bytes(node: fx.Node) -> int:
    return sum(value.numel() * item_bytes(node, value) for value in tensors_of([node]))


def _is_transposed(value: fx.Node) -> bool:
    """Returns whether a value is a view of another one with its last axes exchanged."""
    while value.op == "call_function":
        if value.target is not operator.getitem:
            if not traits_of(value.target).is_view:
                return False
            if bare_name(value) in ("t", "transpose"):
                return True
        value = value.all_input_nodes[0]
    return False


def _is_odd(node: fx.Node) -> bool:
    """Returns whether an operation is a transposed or grouped convolution or a loss by CTC.

    Their models are rough; that of CTC lacks its recursion over time.
    """
    if family_of(node) is not Family.CONVOLUTION:
        return "ctc_loss" in bare_name(node)
    arguments: Any = node.args
    shift = 1 if bare_name(node) == "convolution_backward" else 0
    return bool(arguments[6 + shift]) or arguments[8 + shift] > 1


def _window_of(node: fx.Node) -> int:
    """Returns the number of positions of a pooling window; 0 if no argument gives its size."""
    sizes: Iterator[Any] = (item for item in node.args if isinstance(item, (list, tuple)))
    first = next(sizes, None)
    if first is None or "adaptive" in bare_name(node) or "upsample" in bare_name(node):
        return 0
    positions: int = math.prod(first)
    return positions ** (2 if len(first) == 1 and "2d" in bare_name(node) else 1)
