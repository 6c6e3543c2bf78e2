"""Stashed values that wait on an IPU between two of its segments, for the model of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from poptorch_emu.ir.graph import Source, SourceKind, source_of
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.tiles.tile_liveness import machine_bytes
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port, link_depth
from poptorch_emu.segments.links import LinkPlan


@dataclass(frozen=True)
class _Stash:
    """Values of one stage that wait from its forward to its backward.

    Attributes:
        item_bytes: bytes of one micro-batch.
        values: bytes of each value of a micro-batch, before replicas divide them.
        depth: largest number of micro-batches that wait at the same time.
        is_on_io_tiles: whether the values wait on the tiles for I/O.
    """

    ipu: int
    producer: Port
    consumer: Port
    item_bytes: int
    depth: int
    is_on_io_tiles: bool
    values: Mapping[fx.Node, int]

    def shares(self) -> Iterator[tuple[fx.Node, float]]:
        """Yields the bytes of each value in all micro-batches that wait."""
        whole = sum(self.values.values())
        for node, size in self.values.items():
            if size:
                yield node, self.depth * self.item_bytes * size / whole


class Stashes:
    """The stashes of one replica that are not in streaming memory.

    A stash of several micro-batches occupies its memory for the whole program. A stash of one
    micro-batch exists only from forward to backward, and needs no copy of the values.
    """

    def __init__(self, inventory: Inventory) -> None:
        """Collects the stashes from the links and inputs of `inventory`."""
        self._inventory = inventory
        self._bytes: dict[LinkPlan, dict[fx.Node, int]] = {}
        self._stashes = [*self._of_links(), *self._of_inputs()]

    @cached_property
    def input_of(self) -> dict[Source, fx.Node]:
        """The placeholder of each source."""
        return {source_of(node): node for node in self._inventory.graph.sources}

    def always_live_bytes(self, ipu: int) -> int:
        """Returns the bytes of always-live stashes on the computing tiles of an IPU."""
        return sum(depth * num_bytes for depth, num_bytes in self.sizes(ipu).items())

    def sizes(self, ipu: int) -> dict[int, int]:
        """Returns the bytes of one micro-batch in the always-live stashes, by their depth."""
        found: Counter[int] = Counter()
        for stash in self._on_chip(ipu):
            if stash.depth > 1:
                found[stash.depth] += stash.item_bytes
        return dict(found)

    def always_live_values(self, ipu: int) -> Iterator[tuple[fx.Node, float]]:
        """Yields the values of `always_live_bytes` with their bytes."""
        for stash in self._on_chip(ipu):
            if stash.depth > 1:
                yield from stash.shares()

    def io_bytes(self, ipu: int) -> int:
        """Returns the bytes of the stashes of an IPU that are on its tiles for I/O."""
        mine = (stash for stash in self._stashes if stash.ipu == ipu and stash.is_on_io_tiles)
        return sum(stash.depth * stash.item_bytes for stash in mine)

    def waiting_bytes(self, ipu: int, port: Port) -> int:
        """Returns the bytes that wait while the segment at `port` runs, which does not use them."""
        return sum(stash.item_bytes for stash in self._waiting(ipu, port))

    def waiting_values(self, ipu: int, port: Port) -> Iterator[tuple[fx.Node, float]]:
        """Yields the values of `waiting_bytes` with their bytes."""
        for stash in self._waiting(ipu, port):
            yield from stash.shares()

    def _waiting(self, ipu: int, port: Port) -> Iterator[_Stash]:
        rank = self._inventory.placed.rank
        return (
            stash
            for stash in self._on_chip(ipu)
            if stash.depth == 1 and rank(stash.producer) < rank(port) < rank(stash.consumer)
        )

    def bytes_of(self, link: LinkPlan) -> dict[fx.Node, int]:
        """Returns the bytes of each value of a link; one of the values that share memory has all.

        A view of a weight has none. A view of an input has as many as the whole input.
        """
        if link not in self._bytes:
            self._bytes[link] = self._bytes_of(link)
        return self._bytes[link]

    def _bytes_of(self, link: LinkPlan) -> dict[fx.Node, int]:
        segments = self._inventory.cut.segments
        producer, consumer = segments[link.producer], segments[link.consumer]
        storage = self._inventory.cut.storage[link.producer]
        loaded = {register: source for source, register in producer.loads.items()}
        owners: dict[int, fx.Node] = {}
        sizes = dict.fromkeys(link.nodes, 0)
        for node in link.nodes:
            register = producer.registers[node]
            root = storage.get(register, register)
            source = loaded.get(root)
            if source is None:
                size = machine_bytes(node)
            elif source.kind is SourceKind.INPUT and source not in consumer.loads:
                size = machine_bytes(self.input_of[source])
            else:
                continue
            owner = owners.setdefault(root, node)
            sizes[owner] = max(sizes[owner], size)
        return sizes

    def _on_chip(self, ipu: int) -> Iterator[_Stash]:
        return (stash for stash in self._stashes if stash.ipu == ipu and not stash.is_on_io_tiles)

    def _of_links(self) -> Iterator[_Stash]:
        inventory = self._inventory
        on_io_tiles = inventory.config.locations.activation.uses_io_tiles_to_store
        for link in inventory.links:
            if link.is_stash and not link.is_remote:
                size = sum(self.bytes_of(link).values())
                item_bytes = inventory.part_of(size) if link.is_shard else size
                ipu, ends = inventory.ipu_of(link.consumer), (link.producer, link.consumer)
                values = self.bytes_of(link)
                yield _Stash(ipu, *ends, item_bytes, link.depth, on_io_tiles, values)

    def _of_inputs(self) -> Iterator[_Stash]:
        """Yields a stash for each input that backward reads again."""
        inventory = self._inventory
        for port, segment in inventory.cut.segments.items():
            forward = (Kind.FORWARD, port[1])
            for source in segment.loads:
                is_last = port == inventory.last_to_read(source, port[1])
                if source.kind is SourceKind.INPUT and is_last:
                    depth = link_depth(inventory.schedule, forward, port)
                    node = self.input_of[source]
                    size, ipu = machine_bytes(node), inventory.ipu_of(port)
                    yield _Stash(ipu, forward, port, size, depth, False, {node: size})
