"""A random model with random options, which its seed reproduces."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from fuzz.parts import PLAIN, WITH_BUFFERS, Model
from support.helpers import Batch, Setting

import poptorch_emu as poptorch
from poptorch_emu import emulator

KINDS = ("Activation", "Weight", "Optimizer", "Accumulator")
_PIPELINES = (
    *("grouped", "interleaved", "sequential"),
    *("gpipe", "one_f_one_b", "zero_bubble_h1", "zero_bubble_h2"),
)
STRATEGIES = (*_PIPELINES, "sharded", "phased", "leaving phases")


@dataclass(frozen=True)
class Case:
    """A random model and its options.

    Attributes:
        parts: parts of the model by their names in `fuzz.parts`.
        ipus: IPU of each part.
        strategy: one of `STRATEGIES`.
        recompute: mode of PopART's automatic recomputation.
        off_chip: kinds of tensors in streaming memory.
        cut: kinds of tensors that are sharded over replicas.
        rows: number of rows of one micro-batch.
    """

    seed: int
    parts: tuple[str, ...]
    ipus: tuple[int, ...]
    strategy: str
    recompute: int
    off_chip: tuple[str, ...]
    cut: tuple[str, ...]
    accumulation: int
    iterations: int
    replicas: int
    rows: int
    width: int

    @property
    def setting(self) -> Setting:
        return Setting("sharded", self.accumulation, self.iterations, self.replicas)

    def model(self) -> Model:
        """Returns the model, the same at every call."""
        torch.manual_seed(self.seed)
        return Model(self.parts, self.ipus, self.width)

    def batch(self, index: int) -> Batch:
        """Returns the inputs of one call, the same for the same index."""
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        count = self.rows * self.setting.num_micro_batches
        return tuple(torch.randn(count, self.width, generator=generator) for _ in range(2))

    def options(self, *, recompute: int | None = None) -> poptorch.Options:
        options = self.setting.options().autoRoundNumIPUs(True)
        if self.replicas > 1 and not WITH_BUFFERS.keys().isdisjoint(self.parts):
            options.broadcastBuffers(False)
        options._Popart.set("autoRecomputation", self.recompute if recompute is None else recompute)
        options.setExecutionStrategy(self._strategy())
        if self.strategy in _PIPELINES:
            emulator.set_schedule(options, self.strategy)
        for kind in KINDS:
            location = poptorch.TensorLocationSettings()
            if kind in self.off_chip:
                location.useOnChipStorage(False)
            if kind in self.cut:
                location.minElementsForReplicatedTensorSharding(0)
                location.useReplicatedTensorSharding(True)
            getattr(options.TensorLocations, f"set{kind}Location")(location)
        return options

    def _strategy(self):
        if self.strategy in _PIPELINES:
            return poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
        if self.strategy == "sharded":
            return poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)
        blocks = [[f"part{index}"] for index in range(len(self.parts))]
        blocks[-1].append("loss")
        phases = [
            poptorch.Phase(poptorch.Stage(*ids).ipu(ipu))
            for ids, ipu in zip(blocks, self.ipus, strict=True)
        ]
        strategy = poptorch.SerialPhasedExecution(*phases)
        is_leaving = self.strategy == "leaving phases"
        liveness = "OffChipAfterEachPhase" if is_leaving else "AlwaysLive"
        return strategy.setTensorsLiveness(poptorch.Liveness[liveness])


def draw(
    seed: int, *more_parts: str, has_replicas: bool = True, has_replica_buffers: bool = False
) -> Case:
    """Returns the case of a seed.

    Args:
        seed: seed of all choices.
        more_parts: names of further parts that the model may have.
        has_replicas: whether the model may have several replicas.
        has_replica_buffers: whether each of several replicas may write buffers.
    """
    choice = random.Random(seed)
    replicas = choice.choice([1, 1, 2, 4]) if has_replicas else 1
    with_buffers = WITH_BUFFERS if replicas == 1 or has_replica_buffers else ()
    usual = [*PLAIN, *with_buffers, *more_parts]
    parts = tuple(choice.choices(usual, k=choice.randint(1, 5)))
    is_interleaved = choice.random() < 0.3
    ipus = [index % 2 if is_interleaved else index * 3 // len(parts) for index in range(len(parts))]
    needs_rows = "BatchNorm" in parts
    return Case(
        seed=seed,
        parts=(*parts, "Linear"),
        ipus=(*ipus, ipus[-1]),
        strategy=choice.choice(STRATEGIES),
        recompute=choice.randint(0, 4),
        off_chip=tuple(kind for kind in KINDS if choice.random() < 0.3),
        cut=tuple(kind for kind in KINDS if replicas > 1 and choice.random() < 0.5),
        accumulation=2 * len(parts) + 3 if choice.random() < 0.6 else choice.randint(1, 4),
        iterations=choice.randint(1, 3),
        replicas=replicas,
        # With two rows, a batch norm gives 1 and -1 even if they are nearly equal, so rounding
        # decides.
        rows=choice.randint(4, 6) if needs_rows else choice.randint(1, 3),
        width=choice.choice([4, 4, 3, 2 if needs_rows else 1]),
    )
