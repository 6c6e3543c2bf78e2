"""How much of a tile the program itself takes: code, vertices, exchanges and control.

Sizes are averages over the programs of `docs/fidelity.md`, good to some 30 %. What an operation
needs is told by its family; nothing here knows operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from poptorch_emu.machine.costs.tiles import GRAIN_BYTES


@dataclass(frozen=True)
class FamilyCode:
    """What one operation of a family takes on a tile that it uses.

    Attributes:
        num_compute_sets: phases of computation.
        codelet_bytes: code that all operations of one type share.
        state_bytes: vertices of a compute set.
        exchange_bytes: code of its exchanges.
        is_heavy: whether it is worth a function of its own.
    """

    num_compute_sets: int
    codelet_bytes: int
    state_bytes: int = 50
    exchange_bytes: int = 0
    is_heavy: bool = False


class Family(Enum):
    """Operations whose programs are alike. Sources: `docs/fidelity.md`."""

    VIEW = FamilyCode(0, 0)
    ELEMENTWISE = FamilyCode(1, 200, exchange_bytes=10)
    BROADCAST = FamilyCode(1, 700, state_bytes=200, exchange_bytes=16)
    CAST = FamilyCode(1, 300)
    RANDOM = FamilyCode(1, 300)
    COPY = FamilyCode(1, 200, exchange_bytes=300)
    REDUCTION = FamilyCode(2, 800, exchange_bytes=100)
    GATHER = FamilyCode(2, 600, exchange_bytes=1000)
    SORT = FamilyCode(3, 750, exchange_bytes=300)
    LOSS = FamilyCode(3, 750, exchange_bytes=100)
    SOFTMAX = FamilyCode(7, 1400, exchange_bytes=200)
    NORM = FamilyCode(6, 1400, exchange_bytes=200)
    POOL = FamilyCode(1, 400, exchange_bytes=300)
    # Assumed: of a reduction, with the exchange of a gather.
    COLLECTIVE = FamilyCode(2, 800, exchange_bytes=1000)
    PRODUCT = FamilyCode(3, 1200, exchange_bytes=1000, is_heavy=True)
    ATTENTION = FamilyCode(16, 3800, exchange_bytes=2600, is_heavy=True)
    CONVOLUTION = FamilyCode(3, 2200, exchange_bytes=1700, is_heavy=True)
    RECURRENT = FamilyCode(14, 3500, exchange_bytes=2500, is_heavy=True)
    # Of a weight, with momentum or moments.
    UPDATE = FamilyCode(10, 1500, exchange_bytes=50)


@dataclass(frozen=True)
class OperationCode:
    """One operation of a program.

    Attributes:
        family: of the operation.
        codelet: equal where the code of the vertices is.
        signature: equal where the whole program of the operation is.
        used_fraction: of the tiles.
    """

    family: Family
    codelet: Hashable
    signature: Hashable
    used_fraction: float = 1.0

    @property
    def value(self) -> float:
        """What it counts towards the threshold of outlining; remembered from PopART."""
        return 1000.0 if self.family.value.is_heavy else 0.1


def used_fraction(num_bytes: int, num_tiles: int) -> float:
    """Returns which part of the tiles a tensor is spread over, at least 128 bytes to each.

    Source: PopLibs' linear mapping.
    """
    return min(1.0, -(-num_bytes // GRAIN_BYTES) / num_tiles)


@dataclass(frozen=True)
class CodeBytes:
    """Bytes on a tile."""

    vertex_code: int = 0
    vertex_state: int = 0
    exchange: int = 0
    control: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.vertex_code + self.vertex_state + self.exchange + self.control


# Fitted to the programs whose parts were published.
_RUNTIME_BYTES = 4096
_STEP_BYTES, _IDLE_STEP_BYTES = 12.0, 2.5
_PROGRAMS_PER_STEP = 2.4
# From one to four replicas.
_REPLICATED_EXCHANGE, _REPLICATED_CONTROL = 1.17, 1.28


def code_bytes(
    operations: Sequence[OperationCode],
    *,
    is_outlined: bool,
    outline_threshold: float,
    is_replicated: bool,
) -> CodeBytes:
    """Returns what a program takes on each tile.

    Args:
        operations: in the order in which they run.
        is_outlined: whether equal parts of the program are stored once.
        outline_threshold: from which value on.
        is_replicated: whether there are several replicas.
    """
    stored, num_calls = list(operations), 0
    if is_outlined:
        stored, num_calls = outline(operations, outline_threshold)
    codelets = {(op.family, op.codelet): op.family.value.codelet_bytes for op in operations}
    state = exchange = 0.0
    control = _STEP_BYTES * num_calls
    for op in stored:
        code, fraction = op.family.value, op.used_fraction
        state += fraction * code.num_compute_sets * code.state_bytes
        exchange += fraction * code.exchange_bytes
        num_steps = code.num_compute_sets + (code.exchange_bytes > 0)
        step_bytes = _IDLE_STEP_BYTES + fraction * (_STEP_BYTES - _IDLE_STEP_BYTES)
        control += _PROGRAMS_PER_STEP * num_steps * step_bytes
    if is_replicated:
        exchange, control = exchange * _REPLICATED_EXCHANGE, control * _REPLICATED_CONTROL
    return CodeBytes(
        _RUNTIME_BYTES + sum(codelets.values()), round(state), round(exchange), round(control)
    )


def outline(
    operations: Sequence[OperationCode], threshold: float
) -> tuple[list[OperationCode], int]:
    """Returns the operations that are stored, and how often functions are called.

    A run of operations each of which occurs again becomes calls, if its value reaches the
    threshold; each operation of it is stored once. One that does not use all tiles lies on others
    each time, so no two of its kind are equal.
    """
    counts = Counter(op.signature for op in operations if op.used_fraction == 1)
    stored: list[OperationCode] = []
    called: set[Hashable] = set()
    num_calls = 0
    for repeats, group in groupby(operations, lambda op: counts[op.signature] > 1):
        run = list(group)
        if not repeats or sum(op.value for op in run) < threshold:
            stored += run
            continue
        num_calls += len(run)
        stored += [first for first in _firsts(run) if first.signature not in called]
        called.update(op.signature for op in run)
    return stored, num_calls


def _firsts(run: Iterable[OperationCode]) -> Iterable[OperationCode]:
    """Returns the first operation of each signature."""
    return {op.signature: op for op in run}.values()
