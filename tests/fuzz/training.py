"""Random training with random interruptions, compared with a plain loop; and noise, bit for bit."""

from __future__ import annotations

import copy
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from fuzz.case import Case, draw
from fuzz.parts import Model
from support.helpers import plain_step

import poptorch_emu as poptorch
from poptorch_emu import emulator

NUM_CALLS = 3
# Larger epsilons than the defaults, so that a gradient that is only rounding moves no weight.
OPTIMIZERS = {
    "SGD": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "eps": 1e-3},
    "AdamW": {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.01, "eps": 1e-3},
}
PLAIN_RULES = ["SGD", "momentum"]
EVENTS = ("nothing", "read", "detach", "destroy", "upload", "resume", "load", "rate", "infer")


# After these events the device has the host's buffers, which are those of replica 0.
UPLOADING = {"detach", "destroy", "upload", "resume", "load"}


class PlainReplicas:
    """A plain model that runs the micro-batches of several replicas in turn, with their buffers."""

    def __init__(self, model: Model, num_replicas: int) -> None:
        self.model = model
        self._num_calls = 0
        self._buffers = [self._copied() for _ in range(num_replicas)]

    def _copied(self) -> list[torch.Tensor]:
        return [buffer.clone() for buffer in self.model.buffers()]

    def _put(self, replica: int) -> None:
        for buffer, value in zip(self.model.buffers(), self._buffers[replica], strict=True):
            buffer.copy_(value)

    def parameters(self):
        return self.model.parameters()

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        replica = self._num_calls % len(self._buffers)
        self._num_calls += 1
        self._put(replica)
        outputs = self.model(*inputs)
        self._buffers[replica] = self._copied()
        return outputs

    def come_home(self, *, is_uploaded: bool) -> None:
        """Loads the buffers of replica 0 into the model; after an upload, into all replicas."""
        self._put(0)
        if is_uploaded:
            self._buffers = [self._copied() for _ in self._buffers]


class Training:
    """A model that trains on virtual IPUs, and its copy in plain PyTorch."""

    def __init__(self, case: Case, choice: random.Random) -> None:
        self.case = case
        # Float16 is skipped with batch norm, which enlarges rounding between nearly equal rows.
        is_steady = {"Branch", "BatchNorm"}.isdisjoint(case.parts)
        self.is_half = choice.random() < 0.2 and is_steady
        # A bias before a batch norm has a gradient of only rounding, which Adam makes a whole step.
        names = PLAIN_RULES if "BatchNorm" in case.parts else list(OPTIMIZERS)
        names = ["SGD"] if self.is_half else names
        self.name = choice.choice(names)
        limit = float("inf") if self.name == "RMSprop" else 0.5
        self.max_grad_norm = choice.choice([float("inf"), limit])
        self.loss_scaling = choice.choice([1.0, 128.0])
        self.model = case.model().half() if self.is_half else case.model()
        self.plain = copy.deepcopy(self.model)
        self.replicas = PlainReplicas(self.plain, case.replicas)
        self.reference = self._optimizer(torch.optim, self.plain)
        self.optimizer = self._optimizer(poptorch.optim, self.model)
        self.wrap()

    def _optimizer(self, module, model: Model):
        name = "SGD" if self.name == "momentum" else self.name
        more = {}
        if module is poptorch.optim:
            more |= {} if self.name == "RMSprop" else {"max_grad_norm": self.max_grad_norm}
            more |= {"loss_scaling": self.loss_scaling}
        return getattr(module, name)(model.parameters(), **OPTIMIZERS[self.name], **more)

    def wrap(self) -> None:
        self.training = poptorch.trainingModel(self.model, self.case.options(), self.optimizer)

    def step(self, index: int, is_streamed: bool) -> None:
        """Runs one call on both models and compares the losses."""
        batch = self.case.batch(index)
        if self.is_half:
            batch = tuple(value.half() for value in batch)
        if is_streamed:
            results = [loss.reshape(-1) for _, loss in emulator.stream(self.training, *batch)]
            losses = torch.cat(results)
        else:
            losses = self.training(*batch)[1]
        # Only SGD clips gradients that the loss scaling has multiplied.
        is_sgd = self.name in PLAIN_RULES
        limit = self.max_grad_norm / (self.loss_scaling if is_sgd else 1.0)
        expected = plain_step(self.replicas, self.reference, batch, self.case.setting, limit)
        self.replicas.come_home(is_uploaded=False)
        self.compare(losses.reshape(-1), expected, "losses")

    def compare(self, value: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        # Float16 has 11 bits, rounded at each operation in another order; float32 has 24.
        tolerance = 3e-2 if self.is_half else 1e-3
        torch.testing.assert_close(
            value,
            expected,
            rtol=tolerance,
            atol=tolerance if self.is_half else 2e-5,
            msg=lambda text: f"{what}: {text}",
        )

    def compare_weights(self) -> None:
        values = self.model.state_dict()
        for name, expected in self.plain.state_dict().items():
            if expected.is_floating_point():
                self.compare(values[name], expected, name)

    def event(self, name: str) -> None:
        """Applies an event to the wrapper, which must change no number."""
        getattr(self, f"_{name}", lambda: None)()
        self.replicas.come_home(is_uploaded=name in UPLOADING)

    def _read(self) -> None:
        self.compare_weights()

    def _detach(self) -> None:
        self.training.detachFromDevice()

    def _destroy(self) -> None:
        self.training.destroy()

    def _upload(self) -> None:
        self.training.copyWeightsToHost()
        self.training.copyWeightsToDevice()

    def _rate(self) -> None:
        for optimizer in (self.optimizer, self.reference):
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        self.training.setOptimizer(self.optimizer)

    def _resume(self) -> None:
        """Continues with another model and optimiser, from saved states of the first ones."""
        self.training.detachFromDevice()
        weights, state = self.model.state_dict(), self.optimizer.state_dict()
        self.training.destroy()
        self.model = copy.deepcopy(self.plain)
        for parameter in self.model.parameters():
            torch.nn.init.zeros_(parameter)
        self.model.load_state_dict(weights)
        self.optimizer = self._optimizer(poptorch.optim, self.model)
        self.optimizer.load_state_dict(state)
        self.wrap()

    def _load(self) -> None:
        """Continues from a file of `save`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved"
            self.training.save(path)
            self.training.destroy()
            self.training = poptorch.load(path)
        self.model, self.optimizer = self.training.model, self.training._optimizer

    def _infer(self) -> None:
        """Runs the model through a second wrapper."""
        if any(True for _ in self.model.buffers()):
            return
        batch = replace(self.case, iterations=1, accumulation=1, replicas=1).batch(99)
        if self.is_half:
            batch = tuple(value.half() for value in batch)
        options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
        options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
        output, _ = poptorch.inferenceModel(self.model, options)(*batch)
        self.compare(output, self.plain(*batch)[0].detach(), "outputs")


def check_training(seed: int) -> str:
    """Trains the model of a seed both ways; returns a description of the run, or raises."""
    case, choice = draw(seed, has_replica_buffers=True), random.Random(seed + 1)
    both = Training(case, choice)
    events = []
    for index in range(NUM_CALLS):
        both.step(index, is_streamed=choice.random() < 0.2)
        events.append(choice.choice(EVENTS))
        both.event(events[-1])
    both.compare_weights()
    both.training.destroy()
    both.compare_weights()
    return f"{both.name}{' half' if both.is_half else ''} {events} {case}"


def check_noise(seed: int) -> str:
    """Trains a model with dropout; recomputation and memory locations must not change a bit."""
    case = draw(seed, "Noise", "Noise", "Noise", "Noise")
    # Sharded accumulators stay sharded, because sharding changes the order of sums.
    kept = replace(case, off_chip=(), cut=tuple({"Accumulator"} & {*case.cut}))
    results = [
        _bits(case, case.options(recompute=4)),
        _bits(case, case.options(recompute=0)),
        _bits(kept, kept.options(recompute=0)),
    ]
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert torch.equal(one, other), f"{(one - other).abs().max()} apart"
    return str(case)


def _bits(case: Case, options: poptorch.Options) -> list[torch.Tensor]:
    model = case.model()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    outputs = [value for index in range(2) for value in training(*case.batch(index))]
    training.destroy()
    return [*outputs, *model.state_dict().values()]
