"""Python on the host in the middle of a model: api.md section 12.6, semantics.md section 18."""

import threading
import traceback

import pytest
import torch
from support.flow_models import infer, quiet_options

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("CPU", fidelity="exact")

X = torch.arange(6.0).reshape(2, 3)


def test_cpu_when_run_then_the_layer_sees_the_values_of_every_micro_batch():
    seen = []

    def layer(x):
        seen.append(x.clone())
        return torch.from_numpy(x.numpy() ** 2)

    op = poptorch.CPU(layer, "square")
    result = infer(lambda m, x: op(x + 1) * 2, X, deviceIterations=2)
    torch.testing.assert_close(result, 2 * (X + 1) ** 2)
    assert [value.tolist() for value in seen] == [[[0.0] * 3], [[1, 2, 3]], [[4, 5, 6]]]


def test_cpu_when_run_then_the_body_is_not_on_the_ipu():
    where = []

    def layer(x):
        where.append(poptorch.isRunningOnIpu())
        return x.cpu()

    infer(lambda m, x: poptorch.CPU(layer, "where")(x), X)
    assert where == [False, False]


def test_cpu_when_executed_by_hand_then_the_layer_runs_at_once():
    torch.testing.assert_close(poptorch.CPU(torch.neg, "negative").execute(X), -X)


@pytest.mark.parametrize("container", [list, tuple])
def test_cpu_when_layer_returns_several_then_a_list_comes_back(container):
    types = []

    def forward(model, x):
        result = poptorch.CPU(lambda x: container([x + 1, x.int()]), "several")(x)
        types.append(type(result))
        return result

    first, second = infer(forward, X)
    assert types == [list]
    torch.testing.assert_close(first, X + 1)
    assert torch.equal(second, X.int())


def test_cpu_when_used_twice_then_both_calls_happen():
    op = poptorch.CPU(lambda x: x * 3, "triple")
    torch.testing.assert_close(infer(lambda m, x: op(op(x) + 1), X), (X * 3 + 1) * 3)


def test_cpu_when_inside_a_loop_and_a_branch_then_called_each_iteration():
    calls = []

    def layer(x):
        calls.append(x.sum().item())
        return x + 1

    def forward(model, x):
        op = poptorch.CPU(layer, "count")
        return poptorch.for_loop(
            3, lambda y: poptorch.cond(y.sum() < 2, lambda: op(y), [], lambda: y * 10, []), [x]
        )

    (result,) = infer(forward, torch.zeros(1))
    assert result.item() == 20
    assert calls[-2:] == [0.0, 1.0]


def test_cpu_when_layer_is_a_submodule_then_its_own_parameters_are_used():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(3, 4)
            self.second = torch.nn.Linear(4, 2)
            self.host = poptorch.CPU(self.second, "second")

        def forward(self, x):
            return self.host(self.first(x))

    model = Model()
    assert not any(p.requires_grad for p in model.second.parameters())
    expected = model.second(model.first(X)).detach()
    result = poptorch.inferenceModel(model, quiet_options())(X)
    torch.testing.assert_close(result, expected)


def test_cpu_when_several_workers_run_then_the_callers_thread_calls_the_layer(monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "3")
    threads = set()

    def layer(x):
        threads.add(threading.get_ident())
        return x * 2

    class Model(torch.nn.Module):
        def forward(self, x):
            for ipu in range(4):
                poptorch.Block.start(str(ipu), ipu_id=ipu)
                x = poptorch.CPU(layer, f"double {ipu}")(x) + 1
            return x

    model = poptorch.inferenceModel(Model(), quiet_options(deviceIterations=40))
    x = torch.arange(40.0).reshape(40, 1)
    for _ in range(3):
        torch.testing.assert_close(model(x), 16 * x + 15)
    assert threads == {threading.get_ident()}


def test_cpu_when_layer_raises_then_error_has_it_as_cause_and_the_next_call_runs():
    def layer(x):
        if x.sum() > 100:
            raise KeyError("too much")
        return x

    op = poptorch.CPU(layer, "picky")
    model = poptorch.inferenceModel(_Calls(op), quiet_options())
    with pytest.raises(poptorch.Error, match=r"host_call.*too much") as caught:
        model(X + 100)
    assert isinstance(caught.value.__cause__, KeyError)
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert frames[-1].name == "layer"
    torch.testing.assert_close(model(X), X)


def test_cpu_when_layer_raises_with_several_workers_then_no_worker_hangs(monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "2")

    def layer(x):
        if x.max() > 5:
            raise ValueError("six")
        return x

    class Model(torch.nn.Module):
        def forward(self, x):
            poptorch.Block.start("0", ipu_id=0)
            x = poptorch.CPU(layer, "a")(x)
            poptorch.Block.start("1", ipu_id=1)
            return poptorch.CPU(lambda x: x * 1, "b")(x)

    model = poptorch.inferenceModel(Model(), quiet_options(deviceIterations=8))
    x = torch.arange(8.0).reshape(8, 1)
    for _ in range(5):
        with pytest.raises(poptorch.Error, match="six"):
            model(x)
        torch.testing.assert_close(model(x / 2), x / 2)


class _Calls(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x)


def test_cpu_when_results_change_shape_then_error_says_both():
    op = poptorch.CPU(lambda x: x[x > 2] if x.sum() > 0 else x[0], "shapes")
    with pytest.raises(poptorch.Error, match=r"returned float32\[3\].*but float32\[2\]|float32\["):
        infer(lambda m, x: op(x), torch.arange(8.0).reshape(2, 4))


def test_cpu_when_inside_another_then_error():
    inner = poptorch.CPU(lambda x: x, "inner")
    outer = poptorch.CPU(lambda x: inner(x), "outer")
    with pytest.raises(poptorch.Error, match="Trying to enter CPU from another CPU op!"):
        outer(X)
    torch.testing.assert_close(inner(X), X)


def test_cpu_when_layer_needs_autograd_then_it_may_use_it():
    def layer(x):
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            return torch.autograd.grad(leaf.pow(3).sum(), leaf)[0]

    torch.testing.assert_close(infer(lambda m, x: poptorch.CPU(layer, "g")(x), X), 3 * X**2)


def test_cpu_when_layer_uses_poptorch_operations_then_they_are_plain_pytorch():
    def layer(x):
        return poptorch.cond(x.sum() > 0, lambda a: a * 2, [x], lambda a: a - 1, [x])[0]

    torch.testing.assert_close(infer(lambda m, x: poptorch.CPU(layer, "c")(x), X), X * 2)


def test_cpu_when_called_outside_a_trace_then_the_layer_runs():
    assert poptorch.CPU(lambda x: (x, x), "pair")(X) == (X, X)


@pytest.mark.parametrize("inputs", [(), (X, 2)], ids=["none", "a number"])
def test_cpu_when_not_given_tensors_then_error(inputs):
    op = poptorch.CPU(lambda *values: X, "numbers")
    with pytest.raises(poptorch.Error, match="'numbers' was called with.*one tensor or more"):
        infer(lambda m, x: op(*inputs), X)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_cpu_when_layer_is_interrupted_then_that_passes_and_the_next_call_runs(kind):
    faults = [None, kind("stop"), None]

    def layer(x):
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return x + 1

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.call = poptorch.CPU(layer, "interrupted")

        def forward(self, x):
            return self.call(x * 2)

    model = poptorch.inferenceModel(Model(), poptorch.Options().showCompilationProgressBar(False))
    with pytest.raises(kind, match="stop"):
        model(torch.ones(2))
    assert model(torch.ones(2)).tolist() == [3, 3]
