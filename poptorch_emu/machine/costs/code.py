"""Bytes of a tile that the program itself takes: code, vertices, exchanges and control.

The sizes are averages over the programs of `docs/fidelity.md` and are right to about 30 %. The
family of an operation decides its sizes, so this file knows no operators.
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
    """Bytes that one operation of a family takes on each tile that it uses.

    Attributes:
        num_compute_sets: number of computation phases.
        codelet_bytes: code size, which all operations of one type share.
        state_bytes: size of the vertices of one compute set.
        exchange_bytes: code size of the operation's exchanges.
        is_heavy: whether outlining makes a function of the operation alone.
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
    # Assumed: the sizes of a reduction, with the exchange of a gather.
    COLLECTIVE = FamilyCode(2, 800, exchange_bytes=1000)
    PRODUCT = FamilyCode(3, 1200, exchange_bytes=1000, is_heavy=True)
    ATTENTION = FamilyCode(16, 3800, exchange_bytes=2600, is_heavy=True)
    CONVOLUTION = FamilyCode(3, 2200, exchange_bytes=1700, is_heavy=True)
    # The products and gates of a recurrent layer are operations of their own.
    RECURRENT = FamilyCode(0, 0, is_heavy=True)
    # The update of one weight, with momentum or moments.
    UPDATE = FamilyCode(10, 1500, exchange_bytes=50)


@dataclass(frozen=True)
class OperationCode:
    """One operation of a program.

    Attributes:
        family: family of the operation.
        codelet: key that two operations share if their vertices run the same code.
        signature: key that two operations share if their whole programs are the same.
        used_fraction: fraction of the tiles that the operation uses, in (0, 1].
    """

    family: Family
    codelet: Hashable
    signature: Hashable
    used_fraction: float = 1.0

    @property
    def value(self) -> float:
        """The operation's weight in the threshold of outlining; remembered from PopART."""
        return 1000.0 if self.family.value.is_heavy else 0.1


def used_fraction(num_bytes: int, num_tiles: int) -> float:
    """Returns the fraction of the tiles that hold a tensor, with at least 128 bytes on each.

    Source: PopLibs' linear mapping.
    """
    return min(1.0, -(-num_bytes // GRAIN_BYTES) / num_tiles)


@dataclass(frozen=True)
class CodeBytes:
    """Bytes of a program on one tile, by kind."""

    vertex_code: int = 0
    vertex_state: int = 0
    exchange: int = 0
    control: int = 0

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return self.vertex_code + self.vertex_state + self.exchange + self.control


# Fitted to the published programs whose parts are known (C34, C35).
_RUNTIME_BYTES = 4096
_STEP_BYTES, _IDLE_STEP_BYTES = 12.0, 2.5
_PROGRAMS_PER_STEP = 2.4
# Growth of the code from one to four replicas (C38).
_REPLICATED_EXCHANGE, _REPLICATED_CONTROL = 1.17, 1.28


def code_bytes(
    operations: Sequence[OperationCode],
    *,
    is_outlined: bool,
    outline_threshold: float,
    is_replicated: bool,
) -> CodeBytes:
    """Returns the bytes that a program takes on each tile.

    Args:
        operations: operations in the order of execution.
        is_outlined: whether equal parts of the program are stored once.
        outline_threshold: least value of repeated operations that lets them become a function.
        is_replicated: whether the model has several replicas.
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
    """Returns the operations that are stored, and the number of function calls.

    A run of operations becomes calls if each of them occurs again and if the value of the run
    reaches the threshold. Each of its operations is then stored once. An operation that does not
    use all tiles is never shared, because each occurrence lies on different tiles.
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
