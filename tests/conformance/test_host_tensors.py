"""Moves to the CPU, and tensors of the CPU, inside of forward (semantics.md 8.1, 12.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.small_models import Function, options, run, trained
from torch import nn

import poptorch_emu as poptorch

moves = pytest.mark.feature("Moves to the CPU in forward", fidelity="exact")
constants = pytest.mark.feature("CPU tensors in forward", fidelity="exact")

X = torch.randn(3, 4)
_HOST = torch.randn(4)

_MOVES: dict[str, Callable] = {
    "cpu": lambda x: x.cpu() + 1,
    "to": lambda x: x.to("cpu") + 1,
    "to device": lambda x: x.to(torch.device("cpu")) * 2,
    "to by name": lambda x: x.to(device="cpu", dtype=torch.float16) + 1,
    "to with a type": lambda x: x.to("cpu", torch.int32) + 1,
    "to another": lambda x: x.to(torch.zeros(1, dtype=torch.float16, device="cpu")) + 1,
    "as_tensor": lambda x: torch.as_tensor(x, device="cpu") + 1,
    "a copy": lambda x: x.to("cpu", copy=True).add_(1) + x,
    "no copy": lambda x: (x * 1).cpu().add_(1),
}


@moves
@pytest.mark.parametrize("name", _MOVES)
def test_move_to_the_cpu_when_captured_then_the_tensor_stays_with_one_warning(
    name: str, logged: pytest.LogCaptureFixture
) -> None:
    with logged.at_level(logging.WARNING):
        result = run(lambda x: [_MOVES[name](x) for _ in range(3)][-1], X)
    torch.testing.assert_close(result, _MOVES[name](X))
    assert logged.text.count("Illegal move to CPU") == 1
    assert "Here the tensor stays on the IPU" in logged.text
    assert f"test_host_tensors.py:{_MOVES[name].__code__.co_firstlineno}" in logged.text


@moves
def test_move_to_the_cpu_when_trained_then_gradients_pass() -> None:
    weight = torch.randn(4)

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.mse_loss((x * weight).cpu() * 2, x.to("cpu"))

    (after,) = trained(loss, [weight], [(X,)])
    leaf = weight.clone().requires_grad_()
    loss(X, leaf).backward()
    torch.testing.assert_close(after, weight - 0.1 * leaf.grad)


@moves
@pytest.mark.parametrize("name", _MOVES)
def test_move_to_the_cpu_when_strict_then_error_names_line_and_way_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    with pytest.raises(poptorch.Error, match="Illegal move to CPU.*Return the IPU tensor") as e:
        run(_MOVES[name], X)
    assert f"test_host_tensors.py:{_MOVES[name].__code__.co_firstlineno}" in str(e.value)


_MIXED: dict[str, Callable] = {
    "add": lambda x: x + _HOST,
    "first": lambda x: _HOST * x,
    "matmul": lambda x: x @ _HOST,
    "linear": lambda x: F.linear(x, _HOST[None].expand(2, 4), _HOST[:2]),
    "where": lambda x: torch.where(_HOST > 0, x, x * 2),
    "cat": lambda x: torch.cat([x, _HOST[None]]),
    "in place": lambda x: (x * 1).mul_(_HOST),
    "copied": lambda x: (x * 1).copy_(_HOST),
    "float64": lambda x: x + _HOST.double(),
    "half": lambda x: (x.half() + _HOST.half()).float(),
    "integers": lambda x: x.index_select(1, torch.arange(4, device="cpu").flip(0)),
    "table": lambda x: F.embedding((x > 0).long(), _HOST.reshape(2, 2)),
    "normalised": lambda x: F.layer_norm(x, (4,), _HOST, _HOST),
    "changed": lambda x: x + (_HOST * 2 - 1),
}


@constants
@pytest.mark.parametrize("name", _MIXED)
def test_cpu_tensor_when_mixed_with_ipu_tensors_then_is_a_constant(name: str) -> None:
    result, expected = run(_MIXED[name], X), _MIXED[name](X)
    torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-5)


class Scaled(nn.Module):
    """Scales by an attribute that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = _HOST.clone()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.linear(x) * self.scale
        return x, F.mse_loss(x, torch.zeros_like(x))


@constants
def test_attribute_on_the_cpu_when_trained_with_then_equals_pytorch_with_one_warning(
    logged: pytest.LogCaptureFixture,
) -> None:
    model = Scaled()
    expected = Scaled()
    expected.load_state_dict(model.state_dict())
    expected(X)[1].backward()
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    with logged.at_level(logging.WARNING):
        training(X)
    torch.testing.assert_close(
        model.linear.weight, expected.linear.weight - 0.1 * expected.linear.weight.grad
    )
    assert logged.text.count("Expected an IPU tensor but got tensor(device=cpu, shape=[4]") == 1
    assert "uploaded as a constant" in logged.text
    training.destroy()


@constants
def test_attribute_on_the_cpu_when_changed_after_compilation_then_the_constant_stays() -> None:
    model = Scaled()
    inference = poptorch.inferenceModel(model, options())
    before = inference(X)[0]
    model.scale.zero_()
    assert torch.equal(inference(X)[0], before)


@constants
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + _HOST.clone().requires_grad_(),
        lambda x: torch.zeros(3, 4, device="cpu").add_(x),
        lambda x: torch.add(x, 1, out=torch.zeros(3, 4, device="cpu")),
    ],
    ids=["trained", "changed", "out"],
)
def test_cpu_tensor_when_it_cannot_be_a_constant_then_error(function: Callable) -> None:
    with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor.*cpu_tensor\.to\(\"ipu\"\)"):
        run(function, X)


@constants
def test_cpu_tensor_when_strict_then_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor but got tensor\(device=cpu"):
        poptorch.inferenceModel(Function(lambda x: x + _HOST), options())(X)


class Writing(nn.Module):
    """Writes into a tensor that is no buffer, and computes with it."""

    def __init__(self, write: Callable) -> None:
        super().__init__()
        self.write = write
        self.kept = torch.arange(4.0)
        self.places = torch.zeros(4, dtype=torch.long)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self, x[0])
        return self.kept * 2 + x


def write_places(model: Writing, places: object, value: object) -> None:
    model.kept[places] = value


def write_data(model: Writing, value: torch.Tensor) -> None:
    model.kept.data = value


_WRITES: dict[str, Callable] = {
    "copy": lambda model, x: model.kept.copy_(x),
    "all": lambda model, x: write_places(model, slice(None), x),
    "one": lambda model, x: write_places(model, 1, x[0]),
    "mask": lambda model, x: write_places(model, x > 1, 7.0),
    "places": lambda model, x: write_places(model, torch.tensor([0, 1]), x[:2]),
    "number at places": lambda model, x: write_places(model, torch.tensor([0, 1]), 5.0),
    "data": lambda model, x: model.kept.data.add_(x),
    "assigned data": write_data,
    "view": lambda model, x: model.kept.view(2, 2)[0].mul_(x[:2]),
    "out": lambda model, x: torch.mul(x, 2, out=model.kept),
    "second out": lambda model, x: torch.sort(x, out=(model.kept, model.places)),
    "list": lambda model, x: torch._foreach_add_([model.kept], [x]),
    "filled": lambda model, x: model.kept.fill_(x.sum()),
    "statistics": lambda model, x: F.batch_norm(
        x.expand(2, 4), model.kept, model.kept, training=True
    ),
    "loop": lambda model, x: poptorch.for_loop(2, lambda y: model.kept.copy_(y) + y, [x]),
    "count": lambda model, x: model.kept.add_(1),
    "count of a count": lambda model, x: model.kept.copy_(model.places.add_(1)),
    "random": lambda model, x: model.kept.normal_(),
    "after use": lambda model, x: (x + model.kept, model.kept.fill_(2.0)),
}


@constants
@pytest.mark.parametrize("name", _WRITES)
def test_cpu_tensor_when_written_in_forward_then_error_names_line_and_buffers(name: str) -> None:
    inference = poptorch.inferenceModel(Writing(_WRITES[name]), options())
    with pytest.raises(poptorch.Error, match="Expected an IPU tensor.*Register it as a buff") as e:
        inference(X)
    assert "test_host_tensors.py:" in str(e.value)


_SAME_IN_EACH_CALL: dict[str, Callable] = {
    "filled": lambda x: _written_here(_HOST, _HOST.clone().fill_(2.0)) * x,
    "copied": lambda x: _written_here(_HOST.clone(), _HOST) * x,
    "new": lambda x: torch.zeros(4, device="cpu").add_(1) * x,
    "new copy": lambda x: _HOST.clone().add_(1) * x,
    "from NumPy": lambda x: torch.from_numpy(_HOST.numpy().copy()).add_(1) * x,
    "statistics that are read": lambda x: F.batch_norm(x, _HOST, _HOST.abs()),
}


def _written_here(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return target.copy_(value)


@constants
@pytest.mark.parametrize("name", _SAME_IN_EACH_CALL)
def test_cpu_tensor_when_each_call_writes_the_same_then_equals_pytorch(name: str) -> None:
    kept = _HOST.clone()
    try:
        expected = _SAME_IN_EACH_CALL[name](X)
        torch.testing.assert_close(run(_SAME_IN_EACH_CALL[name], X), expected)
    finally:
        _HOST.copy_(kept)


_SPARSE = torch.sparse_coo_tensor([[0, 2]], [1.5, -2.0], (4,), check_invariants=True).coalesce()


@constants
@pytest.mark.parametrize(
    "read",
    [
        lambda: _SPARSE.to_dense(),
        lambda: torch.from_numpy(_SPARSE.values().numpy()).sum() * torch.ones(4),
        lambda: torch.ones(4).index_fill(0, torch.tensor(_SPARSE.indices()[0].tolist()), 3.0),
        lambda: (2 * _SPARSE).coalesce().to_dense(),
        lambda: torch.sparse_coo_tensor([[]], [], (4,), check_invariants=True).to_dense(),
    ],
    ids=["dense", "values", "indices", "product", "empty"],
)
def test_sparse_tensor_of_the_host_when_read_then_its_values_are_constants(read: Callable) -> None:
    torch.testing.assert_close(run(lambda x: x * read().to(x.device), X), X * read())


@constants
def test_sparse_tensor_of_the_host_when_written_then_refused_as_a_dense_one_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        _SPARSE.values().add_(1.0)
        return x * _SPARSE.to_dense().to(x.device)

    kept = _SPARSE.values().clone()
    try:
        with pytest.raises(poptorch.Error, match="forward writes into this tensor of the host"):
            run(function, X)
    finally:
        _SPARSE.values().copy_(kept)
