"""Threads that call wrappers of one module, evaluate or save it while others compile or train."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.accessor_data import wait_until

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("PoplarExecutor", fidelity="exact"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SECONDS = 0.7


class Counter(torch.nn.Module):
    """A model from whose parameters each step of SGD with learning rate 1 subtracts 1."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(200) for _ in range(8))
        self.inner = torch.nn.Linear(4, 3)
        self.lstm = torch.nn.LSTM(3, 3)
        torch.nn.init.zeros_(self.inner.weight)
        torch.nn.init.zeros_(self.inner.bias)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        sums = [part.sum() / part.numel() for part in self.parts]
        if target is not None:
            total = sum(part.sum() for part in [*self.parts, *self.inner.parameters()])
            return poptorch.identity_loss(total + 0 * x.sum(), reduction="none")
        return torch.stack(sums) + 0 * self.lstm(self.inner(x))[0].sum()


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


X = torch.ones(2, 4)


def trainer(model: Counter) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=1.0))


def beside(action: Callable[[], object], others: Callable[[], object]) -> list[Any]:
    """Repeats `others` in a thread while this thread repeats `action`; returns its results."""
    results: list[Any] = []
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            results.append(others())

    faults: list[BaseException] = []

    def guarded() -> None:
        try:
            repeat()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=guarded)
    thread.start()
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end or (len(results) < 2 and not faults):
            action()
    finally:
        stop.set()
        thread.join()
    if faults:
        raise faults[0]
    return results


def is_one_step(values: torch.Tensor) -> bool:
    return bool((values == values[0]).all()) and type(values) is torch.Tensor


def flat(tensors: Any) -> torch.Tensor:
    """Returns the elements of trained tensors of a state dict."""
    return torch.cat([v.flatten() for name, v in tensors.items() if "lstm" not in name])


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def in_eval(model: Counter) -> torch.Tensor:
    with torch.no_grad():
        return model(X)


READS: dict[str, Callable[[Counter], torch.Tensor]] = {
    "checkpoint": lambda model: flat(saved(model.state_dict())),
    "copies": lambda model: flat({k: v.clone() for k, v in model.state_dict().items()}),
    "deep copy": lambda model: flat(copy.deepcopy(model).state_dict()),
    "pickle of a part": lambda model: pickle.loads(pickle.dumps(model.inner)).bias.detach(),
    "evaluation": in_eval,
}


@pytest.mark.parametrize("read", READS)
def test_model_when_read_in_a_thread_while_it_trains_then_has_the_weights_of_one_step(
    read: str,
) -> None:
    model = Counter()
    training = trainer(model)
    training(X, X)

    def step() -> None:
        training(X, X)
        model.inner.bias.sum()  # The training thread reads a weight, too.

    found = beside(step, lambda: READS[read](model))
    assert all(map(is_one_step, found))
    steps = [value[0].item() for value in found]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]


def test_inference_when_another_thread_trains_then_has_the_weights_of_one_step() -> None:
    model = Counter()
    training, inference = trainer(model), poptorch.inferenceModel(model, options())
    training(X, X)
    found = beside(lambda: training(X, X), lambda: inference(X))
    assert all(map(is_one_step, found)) and found[0][0] > found[-1][0]


@pytest.mark.parametrize("first", ["training", "inference"])
def test_wrappers_when_compiled_in_two_threads_then_have_the_weights_of_the_model(
    first: str,
) -> None:
    model = Counter()
    other, batch = poptorch.inferenceModel(model, options()), (X,)
    if first == "training":
        other, batch = trainer(model), (X, X)
    inference = poptorch.inferenceModel(model, options())

    def compiled(executor: poptorch.PoplarExecutor, *inputs: torch.Tensor) -> Any:
        result = executor(*inputs)
        executor.destroy()
        return result

    found = beside(lambda: compiled(other, *batch), lambda: compiled(inference, X))
    assert all(map(is_one_step, found))


class Slow(torch.nn.Module):
    """A model whose `forward` waits in a trace until another thread has looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.is_traced, self.is_seen = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.norm(self.lstm(x)[0])
        if poptorch.isRunningOnIpu():
            self.is_traced.set()
            assert self.is_seen.wait(30)
        with poptorch.Block("later", ipu_id=1):
            return result * 2

    def __deepcopy__(self, memo: Any) -> Slow:
        duplicate = Slow()
        duplicate.load_state_dict(self.state_dict())
        return duplicate.eval()


def test_model_when_another_thread_traces_it_then_has_its_own_tensors_for_this_one() -> None:
    model = Slow().eval()
    x = torch.randn(4, 3)
    expected, state = model(x).detach(), {k: v.clone() for k, v in model.state_dict().items()}
    opts = options().setExecutionStrategy(poptorch.ShardedExecution())
    inference, results = poptorch.inferenceModel(model, opts), []
    thread = threading.Thread(target=lambda: results.append(inference(x)))
    thread.start()
    try:
        assert model.is_traced.wait(30)
        assert not poptorch.isRunningOnIpu()
        assert torch.equal(model(x), expected)
        assert all(map(torch.equal, model.state_dict().values(), state.values()))
        assert all(type(value) is torch.Tensor for value in saved(model.state_dict()).values())
        assert torch.equal(copy.deepcopy(model)(x), expected)
        with torch.no_grad():
            model.lstm.bias_ih_l0.add_(0)
            model.lstm.register_buffer("later", torch.ones(1))
    finally:
        model.is_seen.set()
        thread.join()
    torch.testing.assert_close(results[0], expected)
    assert "later" in model.lstm._buffers and type(model.lstm._buffers) is dict


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("use", ["call", "state_dict", "own model", "destroy"])
def test_process_when_forked_while_another_thread_is_in_a_call_then_can_use_the_model(
    use: str,
) -> None:
    model = Counter()
    training = trainer(model)
    training(X, X)
    uses: dict[str, Callable[[], object]] = {
        "call": lambda: training(X, X),
        "state_dict": lambda: is_one_step(flat(training.model.state_dict())) or os._exit(2),
        "own model": lambda: poptorch.inferenceModel(Counter(), options())(X),
        "destroy": training.destroy,
    }

    def status_of_child() -> int:
        child = os.fork()
        if child == 0:
            uses[use]()
            os._exit(0)
        wait_until(lambda: os.waitid(os.P_PID, child, PEEK) is not None, 30)
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    statuses: list[int] = []
    beside(lambda: statuses.append(status_of_child()), lambda: training(X, X))
    assert set(statuses) == {0}


PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT
