"""What each IPU of a replica holds, as tables for people and for other programs."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan, Store
from poptorch_emu.text_table import to_table


@dataclass(frozen=True)
class MemoryReport(MemoryPlan):
    """A memory plan that can be printed."""

    @classmethod
    def of(cls, plan: MemoryPlan) -> MemoryReport:
        """Returns `plan` with its tables."""
        return cls(**vars(plan))

    def __str__(self) -> str:
        """Returns a table: for each IPU its kinds of content, in KiB, on chip and remote.

        The settings stand below it.
        """
        rows: list[tuple[str, ...]] = [
            ("IPU", "content", "pieces", "on chip KiB", "I/O tiles KiB", "remote KiB")
        ]
        for ipu, user_id in enumerate(self.ipu_ids):
            for content in Content:
                pieces = list(self.select(ipu, content))
                if pieces:
                    rows.append((str(user_id), content.value, str(sum(p.copies for p in pieces)),
                                 *self._kib(ipu, content)))  # fmt: skip
            rows.append((str(user_id), "all", "", *self._kib(ipu, None)))
        return "\n".join([*to_table(rows, num_left=2), *self.settings])

    def to_csv(self) -> str:
        """Returns one line for each piece, under a line of names."""
        lines = ["ipu,content,name,item_bytes,copies,store,is_shard"]
        lines += [
            f"{self.ipu_ids[h.ipu]},{h.content.value},{h.name},{h.item_bytes},{h.copies},"
            f"{h.store.value},{int(h.is_shard)}"
            for h in self.holdings
        ]
        return "\n".join(lines) + "\n"

    def _kib(self, ipu: int, content: Content | None) -> tuple[str, ...]:
        return tuple(f"{self.num_bytes(ipu, content, store) / 1024:.1f}" for store in Store)
