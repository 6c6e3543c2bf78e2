"""Computes the memory of the tiles of each IPU from segments, links and variables of a model.

The plan of `memory/holdings.py` is about the engine; this one is about the real machine. It counts
stashes, values that live for some time, temporary memory of operations, and the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torch import fx

from poptorch_emu.ir.graph import SinkKind, SourceKind, record_of, tensors_of
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.machine.costs.code import CodeBytes, Family
from poptorch_emu.machine.costs.product import plan_product
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.machine.tile_memory import IpuMemory, Peak, TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan, Store
from poptorch_emu.plan.operations.memory_proportion import memory_proportion
from poptorch_emu.plan.operations.operation_family import family_of
from poptorch_emu.plan.operations.operation_products import products_of
from poptorch_emu.plan.operations.operation_rows import rows_plan
from poptorch_emu.plan.tiles.tile_liveness import Walk, machine_bytes
from poptorch_emu.plan.tiles.tile_program import program_bytes
from poptorch_emu.plan.tiles.tile_stash import Stashes
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.sharding import sharding_of
from poptorch_emu.segments.variables import VariableInfo

# Number of values that are named at each operation; it is small because a report stores all levels.
_NUM_AT_EACH_STEP = 4

# Bytes beside weight and state in an update of plain SGD, as a multiple of the weight's size: the
# gradient, and a sum or copy of it. Fitted to the largest tables that fit (`docs/fidelity.md`).
_UPDATE_FACTOR = 2.0

_ALWAYS_LIVE = (Content.WEIGHT, Content.STATE, Content.ACCUMULATOR, Content.CONSTANT)


@dataclass(frozen=True)
class Level:
    """The memory of an IPU while one of its operations runs, without its always-live tensors.

    Attributes:
        held: bytes that the IPU holds at this moment, and the largest values among them.
        direction: direction of the segment, or "recompute" for a forward operation in backward.
        block: the user's block of the operation; "" if it has none.
    """

    held: Peak
    direction: str
    block: str


@dataclass
class SegmentFigures:
    """Memory figures of segments that do not depend on the schedule, so that plans may share them.

    Attributes:
        peaks: peak of each segment, without the stashes that wait meanwhile.
        code: size of each virtual IPU's program on a tile.
    """

    peaks: dict[Port, Peak] = field(default_factory=dict)
    code: dict[int, CodeBytes] = field(default_factory=dict)


def plan_tiles(
    inventory: Inventory, plan: MemoryPlan, known: SegmentFigures | None = None
) -> TileMemory:
    """Returns the memory of the tiles of one replica.

    Args:
        inventory: the segments, and everything that they compute on.
        plan: the engine's memory plan of the same segments.
        known: figures of the same segments on the same chip. Missing figures are added to it.
    """
    machine = inventory.config.machine
    chip = IPU_OF_VERSION[machine.version]
    num_tiles, stashes = chip.num_tiles - machine.num_io_tiles, Stashes(inventory)
    known = known or SegmentFigures()
    for ipu in range(inventory.schedule.num_ipus):
        if ipu not in known.code:
            known.code[ipu] = program_bytes(inventory, plan, ipu, num_tiles)
    ipus = tuple(
        IpuMemory(
            plan.ipu_ids[ipu],
            _always_live(inventory, plan, stashes, ipu),
            _peak(inventory, plan, stashes, ipu, walk_on(inventory, ipu, num_tiles), known),
            known.code[ipu],
            _io_bytes(plan, stashes, ipu),
            _host_bytes(inventory, plan, ipu),
        )
        for ipu in range(inventory.schedule.num_ipus)
    )
    return TileMemory(chip, machine.num_io_tiles, ipus)


def _always_live(
    inventory: Inventory, plan: MemoryPlan, stashes: Stashes, ipu: int
) -> tuple[tuple[str, int], ...]:
    """Returns the always-live bytes by kind; gradients only if they are accumulated."""
    accumulates = inventory.config.gradient_accumulation > 1
    held = [
        (content.value, plan.num_bytes(ipu, content, Store.ON_CHIP))
        for content in _ALWAYS_LIVE
        if content is not Content.ACCUMULATOR or accumulates
    ]
    return (*held, (Content.STASH.value, stashes.always_live_bytes(ipu)))


def _io_bytes(plan: MemoryPlan, stashes: Stashes, ipu: int) -> int:
    others = (h for h in plan.select(ipu, store=Store.IO_TILES) if h.content is not Content.STASH)
    return stashes.io_bytes(ipu) + sum(holding.num_bytes for holding in others)


def _host_bytes(inventory: Inventory, plan: MemoryPlan, ipu: int) -> int:
    """Returns the bytes of the micro-batches of inputs that the host prepares ahead."""
    ahead = inventory.config.machine.buffering_depth
    return ahead * sum(holding.item_bytes for holding in plan.select(ipu, Content.INPUT))


def tile_levels(inventory: Inventory, plan: MemoryPlan) -> dict[int, tuple[Level, ...]]:
    """Returns the memory of each IPU at each of its operations, without its always-live tensors.

    Args:
        inventory: the segments, and everything that they compute on.
        plan: the engine's memory plan of the same segments.

    Returns:
        levels in the order of the segments, by the user's number of the IPU; the update comes last.
    """
    machine = inventory.config.machine
    num_tiles = IPU_OF_VERSION[machine.version].num_tiles - machine.num_io_tiles
    stashes = Stashes(inventory)
    levels = {}
    for ipu in range(inventory.schedule.num_ipus):
        walk = walk_on(inventory, ipu, num_tiles)
        found = [
            level
            for port in ports_on(inventory, ipu)
            for level in _levels_of(inventory, stashes, walk, ipu, port)
        ]
        if inventory.update is not None:
            found.append(Level(_update_peak(inventory, plan, ipu), Kind.UPDATE.word, ""))
        levels[plan.ipu_ids[ipu]] = tuple(found)
    return levels


def _levels_of(
    inventory: Inventory, stashes: Stashes, walk: Walk, ipu: int, port: Port
) -> Iterator[Level]:
    """Yields the levels of a segment: its beginning, and each operation."""
    segment, given, ending = begun(inventory, stashes, port)
    nodes: list[fx.Node | None] = [instruction.node for instruction in segment.instructions]
    levels = walk.levels(segment, given, ending, stashes.waiting_bytes(ipu, port))
    for (held, state), node in zip(levels, [*(nodes[:1] or [None]), *nodes], strict=True):
        record = record_of(node) if node is not None else NodeRecord()
        is_again = port[0] is not Kind.FORWARD and record.phase is Phase.FORWARD
        direction = Kind.RECOMPUTE if is_again else port[0]
        held = replace(held, largest=state.largest(walk.title, _NUM_AT_EACH_STEP))
        yield Level(held, direction.word, record.place.block_id)


def _peak(
    inventory: Inventory,
    plan: MemoryPlan,
    stashes: Stashes,
    ipu: int,
    walk: Walk,
    known: SegmentFigures,
) -> Peak:
    peaks = [_update_peak(inventory, plan, ipu)]
    for port in ports_on(inventory, ipu):
        if port not in known.peaks:
            known.peaks[port] = walk.peak(*begun(inventory, stashes, port))
        found = known.peaks[port]
        waiting = stashes.waiting_bytes(ipu, port)
        peaks.append(replace(found, num_bytes=found.num_bytes + waiting))
    return max(peaks, key=walk.tile_bytes)


def walk_on(inventory: Inventory, ipu: int, num_tiles: int) -> Walk:
    """Returns a walk over the segments of an IPU with `num_tiles` computing tiles."""
    return Walk(
        num_tiles,
        lambda node: _temporary_bytes(inventory, ipu, num_tiles, node),
        inventory.title,
    )


def ports_on(inventory: Inventory, ipu: int) -> list[Port]:
    """Returns the ports of the segments that an IPU runs, in order."""
    return [port for port in inventory.cut.segments if inventory.ipu_of(port) == ipu]


def begun(
    inventory: Inventory, stashes: Stashes, port: Port
) -> tuple[Segment, dict[int, int], frozenset[int]]:
    """Returns a segment, the bytes of its inputs, and its gradients, both by register."""
    segment = inventory.cut.segments[port]
    gradients = frozenset(
        segment.registers[node]
        for sink, home, node in inventory.cut.results
        if sink.kind is SinkKind.GRADIENT and home == port
    )
    return segment, _given(inventory, stashes, port), gradients


def _given(inventory: Inventory, stashes: Stashes, port: Port) -> dict[int, int]:
    """Returns the bytes of a segment's inputs by register; weights in memory do not count."""
    given = {}
    segment = inventory.cut.segments[port]
    for source, register in segment.loads.items():
        use = inventory.use_of(source, is_sharded=False)
        if use is not None and use.is_fetched:
            given[register] = use.num_bytes
        elif source.kind is SourceKind.INPUT:
            given[register] = machine_bytes(stashes.input_of[source])
    for link in inventory.links:
        if link.consumer == port:
            for node, num_bytes in stashes.bytes_of(link).items():
                given[segment.registers[node]] = num_bytes
    return given


def _temporary_bytes(inventory: Inventory, ipu: int, num_tiles: int, node: fx.Node) -> int:
    """Returns the temporary bytes of an operation on a tile, from its largest product.

    For a gather or a scatter, the plan of its rows gives the bytes.
    """
    machine = inventory.config.machine
    chip, family = IPU_OF_VERSION[machine.version], family_of(node)
    if family is Family.GATHER and any(value.numel() for value in tensors_of([node])):
        tiles = Tiles.of(chip, num_tiles, inventory.config.is_training)
        return rows_plan(node, tiles).temporary_bytes
    is_convolution = family is Family.CONVOLUTION
    has_half_sums = machine.has_half_convolutions if is_convolution else machine.has_half_products
    proportion = memory_proportion(inventory, node, ipu)
    plans = (
        plan_product(product, chip, num_tiles, proportion)
        for product in products_of(node, has_half_sums)
    )
    return max((plan.temporary_bytes - plan.result_bytes for plan in plans), default=0)


def _update_peak(inventory: Inventory, plan: MemoryPlan, ipu: int) -> Peak:
    """Returns the memory of the largest update of a weight, because weights are updated in turn."""
    fetched: Counter[str] = Counter()
    for holding in plan.select(ipu, Content.STATE, Store.REMOTE):
        fetched[holding.name.partition("___")[2]] += holding.num_bytes
    held = {
        weight.name: _update_bytes(inventory, weight) + fetched[weight.name]
        for weight in inventory.updated_on(ipu)
    }
    if not held:
        return Peak(0, 0, "nothing")
    largest = max(held, key=lambda name: held[name])
    found = ((largest, held[largest]),)
    return Peak(held[largest], 0, f"the update of {largest}", found)


def _update_bytes(inventory: Inventory, weight: VariableInfo) -> int:
    """Returns the bytes that the update of a weight holds beside the weight and its state.

    A rule with moments computes a step of the weight's size from its states, which it changes in
    place. Its gradient is the accumulated sum. A replica that updates only a part copies that part
    of the gradient, and then gathers the whole weight. Derived from PopART's update operations.
    """
    assert inventory.update is not None, "trained weights have an update"
    size = weight.num_elements * weight.dtype.itemsize
    if not inventory.update.has_moments:
        return round(_UPDATE_FACTOR * size)
    is_part = sharding_of(weight, inventory.config).is_active
    step = inventory.elements_of(weight, is_part) * weight.dtype.itemsize
    is_accumulated = inventory.config.gradient_accumulation > 1
    return step + (0 if is_accumulated and not is_part else step) + (size if is_part else 0)
