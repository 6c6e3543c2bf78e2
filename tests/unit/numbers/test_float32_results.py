"""Values explained by float32 are within float64's bound, and float32 explains most values."""

import pytest
import torch
from support.numbers_models import Language, batch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.numbers import run_values
from poptorch_emu.numbers.float32_results import Float32Results
from poptorch_emu.numbers.rounding import Exact
from poptorch_emu.numbers.run_values import Expectation
from poptorch_emu.numbers.verdicts import Verdict, judged

aten = torch.ops.aten


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def in_other_order(target, args):
    """Returns the result in float64 before rounding; no float32 kernel has exactly its bits."""
    wide = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    result = target(*wide)
    return result[0] if isinstance(result, tuple) else result


NORM = [random(6, 32, seed=3), [32], random(32, seed=4), random(32, seed=5), 1e-5]
CALLS = {
    "mm": (aten.mm.default, [random(9, 200), random(200, 7, seed=1)]),
    "addmm": (aten.addmm.default, [random(7, seed=2), random(9, 200), random(200, 7, seed=1)]),
    "bmm": (aten.bmm.default, [random(2, 9, 70), random(2, 70, 7, seed=1)]),
    "sum": (aten.sum.dim_IntList, [random(300, 5), [0]]),
    "mean": (aten.mean.dim, [random(300, 5), [0]]),
    "softmax": (aten._softmax.default, [random(6, 40), -1, False]),
    "layer norm": (aten.native_layer_norm.default, NORM),
    "gelu": (aten.gelu.default, [random(400)]),
    "tanh": (aten.tanh.default, [random(400)]),
    "product": (aten.mul.Tensor, [random(40), random(40, seed=1)]),
    "convolution": (
        aten.convolution.default,
        [random(1, 4, 9, 9), random(8, 4, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
    ),
    "embedding backward": (
        aten.embedding_dense_backward.default,
        [random(50, 3), torch.arange(50) % 4, 4, -1, False],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_quick_when_a_value_is_the_result_but_for_rounding_then_it_explains_it(name, dtype):
    target, args = CALLS[name]
    args = [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in args]  # fmt: skip
    found = in_other_order(target, args).to(dtype)
    assert Float32Results(target, args, {}).explains(0, found)


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("name", CALLS)
def test_quick_when_it_explains_a_value_then_float64_does_too(name, scale):
    target, args = CALLS[name]
    expected = Expectation(Exact(target, args, {}), [], [torch.float32])
    exact, bound = expected.results[0], expected.bound(0, torch.float32).tight
    quick = Float32Results(target, args, {})
    for position in range(0, exact.numel(), 7):
        found = exact.clone()
        found.view(-1)[position] += scale * bound.reshape(-1)[position]
        found = found.float()
        is_within = judged(expected, 0, found) is Verdict.REORDERED
        assert is_within or not quick.explains(0, found)


def test_quick_when_a_number_is_not_finite_then_it_says_nothing():
    target, args = aten.log.default, [torch.tensor([1.0, 0.0])]
    assert not Float32Results(target, args, {}).explains(0, args[0].log())


def test_quick_when_a_product_is_scaled_then_magnitudes_are_not_taken_for_larger_ones():
    args, scaled = CALLS["addmm"][1], {"beta": 1e-3, "alpha": 1e-3}
    quick = Float32Results(aten.addmm.default, args, scaled)
    found = aten.addmm.default(*args, **scaled)
    assert quick.explains(0, found)
    assert not quick.explains(0, found + 1e-6)


def test_compare_when_rounding_explains_all_then_nothing_is_computed_in_float64(monkeypatch):
    computed = []

    class Counted(Exact):
        def __init__(self, target, args, kwargs) -> None:
            computed.append(target)
            super().__init__(target, args, kwargs)

    monkeypatch.setattr(run_values, "Exact", Counted)
    model = Language()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    options = poptorch.Options().showCompilationProgressBar(False)
    report = emulator.compare(poptorch.trainingModel(model, options, optimizer), *batch(2))
    assert report.verdict is Verdict.REORDERED
    assert computed == []
