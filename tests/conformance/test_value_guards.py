"""`emulator.set_value_guards`: values of inputs that forward reads while it is captured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = pytest.mark.feature("emulator.set_value_guards", fidelity="exact")

X = torch.arange(1.0, 13.0).reshape(4, 3)


class Function(nn.Module):
    """A model with a weight whose forward is a function of the model and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("total", torch.zeros(()))
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def options(max_programs: int = 2) -> poptorch.Options:
    made = poptorch.Options().showCompilationProgressBar(False)
    emulator.set_value_guards(made, max_programs=max_programs)
    return made


def inference(function: Callable[..., Any], max_programs: int = 2) -> Any:
    return poptorch.inferenceModel(Function(function), options(max_programs))


def _attention(index: torch.Tensor) -> torch.Tensor:
    value = index.reshape(1, 1, -1, 1) * torch.ones(8)
    return nn.functional.scaled_dot_product_attention(value, value, value)


READS = {
    "item": (lambda m, x, i: x.new_zeros(int(i.max()) + 1, 3).index_add(0, i, x * m.weight)),
    "tolist": (lambda m, x, i: torch.stack([x[: n + 1].sum() for n in i.tolist()])),
    "if": (lambda m, x, i: x * 2 if i[0] > 0 else x - 1),
    "mask": (lambda m, x, i: x[i > 0] * m.weight),
    "masked_select": (lambda m, x, i: x.masked_select((i > 0)[:, None])),
    "nonzero": (lambda m, x, i: x.index_select(0, (i == 1).nonzero().reshape(-1))),
    "unique": (lambda m, x, i: x[i.unique()]),
    "repeat_interleave": (lambda m, x, i: x.repeat_interleave(i, 0)),
    "bincount": (lambda m, x, i: i.bincount() * 2),
    "one_hot": (lambda m, x, i: nn.functional.one_hot(i)),
    "slice": (lambda m, x, i: x[: i[1] + 1]),
    "slice of both bounds": (lambda m, x, i: x[i[0] : i[0] + i[1] + 1 : 2]),
    "split": (lambda m, x, i: torch.cat(x.repeat(2, 1)[: int(i.sum())].split(i.tolist()))),
    "tensor_split": (lambda m, x, i: x.tensor_split(i[:1].clamp(max=3))[0]),
    "numpy": (lambda m, x, i: x * float(i.numpy().sum())),
    "equal": (lambda m, x, i: x if torch.equal(i, i.flip(0)) else -x),
    "attention without dropout": (lambda m, x, i: x * int((_attention(i) > 1).sum())),
    "floats": (lambda m, x, i: x * x[0, 0].item()),
}
FIRST, SECOND = torch.tensor([0, 1, 1, 2]), torch.tensor([2, 1, 0, 2])


@pytest.mark.parametrize("name", READS)
def test_read_when_values_change_between_calls_then_each_call_equals_pytorch(name: str) -> None:
    model = inference(READS[name])
    plain = Function(READS[name])
    for x, index in ((X, FIRST), (X, SECOND), (X + 0, FIRST), (-X, SECOND)):
        if name == "floats":
            x = X if index is FIRST else -X
        torch.testing.assert_close(
            model(x, index),
            plain(x, index).detach(),
            check_dtype=False,  # Integers leave the device as int32.
        )


@pytest.mark.parametrize("name", READS)
def test_read_when_the_option_is_not_set_then_refusal_names_it(name: str) -> None:
    model = poptorch.inferenceModel(
        Function(READS[name]), poptorch.Options().showCompilationProgressBar(False)
    )
    with pytest.raises(poptorch.Error, match="set_value_guards"):
        model(X, FIRST)


def test_limit_when_it_is_reached_then_the_error_names_input_and_both_values() -> None:
    model = inference(lambda m, x, sizes: x * sizes.tolist()[0], max_programs=1)
    model(X, torch.tensor([3, 1]))
    with pytest.raises(poptorch.Error, match=r"input \*inputs\[1\].*\[3, 1\].*\[5, 1\].*max_pr"):
        model(X, torch.tensor([5, 1]))
    torch.testing.assert_close(model(X, torch.tensor([3, 1])), X * 3)


def test_programs_when_values_come_back_then_none_is_captured_anew() -> None:
    captured = []

    def forward(model: nn.Module, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        captured.append(int(n))
        return x * captured[-1]

    model = inference(forward)
    results = [model(X, torch.tensor(n)).sum().item() for n in (1, 2, 1, 2, 2, 1)]
    assert captured == [1, 2]
    assert results == [78, 156, 78, 156, 156, 78]


def test_input_when_it_is_changed_in_place_then_the_guard_sees_it() -> None:
    model = inference(lambda m, x, n: x * int(n))
    n = torch.tensor(2)
    torch.testing.assert_close(model(X, n), X * 2)
    n.fill_(5)
    torch.testing.assert_close(model(X, n), X * 5)


def test_micro_batches_when_they_disagree_then_the_first_that_differs_is_named() -> None:
    chosen = options().deviceIterations(4)
    model = poptorch.inferenceModel(Function(lambda m, x, n: x * int(n[0])), chosen)
    torch.testing.assert_close(model(X, torch.full((4,), 3)), X * 3)
    with pytest.raises(poptorch.Error, match="micro-batch 2 of this call"):
        model(X, torch.tensor([7, 7, 8, 7]))


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    more = {"momentum": 0.9} if name == "SGD" else {}
    made: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **more)
    return made


def trained(function: Callable[..., Any], optimizer: str, chosen: poptorch.Options) -> Any:
    model = Function(function)
    return model, poptorch.trainingModel(model, chosen, optimizer_of(model, optimizer))


def loss_of_rows(model: nn.Module, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    model.total.add_(1)
    rows = x[: int(n[0])] * model.weight
    return poptorch.identity_loss((rows - 1).square().mean(), "none")


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_when_programs_change_then_weights_and_states_equal_pytorch(
    optimizer: str,
) -> None:
    _, wrapped = trained(loss_of_rows, optimizer, options())
    plain = Function(loss_of_rows)
    other = optimizer_of(plain, optimizer)
    for n in (2, 3, 2, 2, 3):
        numbers = torch.full((4,), n)
        found = wrapped(X / 10, numbers)
        other.zero_grad()
        loss = plain(X / 10, numbers)
        loss.backward()
        other.step()
        torch.testing.assert_close(found, loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(wrapped.model.weight, plain.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(wrapped.model.total, plain.total)


def test_training_when_a_guard_fails_then_no_weight_has_changed() -> None:
    chosen = options(1)
    chosen.Training.gradientAccumulation(2)
    chosen.deviceIterations(2)
    model, wrapped = trained(loss_of_rows, "SGD", chosen)
    wrapped(X, torch.full((4,), 1))
    before = model.weight.detach().clone(), model.total.clone()
    for numbers in ([1, 1, 1, 0], [2, 2, 2, 2]):
        with pytest.raises(poptorch.Error, match="Nothing has run"):
            wrapped(X, torch.tensor(numbers))
    assert torch.equal(model.weight, before[0])
    assert torch.equal(model.total, before[1])


def loss_of_positive(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    kept = (x * model.weight).sum(1) > 7
    return poptorch.identity_loss((x[kept] * model.weight).sum(), "none")


def test_weights_when_a_value_depends_on_them_then_the_guard_uses_the_present_ones() -> None:
    _, wrapped = trained(loss_of_positive, "SGD", options(4))
    plain = Function(loss_of_positive)
    other = optimizer_of(plain, "SGD")
    for _ in range(3):
        found = wrapped(X)
        other.zero_grad()
        loss = plain(X)
        loss.backward()
        other.step()
        torch.testing.assert_close(found, loss.detach())


def test_weights_when_they_change_within_a_call_then_their_values_are_refused() -> None:
    _, wrapped = trained(loss_of_positive, "SGD", options().deviceIterations(2))
    with pytest.raises(poptorch.Error, match="weight weight, which each device iteration changes"):
        wrapped(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x if torch.rand([]) < 0.5 else -x,
        lambda m, x: x[nn.functional.dropout(x, 0.5, True)[:, 0] > 0],
        lambda m, x: x * int(torch.randint(1, 9, ()) + x[0, 0].int()),
        lambda m, x: x[: torch.randperm(4)[0]],
    ],
    ids=["rand", "dropout", "randint", "randperm"],
)
def test_random_draw_when_it_decides_then_it_is_refused_by_name(function: Any) -> None:
    with pytest.raises(poptorch.Error, match="depends on a random draw"):
        inference(function)(X)


def test_buffer_when_each_micro_batch_changes_it_then_its_value_is_refused() -> None:
    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        count = int(model.total)
        model.total.add_(1)
        return x * count

    model = poptorch.inferenceModel(Function(forward), options().deviceIterations(2))
    with pytest.raises(poptorch.Error, match="total, which forward changes in each micro-batch"):
        model(X)


def test_executable_when_it_comes_from_a_file_or_the_cache_then_it_is_guarded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "program.poptorch"
    for _ in range(2):
        chosen = options(1).enableExecutableCaching(str(tmp_path / "cache"))
        model = poptorch.inferenceModel(Function(READS["item"]), chosen)
        torch.testing.assert_close(model(X, FIRST), Function(READS["item"])(X, FIRST).detach())
        with pytest.raises(poptorch.Error, match="max_programs=1"):
            model(X, torch.tensor([0, 0, 0, 5]))
    model.save(path, export_model=False)
    loaded = poptorch.inferenceModel(Function(READS["item"]), options(1))
    loaded.loadExecutable(path)
    torch.testing.assert_close(loaded(X, FIRST), model(X, FIRST))
    with pytest.raises(poptorch.Error, match="max_programs=1"):
        loaded(X, torch.tensor([0, 0, 0, 5]))


def test_export_when_values_were_read_then_it_is_refused() -> None:
    model = inference(READS["item"])
    model(X, FIRST)
    with pytest.raises(poptorch.Error, match="holds for some values"):
        emulator.export_pipeline(model)


@pytest.mark.parametrize(("value", "kind"), [(0, ValueError), (-1, ValueError), (True, TypeError)])
def test_option_when_the_limit_means_nothing_then_it_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises(kind, match="max_programs must be"):
        emulator.set_value_guards(poptorch.Options(), max_programs=value)
