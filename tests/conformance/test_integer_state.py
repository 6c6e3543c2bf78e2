"""Integer buffers that `forward` changes: the values of plain PyTorch, or a refusal by name."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Integer buffers", fidelity="exact")
SIZE, ROWS = 12, 4


class Model(nn.Module):
    """Applies `step` to a linear layer's result and the module with its buffers."""

    def __init__(self, step, **buffers) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.step = step
        for name, value in buffers.items():
            self.register_buffer(name, torch.as_tensor(value))

    def forward(self, x: torch.Tensor):
        y = self.step(self, self.linear(x))
        return y, poptorch.identity_loss(y.square().mean(), "none")


def add(self, y):
    self.n.add_(1)
    return y * self.n


def add_only(self, y):
    self.n += 2
    return y


def multiply(self, y):
    self.n.mul_(2)
    return y + self.n


def flip(self, y):
    result = torch.where(self.n.clone(), y, y * 2)
    self.n.logical_not_()
    return result


def rotate(self, y):
    self.n.copy_(torch.roll(self.n, 1))
    return y[:, self.n.clone()]


def assign_item(self, y):
    self.n[0] = (self.n[0] + 1) % 3
    return y * self.n[0]


def of_values(self, y):
    self.n.copy_(y.detach()[0].argsort())
    return y


def fill_queue(self, y):
    logits = y @ self.queue.clone().t()
    with torch.no_grad():
        self.queue.index_copy_(0, (self.n + torch.arange(ROWS)) % SIZE, y.detach())
        self.n.copy_((self.n + ROWS) % SIZE)
    return logits


CHANGES = {
    "added to int32": (add, torch.zeros(1, dtype=torch.int32)),
    "added to uint8": (add, torch.tensor([254], dtype=torch.uint8)),
    "only added to": (add_only, torch.zeros(2, dtype=torch.int16)),
    "multiplied": (multiply, torch.tensor(1, dtype=torch.int8)),
    "truth value": (flip, True),
    "rotated": (rotate, torch.arange(3)),
    "item assigned": (assign_item, [0, 0]),
    "of values of the device": (of_values, [0, 1, 2]),
    "pointer of a queue": (fill_queue, [0]),
}


def make(name: str) -> Model:
    step, value = CHANGES[name]
    torch.manual_seed(0)
    return Model(step, n=value, queue=F.normalize(torch.randn(SIZE, 3), dim=1))


def train(model, batches, opts=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, opts or options(), optimizer)
    for batch in batches:
        training(batch)
    training.destroy()


def train_plain(model, batches, accumulation=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        for micro_batch in batch.split(len(batch) // accumulation):
            (model(micro_batch)[1] / accumulation).backward()
        optimizer.step()


def assert_same_state(model, plain):
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_buffer_that_forward_changes_then_weights_and_buffers_are_those_of_pytorch(
    name: str, accumulation: int, caplog
) -> None:
    model = make(name)
    plain = copy.deepcopy(model)
    batches = torch.randn(4, ROWS * accumulation, 3)
    train(model, batches, options(accumulation=accumulation))
    train_plain(plain, batches, accumulation)
    assert_same_state(model, plain)
    assert "constant" not in caplog.text


def test_buffer_that_training_changes_then_inference_reads_its_new_value() -> None:
    def step(self, y):
        if self.training:
            self.n.add_(1)
        return y * self.n

    model = Model(step, n=[1])
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    x, inference = torch.randn(4, 3), None
    for _ in range(2):
        training(x)
        train_plain(plain, [x])
        model.eval(), plain.eval()
        inference = inference or poptorch.inferenceModel(model, options())
        torch.testing.assert_close(inference(x)[0], plain(x)[0].detach())
        model.train(), plain.train()


def test_buffer_that_forward_changes_when_resumed_then_goes_on_as_pytorch() -> None:
    model = make("pointer of a queue")
    plain = copy.deepcopy(model)
    batches = torch.randn(5, ROWS, 3)
    train(model, batches[:2])
    other = make("pointer of a queue")
    other.load_state_dict(model.state_dict())
    train(other, batches[2:])
    train_plain(plain, batches)
    assert_same_state(other, plain)


def read_before(self, y):
    start = int(self.n)
    self.queue[start : start + ROWS] = y.detach()
    self.n[0] = (start + ROWS) % SIZE
    return y


def read_after(self, y):
    self.n += ROWS
    self.queue[: int(self.n)] = 0
    return y


def initialise_once(self, y):
    if self.n.item() == 0:
        self.linear.bias.data.copy_(-y.mean(0))
        self.n.fill_(1)
    return y


def mask(self, y):
    result = y[:, self.n.bool()]
    self.n.fill_(1)
    return result


def read_as_list(self, y):
    weight = sum(self.n.tolist()) + 1
    self.n.add_(1)
    return y * weight


@pytest.mark.parametrize("step", [read_before, read_after, initialise_once, mask, read_as_list])
def test_value_that_is_read_of_a_buffer_that_forward_changes_then_is_refused_by_name(step) -> None:
    model = Model(step, n=[0], queue=torch.zeros(SIZE, 3))
    if step is mask:
        model.n = torch.tensor([1, 0, 1])
    with pytest.raises(poptorch.Error, match="forward reads the value of n .*, and changes n, too"):
        train(model, torch.randn(1, ROWS, 3))
