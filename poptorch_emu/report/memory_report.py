"""The contents of each IPU's memory, as tables for people and for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poptorch_emu.compile.executable import PlacedGraph
from poptorch_emu.config import CompileConfig
from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan, Store
from poptorch_emu.report.memory_settings import memory_settings
from poptorch_emu.report.pictures import axes_or_new, draw_stacks
from poptorch_emu.report.printed_report import PrintedReport, Table

_MIB = 1024**2


@dataclass(frozen=True)
class MemoryReport(MemoryPlan, PrintedReport):
    """A memory plan that can be printed.

    The table lists each IPU's kinds of content in KiB, on chip and remote, above the settings.

    Attributes:
        settings: lines of text on further settings for memory.
    """

    settings: tuple[str, ...] = ()

    @classmethod
    def of_plan(cls, placed: PlacedGraph, config: CompileConfig) -> MemoryReport:
        """Returns a plan that can be printed, with the settings that it used."""
        settings = memory_settings(placed.graph, placed.partition, config)
        return cls(**vars(placed.memory), settings=tuple(settings))

    def _parts(self, columns: int) -> list[str | Table]:
        return [Table(self._rows(), 2), *self.settings]

    def plot(self, axes: Any = None) -> Any:
        """Draws the content of each IPU, on chip and in streaming memory, in MiB.

        Arguments, result and errors are those of `SchedulePlan.plot`.
        """
        bars = [
            (ipu, store)
            for ipu in range(len(self.ipu_ids))
            for store in Store
            if store is Store.ON_CHIP or self.num_bytes(ipu, store=store)
        ]
        axes = axes_or_new(axes, 3.5 + 0.8 * len(bars), 4.0)
        parts = {
            content.value: [self.num_bytes(ipu, content, store) / _MIB for ipu, store in bars]
            for content in Content
        }
        draw_stacks(axes, [_bar_name(self.ipu_ids[ipu], store) for ipu, store in bars], parts)
        axes.set_ylabel("MiB")
        return axes

    def _rows(self) -> list[tuple[str, ...]]:
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
        return rows

    def to_csv(self) -> str:
        """Returns a header line, and one line for each piece of content."""
        lines = ["ipu,content,name,item_bytes,copies,store,is_shard"]
        lines += [
            f"{self.ipu_ids[h.ipu]},{h.content.value},{h.name},{h.item_bytes},{h.copies},"
            f"{h.store.value},{int(h.is_shard)}"
            for h in self.holdings
        ]
        return "\n".join(lines) + "\n"

    def _kib(self, ipu: int, content: Content | None) -> tuple[str, ...]:
        return tuple(f"{self.num_bytes(ipu, content, store) / 1024:.1f}" for store in Store)


def _bar_name(ipu: int, store: Store) -> str:
    return f"IPU {ipu}" if store is Store.ON_CHIP else f"IPU {ipu}\n{store.value}"
