"""What processes exchange during an update: the network's list, and who waits for it."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.segments.segment import Segment
from poptorch_emu.update.parts.update_parts import Part


class NetworkParts:
    """The parts that several processes go through in one order, linked to what waits for them."""

    def __init__(self, everyone: tuple[int, ...]) -> None:
        """Takes the replicas of this process."""
        self._everyone = everyone
        self._gradients: list[Part] = []
        self._squares: list[Part] = []
        self._gathers: list[Part] = []

    @property
    def parts(self) -> list[Part]:
        """The network's list: no part waits for one that comes later."""
        return [*self._gradients, *self._squares, *self._gathers]

    def add_gradients(
        self, ipu: int, whole: Sequence[str], cut: Sequence[str], sharded: Sequence[str]
    ) -> list[Part]:
        """Plans that gradients are added up; returns what waits for that on an IPU.

        Args:
            ipu: where they are accumulated.
            whole: weights whose gradients all processes need whole.
            cut: weights whose gradients each process needs its parts of.
            sharded: weights whose accumulators have parts in all processes, and are put together.
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
        """Plans that sums which the replicas just made are added up; returns both sides of it."""
        exchange = Part(Segment(f"exchange squares {ipu}"), exchanges=tuple(sums))
        self._squares.append(exchange)
        ended = self._ending_before(exchange, f"squares {ipu}")
        return [ended, self._waiting_for(exchange, f"reduce squares {ipu}")]

    def add_gather(self, ipu: int, variables: Sequence[str]) -> list[Part]:
        """Plans that all processes get the parts of each; returns what says that these are there.

        Args:
            ipu: that updates the parts.
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
        """Returns what one replica runs when all are through with what comes before."""
        ended = Part(Segment(name))
        exchange.receive(ended, {})
        return ended
