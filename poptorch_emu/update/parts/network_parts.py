"""Exchanges between processes during an update, and the parts that wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.segments.segment import Segment
from poptorch_emu.update.parts.update_parts import Part


class NetworkParts:
    """The exchanges, which all processes run in one order, and links to the parts that wait."""

    def __init__(self, everyone: tuple[int, ...]) -> None:
        """Stores the replicas of this process."""
        self._everyone = everyone
        self._gradients: list[Part] = []
        self._squares: list[Part] = []
        self._gathers: list[Part] = []

    @property
    def parts(self) -> list[Part]:
        """The network's list. No part waits for a later one."""
        return [*self._gradients, *self._squares, *self._gathers]

    def add_gradients(
        self, ipu: int, whole: Sequence[str], cut: Sequence[str], sharded: Sequence[str]
    ) -> list[Part]:
        """Plans the sums of gradients; returns the parts on an IPU that wait for them.

        Args:
            ipu: index of the IPU that accumulates them.
            whole: weights whose whole gradients all processes need.
            cut: weights of whose gradients each process needs only its shards.
            sharded: weights whose accumulators are sharded over the processes and are gathered.
        """
        if not (whole or cut or sharded):
            return []
        exchange = Part(
            Segment(f"exchange {ipu}"),
            exchanges=tuple(whole),
            scatters=tuple(cut),
            gathered_sums=tuple(sharded),
        )
        self._gradients.append(exchange)
        return [self._waiting_for(exchange, f"reduce {ipu}")]

    def add_squares(self, ipu: int, sums: Sequence[str]) -> list[Part]:
        """Plans the exchange of sums of the replicas; returns the parts before and after it."""
        exchange = Part(Segment(f"exchange squares {ipu}"), exchanges=tuple(sums))
        self._squares.append(exchange)
        ended = self._ending_before(exchange, f"squares {ipu}")
        return [ended, self._waiting_for(exchange, f"reduce squares {ipu}")]

    def add_gather(self, ipu: int, variables: Sequence[str]) -> list[Part]:
        """Plans the gather of shards over all processes; returns the parts that wait for it.

        Args:
            ipu: index of the IPU that updates the shards.
            variables: weights and states.
        """
        if not variables:
            return []
        gather = Part(Segment(f"gather {ipu}"), gathers=tuple(variables))
        self._gathers.append(gather)
        return [self._ending_before(gather, f"updated {ipu}")]

    def _waiting_for(self, exchange: Part, name: str) -> Part:
        waiting = Part(Segment(name), self._everyone)
        waiting.receive(exchange, {})
        return waiting

    def _ending_before(self, exchange: Part, name: str) -> Part:
        """Returns a part that one replica runs after all replicas finished the parts before."""
        ended = Part(Segment(name))
        exchange.receive(ended, {})
        return ended
