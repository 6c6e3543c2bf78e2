"""Exchanges between replicas inside forward and backward: spec/addons.md 1.1 and 1.2.

The reference computes all replicas at once in plain PyTorch (`support/replica_exchanges.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.replica_exchanges import EXCHANGES, Network, compare, options

import poptorch_emu as poptorch
from poptorch_emu.companions.poptorch_experimental_addons import collectives, sharded

feature = pytest.mark.feature("poptorch_experimental_addons", fidelity="exact")


class Exchanging(torch.nn.Module):
    """An exchange of a parameter that differs between replicas, and the result's sum of squares."""

    def __init__(self, values: torch.Tensor, exchange: Callable[..., Any]) -> None:
        super().__init__()
        self.X = torch.nn.Parameter(values.clone())
        self.exchange = exchange
        self.num_replicas = len(values)

    def forward(self) -> Any:
        # Each replica sees its own entry of the parameter, without the leading axis.
        out = self.exchange(self.X, self.num_replicas)
        return out, poptorch.identity_loss(out.square(), reduction="sum")


def trained(values: torch.Tensor, exchange: Callable[..., Any]) -> tuple[Any, Any, torch.Tensor]:
    """Returns outputs, local gradients of all replicas, and the weights after a step of SGD(1)."""
    opts = options(len(values))
    opts.anchorTensor("grad_X", "Gradient___X")
    module = Exchanging(values, exchange)
    training = poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=1.0))
    group = (poptorch.CommGroupType.Orthogonal, 1, poptorch.VariableRetrievalMode.OnePerGroup)
    training.per_replica_params["X"] = group
    out, _ = training()
    gradients = training.getAnchoredTensor("grad_X")
    return out, gradients, module.X.data


@feature
@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange_of_own_parameters_then_values_and_gradients_are_plain_ones(
    name: str, num_replicas: int
) -> None:
    exchange, reference = EXCHANGES[name]
    values = torch.randn(num_replicas, 4, 8)
    plain_values = [value.clone().requires_grad_() for value in values]
    expected = reference(plain_values)
    sum(out.square().sum() for out in expected).backward()
    out, gradients, weights = trained(values, exchange)
    torch.testing.assert_close(out, torch.cat(expected).detach())
    local = torch.stack([value.grad for value in plain_values])
    torch.testing.assert_close(gradients.reshape(local.shape), local)
    # The mean is over all replicas, even where each has a weight of its own.
    torch.testing.assert_close(weights, values - local / num_replicas)


@feature
def test_exchanges_of_two_replicas_then_have_the_numbers_of_the_specification() -> None:
    values = torch.randn(2, 2, 8)
    for name, expected in {
        "gather": 4 * values,
        "identical": 2 * values,
        "reduce": 2 * values.sum(0).expand(2, 2, 8),
        "all to all": 2 * values,
    }.items():
        _, gradients, _ = trained(values, EXCHANGES[name][0])
        torch.testing.assert_close(gradients.reshape(values.shape), expected, msg=name)


@feature
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_exchange_in_inference_then_any_type_is_exchanged(dtype: torch.dtype) -> None:
    x = torch.arange(2 * 4 * 3).reshape(8, 3).to(dtype)
    for name, (exchange, reference) in EXCHANGES.items():
        if dtype is torch.int32 and name == "sum of gradients":
            continue

        class Model(torch.nn.Module):
            def forward(self, x: torch.Tensor, exchange: Any = exchange) -> torch.Tensor:
                return exchange(x, 2)

        model = poptorch.inferenceModel(Model(), options(2))
        expected = torch.cat(reference(list(x.chunk(2))))
        assert torch.equal(model(x), expected), name


@feature
def test_exchange_of_a_number_then_a_vector_is_gathered() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return collectives.all_gather_cross_replica(x.sum(), 2)

    model = poptorch.inferenceModel(Model(), options(2))
    assert torch.equal(model(torch.tensor([[1.0], [2.0]])), torch.tensor([1.0, 2.0, 1.0, 2.0]))


# Value in PopART's enumeration `RecomputationType`.
RECOMPUTE_ALL = 4
MANY = [("gather", "all to all"), ("reduce", "identical"), ("sum of gradients",)]


@feature
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("name", EXCHANGES)
def test_training_with_an_exchange_then_equals_plain_pytorch(name: str, accumulation: int) -> None:
    compare(3, accumulation, 1, [(), (name,), ()])


@feature
@pytest.mark.parametrize("num_stages", [2, 3])
def test_pipeline_with_exchanges_in_each_stage_then_equals_plain_pytorch(num_stages: int) -> None:
    compare(2, 8, num_stages, MANY)


@feature
@pytest.mark.parametrize("num_stages", [1, 3])
def test_recomputed_stage_with_exchanges_then_equals_plain_pytorch(num_stages: int) -> None:
    opts = options(2, 8)
    opts._Popart.set("autoRecomputation", RECOMPUTE_ALL)
    poptorch.emulator.set_recomputation(opts, "executed")
    compare(2, 8, num_stages, MANY, opts)


@feature
@pytest.mark.parametrize("workers", ["1", "2", "4"])
def test_exchanges_then_any_number_of_workers_gives_the_same_bits(
    workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for number in ("1", workers):
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", number)
        torch.manual_seed(1)
        module = Network(4, 2, MANY)
        optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.1)
        training = poptorch.trainingModel(module, options(4, 4, deviceIterations=2), optimizer)
        for _ in range(3):
            training(torch.randn(2 * 4 * 4 * 4, 4), torch.randn(2 * 4 * 4 * 4, 4))
        training.destroy()
        results.append(module.state_dict())
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


@feature
@pytest.mark.parametrize("workers", ["1", "2"])
def test_exchange_when_one_replica_has_no_finite_number_then_error_and_the_next_call_trains(
    workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other replica waits for the sum while the first one fails before it."""
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", workers)
    opts = options(2)
    opts.Precision.enableFloatingPointExceptions(True)
    module, reference = (Network(2, 1, [("reduce",), (), ("gather",)]) for _ in range(2))
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.5, use_combined_accum=False)
    training = poptorch.trainingModel(module, opts, optimizer)
    x, target = torch.randn(2, 4, 4).unbind()
    spoilt = x.clone()
    spoilt[0, 0] = torch.nan
    with pytest.raises(poptorch.Error, match="floating-point"):
        training(spoilt, target)
    y, _ = training(x, target)
    torch.testing.assert_close(y, reference.plain_step(x, target, 1))
    for name, weight in module.named_parameters():
        torch.testing.assert_close(weight.data, reference.get_parameter(name).data, msg=name)


@feature
def test_exchange_behind_a_loop_then_equals_plain_pytorch() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (x,) = poptorch.for_loop(3, lambda x: x * 2, [x])
            return collectives.all_reduce_cross_replica_sum(x, 2)

    x = torch.randn(2, 3)
    model = poptorch.inferenceModel(Model(), options(2))
    torch.testing.assert_close(model(x), (8 * x).sum(0).expand(2, 3))


def run(function: Callable[..., Any], *inputs: torch.Tensor, **more: Any) -> Any:
    """Runs a function on two replicas."""

    class Model(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return function(*inputs)

    return poptorch.inferenceModel(Model(), options(2, **more))(*inputs)


@feature
def test_exchange_in_a_loop_then_is_refused() -> None:
    def function(x: torch.Tensor) -> Any:
        return poptorch.for_loop(2, lambda x: collectives.all_reduce_cross_replica_sum(x, 2), [x])

    with pytest.raises(poptorch.Error, match="over 2 replicas is inside a loop or a branch"):
        run(function, torch.ones(2, 3))


@feature
def test_exchange_with_another_number_of_replicas_then_is_refused() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(poptorch.Error, match="only all 2 replicas of the model can exchange"):
        run(lambda x: collectives.all_reduce_cross_replica_sum(x, 4), x)
    with pytest.raises(poptorch.Error, match="ReplicatedAllGather.*returned"):
        run(lambda x: collectives.all_gather_cross_replica(x, 4), x)
    with pytest.raises(poptorch.Error, match="cannot be cut into a piece for each of 2 replicas"):
        run(lambda x: poptorch.custom_op([x[0]], "AllToAll", "ai.graphcore", 1, [x[0]])[0], x)


@feature
def test_exchange_in_inference_of_several_processes_then_is_refused() -> None:
    opts = options(2)
    opts.Distributed.configureProcessId(0, 2)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return collectives.all_reduce_cross_replica_sum(x, 4)

    with pytest.raises(poptorch.Error, match="in inference of several processes"):
        poptorch.inferenceModel(Model(), opts)(torch.ones(2, 3))


@pytest.mark.feature("named operators of custom_op", fidelity="exact")
def test_exchange_by_name_then_the_example_says_its_shape() -> None:
    def gathered(x: torch.Tensor) -> Any:
        flat = torch.zeros(2 * x.numel(), dtype=x.dtype)
        return poptorch.custom_op([x], "ReplicatedAllGather", "ai.graphcore", 1, [flat])[0]

    x = torch.randn(4, 3)
    assert torch.equal(run(gathered, x), x.flatten().repeat(2))
    for name in ("ReplicatedAllToAll", "AllToAll"):
        found = run(lambda x, n=name: poptorch.custom_op([x], n, "ai.graphcore", 1, [x])[0], x)
        assert torch.equal(found, torch.stack([x[0], x[2], x[1], x[3]])), name
    (total,) = run(
        lambda x: poptorch.custom_op([x], "ReplicatedAllReduce", "ai.graphcore", 1, [x]), x
    )
    torch.testing.assert_close(total, (x[:2] + x[2:]).repeat(2, 1))


@pytest.mark.feature("named operators of custom_op", fidelity="exact")
def test_all_reduce_of_popart_then_has_no_gradient() -> None:
    def reduced(x: torch.Tensor, count: int) -> torch.Tensor:
        return poptorch.custom_op([x], "ReplicatedAllReduce", "ai.graphcore", 1, [x])[0]

    with pytest.raises(poptorch.Error, match="has no gradient.*Use ReplicatedAllReduceTP"):
        trained(torch.randn(2, 4, 8), reduced)


class Product(torch.nn.Module):
    """A product of two matrices; each replica has its own part of both."""

    def __init__(self, function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__()
        self.X, self.Y = torch.nn.Parameter(x.clone()), torch.nn.Parameter(y.clone())
        self.function = function

    def forward(self) -> Any:
        out = self.function(self.X, self.Y)
        return out, poptorch.identity_loss(out.square(), reduction="mean")


def gradients_of(module: Product, own: tuple[str, ...]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns the outputs of two replicas, and the local gradients of each."""
    opts = options(2)
    for name in ("X", "Y"):
        opts.anchorTensor(name, f"Gradient___{name}")
    training = poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=1.0))
    group = (poptorch.CommGroupType.Orthogonal, 1, poptorch.VariableRetrievalMode.OnePerGroup)
    for name in own:
        training.per_replica_params[name] = group
    before = {name: getattr(module, name).detach().clone() for name in ("X", "Y")}
    out, _ = training()
    gradients = {name: training.getAnchoredTensor(name) for name in ("X", "Y")}
    for name, value in before.items():
        local = gradients[name].reshape(2, -1)
        mean = (local if name in own else local.sum(0)).reshape(value.shape) / 2
        torch.testing.assert_close(getattr(module, name).data, value - mean)
    return out.chunk(2), {name: value.chunk(2) for name, value in gradients.items()}


X, Y = torch.randn(6, 4), torch.randn(4, 8)


def whole_gradients(count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of the mean of squares over `count` equal parts of the product."""
    x, y = (value.clone().requires_grad_() for value in (X, Y))
    ((x @ y).square().mean() * count).backward()
    return x.grad, y.grad


@feature
@pytest.mark.parametrize("num_chunks", [1, 2])
def test_product_of_rows_and_columns_then_rows_of_the_whole(num_chunks: int) -> None:
    x, y = X.reshape(2, 3, 4), torch.stack(Y.chunk(2, dim=1))
    module = Product(lambda x, y: sharded.rowcolrow_sharded_matmul(x, y, 2, num_chunks), x, y)
    out, gradients = gradients_of(module, ("X", "Y"))
    torch.testing.assert_close(torch.cat(out), X @ Y)
    of_x, of_y = whole_gradients(2)
    torch.testing.assert_close(torch.cat(gradients["X"]), of_x)
    torch.testing.assert_close(torch.cat(gradients["Y"], dim=1), of_y)


@feature
def test_product_of_equal_rows_and_own_columns_then_columns_of_the_whole() -> None:
    module = Product(
        lambda x, y: sharded.repcolcol_sharded_matmul(x, y, 2), X, torch.stack(Y.chunk(2, dim=1))
    )
    out, gradients = gradients_of(module, ("Y",))
    torch.testing.assert_close(torch.cat(out, dim=1), X @ Y)
    of_x, of_y = whole_gradients(2)
    # The gradient on each replica is already the sum over all replicas.
    for local in gradients["X"]:
        torch.testing.assert_close(local, of_x)
    torch.testing.assert_close(torch.cat(gradients["Y"], dim=1), of_y)


@feature
def test_product_of_own_columns_and_rows_then_the_whole_on_each() -> None:
    x, y = torch.stack(X.chunk(2, dim=1)), Y.reshape(2, 2, 8)
    module = Product(lambda x, y: sharded.colrowrep_sharded_matmul(x, y, 2), x, y)
    out, gradients = gradients_of(module, ("X", "Y"))
    for whole in out:
        torch.testing.assert_close(whole, X @ Y)
    of_x, of_y = whole_gradients()
    torch.testing.assert_close(torch.cat(gradients["X"], dim=1), of_x)
    torch.testing.assert_close(torch.cat(gradients["Y"]), of_y)


@feature
def test_exchange_when_plain_pytorch_is_asked_for_it_then_is_refused() -> None:
    def wrapped() -> poptorch.PoplarExecutor:
        module = Network(2, 1, MANY)
        optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
        return poptorch.trainingModel(module, options(2), optimizer)

    batch = torch.randn(4, 4), torch.randn(4, 4)
    with pytest.raises(poptorch.Error, match="exchange values at .*Compare the model with itself"):
        poptorch.emulator.compare(wrapped(), *batch)
    report = poptorch.emulator.compare(wrapped(), *batch, against=options(2))
    assert str(report).startswith("equal bits")
    model = wrapped()
    model(*batch)
    with pytest.raises(poptorch.Error, match="has an exchange between replicas, which cannot be"):
        poptorch.emulator.export_pipeline(model)
