"""Numbers that `forward` changes in Python: refused where a second call would compute otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Errors while tracing", fidelity="exact")

X = torch.randn(3, 4)
calls = 0


class State:
    def __init__(self) -> None:
        self.step = 0


class Model(nn.Module):
    count = 0

    def __init__(self, function: Callable[[Model, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function
        self.step, self.is_first, self.most = 0, True, 0
        self.counts, self.steps, self.state = {"step": 0}, [0, 0], State()
        self.register_buffer("frequencies", torch.arange(4.0))
        self.table: torch.Tensor | None = None
        self.factors = [1.0, 2.0, 3.0]
        self.whole = np.int64(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.function(self, self.layer(x)), "none")


def factor(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return y * m.step


def branch(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.counts["step"] += 1
    return y if m.counts["step"] % 2 else -y


def constant(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.steps[1] += 1
    return y + torch.full((4,), float(m.steps[1]), device=y.device)


def place(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.state.step += 1
    mask = torch.zeros_like(y)
    mask[m.state.step % 3] = 1
    return y * mask


def first_call(m: Model, y: torch.Tensor) -> torch.Tensor:
    is_first, m.is_first = m.is_first, False
    return y if is_first else 2 * y


def of_the_class(m: Model, y: torch.Tensor) -> torch.Tensor:
    Model.count += 1
    return y + Model.count


def of_the_file(m: Model, y: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    return y * calls


def rows(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return y[: m.step]


def loop(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return poptorch.for_loop(m.step, lambda z: [z * 2], [y])[0]


def body(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return poptorch.for_loop(2, lambda z: [z * m.step], [y])[0]


def first_attribute(m: Model, y: torch.Tensor) -> torch.Tensor:
    if not hasattr(m, "has_run"):
        m.has_run = True
        return y
    return -y


def length(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.steps.append(1)
    return y * len(m.steps)


def queue(m: Model, y: torch.Tensor) -> torch.Tensor:
    return y * m.factors.pop()


DECIDING = {
    first_attribute: "has_run (from nothing to True)",
    length: "steps[2] (from nothing to 1)",
    queue: "factors[2] (from 3.0 to nothing)",
    factor: "step (from 0 to 1)",
    branch: "counts['step'] (from 0 to 1)",
    constant: "steps[1] (from 0 to 1)",
    place: "state.step (from 0 to 1)",
    first_call: "is_first (from True to False)",
    of_the_class: "Model.count (from ",
    of_the_file: "test_held_numbers.calls (from ",
    rows: "step (from 0 to 1)",
    loop: "step (from 0 to 1)",
    body: "step (from 0 to 1)",
}


@pytest.mark.parametrize("function", DECIDING, ids=lambda f: f.__name__)
def test_number_that_decides_then_refused_by_name(function) -> None:
    plain = Model(function)
    first, second = plain(X), plain(X)
    # Outside of a capture the body of a loop runs once.
    assert function is loop or first.shape != second.shape or not torch.equal(first, second)
    for wrap in (poptorch.inferenceModel, poptorch.trainingModel):
        with pytest.raises(poptorch.Error) as caught:
            wrap(Model(function), options())(X)
        message = caught.value.message
        assert f"{DECIDING[function]}" in message and "register_buffer" in message


def threshold(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return -y if m.step > 2 else y


def interval(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return -y if 3 <= m.step < 1000 else y


def nested(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    if m.step > 2:
        y = y + 0
        if m.step % 4 == 3:
            return -y
    return y


def one_of(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.counts["step"] += 1
    return -y if m.counts["step"] in (3, 9) else y


def table(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.state.step += 1
    return y * [1.0, -1.0][m.state.step // 3]


def rounded(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    for _ in range(round(m.step * 0.2)):
        y = -y
    return y


def of_numpy(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.whole += 1
    return -y if m.whole > 2 else y


def of_a_function(m: Model, y: torch.Tensor) -> torch.Tensor:
    of_a_function.calls = getattr(of_a_function, "calls", 0) + 1  # type: ignore[attr-defined]
    return -y if of_a_function.calls == 4 else y  # type: ignore[attr-defined]


def of_a_closure() -> Callable[[Model, torch.Tensor], torch.Tensor]:
    count = 0

    def function(m: Model, y: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return -y if 3 < count else y

    return function


DECIDING_LATER = {
    threshold: "step (from 0 to 1)",
    interval: "step (from 0 to 1)",
    nested: "step (from 0 to 1)",
    one_of: "counts['step'] (from 0 to 1)",
    table: "state.step (from 0 to 1)",
    rounded: "step (from 0 to 1)",
    of_numpy: "whole (from np.int64(0) to np.int64(1))",
    of_a_function: "function.calls (from nothing to 1)",
    of_a_closure(): "of_a_closure.<locals>.function.count (from 0 to 1)",
}


@pytest.mark.parametrize("function", DECIDING_LATER, ids=lambda f: f.__qualname__)
def test_number_that_decides_in_the_third_call_then_refused_with_the_line(function) -> None:
    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(Model(function), options())(X)
    message = caught.value.message
    assert f"{DECIDING_LATER[function]}, and the decision at {__file__}:" in message
    assert "register_buffer" in message
    plain = Model(function)
    first, second, *later = (plain(X) for _ in range(4))
    assert torch.equal(first, second) and not all(torch.equal(first, each) for each in later)


ITERATORS: dict[str, Callable[[], Iterator[int]]] = {
    "count": itertools.count,
    "cycle": lambda: itertools.cycle([1, 2]),
    "list": lambda: iter([1, 2, 2]),
    "enumerated cycle": lambda: map(sum, enumerate(itertools.cycle([1, 2]))),
    "zip": lambda: (pair[0] for pair in zip([1, 2, 2], [3, 3, 3], strict=True)),
    "generator": lambda: (n % 2 for n in range(5)),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_iterator_that_forward_advances_then_refused_by_name(name: str) -> None:
    def scaled(m: Model, y: torch.Tensor) -> torch.Tensor:
        return y * next(m.iterator)

    model = Model(scaled)
    model.iterator = ITERATORS[name]()
    next(model.iterator)
    with pytest.raises(poptorch.Error, match="forward advances the iterator iterator"):
        poptorch.inferenceModel(model, options())(X)


def test_iterator_that_only_the_program_advances_then_runs() -> None:
    model = Model(lambda m, y: y)
    model.iterator = itertools.cycle([1, 2])
    inference = poptorch.inferenceModel(model, options())
    for _ in range(2):
        torch.testing.assert_close(inference(X), model(X).detach())
        next(model.iterator)


def counts_only(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    m.counts["step"] += 2
    return torch.relu(y)


def has_one_value(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.most = len(y)
    return y / m.most


def keeps_a_table(m: Model, y: torch.Tensor) -> torch.Tensor:
    if len(y) > m.most:
        m.most = len(y)
        places = torch.arange(float(m.most), device=y.device)
        m.table = torch.outer(places, m.frequencies).cos()
    return y * m.table


def logs(m: Model, y: torch.Tensor) -> torch.Tensor:
    m.step += 1
    if m.step % 100 == 0 or m.step > 1000:
        m.most = m.step
    return y


@pytest.mark.parametrize(
    ("function", "warnings"),
    [(counts_only, 2), (logs, 2), (has_one_value, 0), (keeps_a_table, 0)],
)
def test_number_that_decides_nothing_then_equals_pytorch_and_each_capture_warns_if_it_counts(
    function, warnings, caplog
) -> None:
    torch.manual_seed(3)
    model, plain = Model(function), Model(function)
    plain.load_state_dict(model.state_dict())
    inference = poptorch.inferenceModel(model, options())
    for _ in range(2):
        torch.testing.assert_close(inference(X), plain(X).detach())
    training = poptorch.trainingModel(model, options())
    training(X)
    assert sum("forward changes step (from 0 to 1)" in line for line in caplog.messages) == warnings


def test_random_model_that_counts_then_runs() -> None:
    def drops(m: Model, y: torch.Tensor) -> torch.Tensor:
        m.step += 1
        return torch.dropout(y, 0.5, True)

    assert poptorch.inferenceModel(Model(drops), options())(X).shape == (3, 4)


def test_number_after_the_capture_then_is_that_of_one_call() -> None:
    state = State()
    model = Model(counts_only)
    model.state = state
    model.function = lambda m, y: (setattr(m.state, "step", m.state.step + 1), y)[1]
    poptorch.inferenceModel(model, options()).compile(X)
    assert state.step == 1
