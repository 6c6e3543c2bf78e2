"""Ctrl-C in a long call: the call ends soon, after a whole update, and the model can continue."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch

ROWS, ACCUMULATION, ITERATIONS = 2, 4, 200_000


class Model(torch.nn.Module):
    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        self.num_ipus = num_ipus

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index % self.num_ipus):
                x = torch.nn.functional.dropout(torch.tanh(layer(x)), 0.1)
                if index == 1:
                    return x, poptorch.identity_loss(x.square().mean(), "none")
        raise AssertionError("the last layer returns")


def training(num_ipus: int, iterations: int) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(iterations)
    options.outputMode(poptorch.OutputMode.Final).randomSeed(5)
    options.Training.gradientAccumulation(ACCUMULATION)
    model = Model(num_ipus)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, options, optimizer)


def batch(iterations: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS * ACCUMULATION, 16).repeat(iterations, 1)


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    """Restores Python's handler of the signal, because processes in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(model: Any, data: torch.Tensor) -> None:
    """Calls the model and interrupts it after a moment."""
    sent = []

    def send() -> None:
        time.sleep(0.05)
        sent.append(time.perf_counter())
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        model(data)
    # Without the interruption, the call would take tens of seconds. The limit allows for a busy
    # machine.
    assert time.perf_counter() - sent[0] < 2
    thread.join()


@pytest.mark.parametrize("num_ipus", [1, 2])
def test_call_when_interrupted_then_ends_soon_with_the_weights_of_its_last_whole_update(
    num_ipus: int,
) -> None:
    model, data = training(num_ipus, ITERATIONS), batch(ITERATIONS)
    model.compile(data)
    # An interruption comes at a random moment, for example between the updates of two IPUs.
    for _ in range(10):
        interrupt(model, data)
    num_updates = model.rng_state[1] // ACCUMULATION
    assert 0 < num_updates < ITERATIONS
    twin = training(num_ipus, num_updates)
    twin(batch(num_updates))
    for (name, value), (_, expected) in zip(
        model.model.state_dict().items(), twin.model.state_dict().items(), strict=True
    ):
        assert torch.equal(value, expected), name
    model.destroy()
    twin.destroy()
