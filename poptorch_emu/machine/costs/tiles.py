"""The tiles that share an operation, and how much of a tensor the fullest of them has."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.ipu import Ipu
from poptorch_emu.machine.time_numbers import EVIDENCE, NUMBERS, TimeNumbers

# Source: PopLibs' linear mapping puts at least so much of a tensor on each tile that it uses.
GRAIN_BYTES = 128
HALF_BYTES = 2


@dataclass(frozen=True)
class Tiles:
    """The tiles of an IPU that compute.

    Attributes:
        count: of the chip's tiles; the others are set apart for I/O.
        numbers: of the model of time.
        start: which of them is that of starting a program.
    """

    chip: Ipu
    count: int
    numbers: TimeNumbers = NUMBERS
    start: str = "step_cycles"

    @classmethod
    def of(cls, chip: Ipu, count: int, is_training: bool, numbers: TimeNumbers = NUMBERS) -> Tiles:
        """Returns tiles whose programs start as those of a training, or of an inference."""
        return cls(chip, count, numbers, "step_cycles" if is_training else "inference_step_cycles")

    def elements(self, num_elements: int, item_bytes: int) -> int:
        """Returns how many elements of a tensor the fullest tile has."""
        used = min(self.count, -(-num_elements * item_bytes // GRAIN_BYTES))
        return -(-num_elements // used) if used else 0

    def bytes(self, num_elements: int, item_bytes: int) -> int:
        """Returns how many bytes of a tensor the fullest tile has."""
        return self.elements(num_elements, item_bytes) * item_bytes

    def exchange_cycles(self, num_bytes: float) -> float:
        """Returns how long a tile takes to receive so much."""
        return num_bytes / self.chip.exchange_bytes_per_cycle

    def copy_cycles(self, num_bytes: float) -> float:
        """Returns how long a tile takes to copy so much within its memory."""
        return num_bytes / self.chip.load_bytes_per_cycle

    def cost(
        self,
        compute_cycles: float,
        steps: int = 1,
        received_bytes: float = 0.0,
        evidence: Evidence = Evidence.DERIVED,
    ) -> Cost:
        """Returns the cost of programs that compute so long on the fullest tile.

        Args:
            compute_cycles: of all programs together.
            steps: how many programs.
            received_bytes: of the fullest tile, in all of their exchanges.
            evidence: of `compute_cycles`.
        """
        return Cost(
            compute_cycles,
            self.exchange_cycles(received_bytes),
            steps * getattr(self.numbers, self.start),
            steps,
            max(evidence, EVIDENCE[self.start]),
        )
