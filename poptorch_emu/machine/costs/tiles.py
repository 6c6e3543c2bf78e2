"""The tiles that share an operation, and the part of a tensor on the fullest of them."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.ipu import Ipu
from poptorch_emu.machine.time_numbers import EVIDENCE, NUMBERS, TimeNumbers

# Source: PopLibs' linear mapping puts at least this much of a tensor on each tile that it uses.
GRAIN_BYTES = 128
HALF_BYTES = 2


@dataclass(frozen=True)
class Tiles:
    """The tiles of an IPU that compute.

    Attributes:
        chip: kind of the IPU.
        count: number of computing tiles. The chip's other tiles are set apart for I/O.
        numbers: constants of the time model.
        start: name of the constant that gives the cycles to start a program.
    """

    chip: Ipu
    count: int
    numbers: TimeNumbers = NUMBERS
    start: str = "step_cycles"

    @classmethod
    def of(cls, chip: Ipu, count: int, is_training: bool, numbers: TimeNumbers = NUMBERS) -> Tiles:
        """Returns tiles whose programs start like those of training or of inference."""
        return cls(chip, count, numbers, "step_cycles" if is_training else "inference_step_cycles")

    def elements(self, num_elements: int, item_bytes: int) -> int:
        """Returns the elements of a tensor on the fullest tile."""
        used = min(self.count, -(-num_elements * item_bytes // GRAIN_BYTES))
        return -(-num_elements // used) if used else 0

    def bytes(self, num_elements: int, item_bytes: int) -> int:
        """Returns the bytes of a tensor on the fullest tile."""
        return self.elements(num_elements, item_bytes) * item_bytes

    def exchange_cycles(self, num_bytes: float) -> float:
        """Returns the cycles that a tile needs to receive `num_bytes`."""
        return num_bytes / self.chip.exchange_bytes_per_cycle

    def copy_cycles(self, num_bytes: float) -> float:
        """Returns the cycles that a tile needs to copy `num_bytes` within its memory."""
        return num_bytes / self.chip.load_bytes_per_cycle

    def cost(
        self,
        compute_cycles: float,
        steps: int = 1,
        received_bytes: float = 0.0,
        evidence: Evidence = Evidence.DERIVED,
    ) -> Cost:
        """Returns the cost of programs from their work on the fullest tile.

        Args:
            compute_cycles: cycles of the vertices of all programs together.
            steps: number of programs.
            received_bytes: bytes that the fullest tile receives in all exchanges together.
            evidence: evidence of `compute_cycles`.
        """
        return Cost(
            compute_cycles,
            self.exchange_cycles(received_bytes),
            steps * getattr(self.numbers, self.start),
            steps,
            max(evidence, EVIDENCE[self.start]),
        )
