"""A loss scale that the device doubles and halves (spec semantics 5.2, api 8.2 and 13.3)."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from support.helpers import Batch, Setting, assert_same_bits_for_any_workers, plain_step
from support.models import FAMILIES
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Automatic loss scaling", fidelity="modelled")

FACTOR, TOTAL = "lossScaleUpdateFactor", "finalLossScale"


def options(setting: Setting | None = None, **settings: float) -> poptorch.Options:
    """Returns options with an automatic loss scale that the host can read."""
    opts = (setting or Setting("sharded")).options()
    opts.Training.setAutomaticLossScaling(True)
    for name, value in settings.items():
        opts._Popart.set(f"automaticLossScalingSettings.{name}", value)
    for name in (FACTOR, TOTAL):
        opts.anchorTensor(name, name, poptorch.OutputMode.Final)
    return opts


class OneWeight(nn.Module):
    """A model whose weights all have the gradient `size`, whatever their values are."""

    def __init__(self, size: float, dtype: torch.dtype = torch.float32, count: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, dtype=dtype))
        self.size = size

    def forward(self, x: torch.Tensor):
        loss = poptorch.identity_loss((self.weight * x).sum() * self.size, "none")
        return loss, loss


def course(training: Any, num_calls: int, x: torch.Tensor) -> list[tuple[float, float]]:
    """Returns, for each call, the scale that it used and the factor after it."""
    found = []
    for _ in range(num_calls):
        training(x)
        found.append(
            (training.getAnchoredTensor(TOTAL).item(), training.getAnchoredTensor(FACTOR).item())
        )
    return found


def train_one_weight(
    model: OneWeight, opts: poptorch.Options, num_calls: int, **arguments: Any
) -> list[tuple[float, float]]:
    arguments = {"lr": 1.0, **arguments}
    optimizer = poptorch.optim.SGD(model.parameters(), use_combined_accum=False, **arguments)
    training = poptorch.trainingModel(model, opts, optimizer)
    found = course(training, num_calls, torch.ones(1, 4, dtype=model.weight.dtype))
    training.destroy()
    return found


def expected_weights(model: nn.Module, make: Any, batches: list[Batch], setting: Setting, limit):
    optimizer = make(model.parameters(), torch.optim)
    for batch in batches:
        plain_step(model, optimizer, batch, setting, limit)
    return model.state_dict()


RULES: dict[str, tuple[dict[str, Any], float]] = {
    "SGD": ({"lr": 0.05, "momentum": 0.9}, 0.4),
    "Adam": ({"lr": 0.01}, float("inf")),
    "AdamW": ({"lr": 0.01}, 0.4),
    "RMSprop": ({"lr": 0.01}, float("inf")),
}
CASES = [
    *itertools.product(["SGD"], [1, 2, 4], [1, 4], [1, 2]),
    *itertools.product(["Adam", "AdamW", "RMSprop"], [1, 4], [4], [2]),
]


@pytest.mark.parametrize(("name", "stages", "accumulation", "replicas"), CASES)
def test_updates_when_the_scale_moves_then_equal_plain_pytorch(
    name: str, stages: int, accumulation: int, replicas: int
) -> None:
    arguments, limit = RULES[name]

    def make(parameters, module):
        own = {"loss_scaling": 2.0} if module is poptorch.optim else {}
        if limit < float("inf") and own:  # SGD alone limits gradients with `loss_scaling`.
            own["max_grad_norm"] = limit * (own["loss_scaling"] if name == "SGD" else 1.0)
        return getattr(module, name)(parameters, **arguments, **own)

    setting = Setting("sharded", accumulation, iterations=2, replicas=replicas)
    model = FAMILIES["mlp"].make(stages)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(3)]
    expected = expected_weights(copy.deepcopy(model), make, batches, setting, limit)
    training = poptorch.trainingModel(
        model, options(setting), make(model.parameters(), poptorch.optim)
    )
    for batch in batches:
        training(*batch)
    assert training.getAnchoredTensor(FACTOR).unique().tolist() == [2.0**6]
    training.destroy()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


def test_updates_when_pipelined_then_equal_plain_pytorch_and_the_whole_window_has_one_scale() -> (
    None
):
    def make(parameters, module):
        return module.SGD(parameters, lr=0.05, momentum=0.9)

    setting = Setting("pipelined", accumulation=7, iterations=3)
    model = FAMILIES["mlp"].make(4)
    batches = [FAMILIES["mlp"].batch(setting.num_micro_batches)]
    expected = expected_weights(copy.deepcopy(model), make, batches, setting, float("inf"))
    opts = options(setting)
    opts.anchorTensor("all", TOTAL, poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, opts, make(model.parameters(), poptorch.optim))
    training(*batches[0])
    assert training.getAnchoredTensor("all").flatten().tolist() == [1.0, 2.0, 4.0]
    training.destroy()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


def test_clipping_when_the_scale_moves_then_the_limit_does_not() -> None:
    """Four equal gradients of 1 have the norm 2, so that clipping divides each by 4."""
    model = OneWeight(1.0)
    train_one_weight(model, options(), 3, max_grad_norm=0.5)
    torch.testing.assert_close(model.weight.data, torch.full((4,), -0.75))


def test_scale_when_gradients_are_small_then_doubles_to_the_largest_that_float16_holds() -> None:
    found = train_one_weight(OneWeight(1e-3), options(), 18)
    scales = [2.0 ** min(call, 15) for call in range(18)]
    assert found == list(zip(scales, [*scales[1:], 2.0**15], strict=True))


def test_scale_when_gradients_are_large_then_is_halved_until_they_are_not() -> None:
    """Scaled by 0.125, gradients of 60000 are below an eighth of 65504; by 0.25 they are not."""
    found = train_one_weight(OneWeight(60000.0), options(), 7)
    assert [scale for scale, _ in found] == [1.0, 0.5, 0.25, 0.125, 0.25, 0.125, 0.25]


def test_scale_when_gradients_are_huge_then_stays_in_the_normal_range_of_float16() -> None:
    found = train_one_weight(OneWeight(1e30), options(), 16)
    assert found[-1] == (2.0**-14, 2.0**-14)


@pytest.mark.parametrize("size", [float("inf"), float("nan")])
def test_scale_when_a_gradient_is_not_finite_then_is_halved_before_the_period_ends(
    size: float,
) -> None:
    found = train_one_weight(OneWeight(size), options(updatePeriod=10), 2)
    assert found == [(1.0, 0.5), (0.5, 0.25)]


def test_scale_when_loss_scaling_is_given_then_their_product_is_in_use() -> None:
    model = OneWeight(1.0)
    found = train_one_weight(model, options(), 3, loss_scaling=3.0)
    assert found == [(3.0, 2.0), (6.0, 4.0), (12.0, 8.0)]
    torch.testing.assert_close(model.weight.data, torch.full((4,), -3.0))


def test_scale_when_period_is_given_then_changes_at_its_end() -> None:
    found = train_one_weight(OneWeight(1.0), options(updatePeriod=3), 7)
    assert [factor for _, factor in found] == [1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize(("proportion", "factor"), [(0.2, 0.5), (0.25, 2.0)])
def test_share_when_compared_then_counts_elements_at_or_above_the_edge(
    proportion: float, factor: float
) -> None:
    """One of four elements is as large as the edge, the others are just below it."""
    edge = 0.5 * 65504
    model = OneWeight(1.0)
    opts = options(binEdgeLocation=0.5, thresholdUpperCountProportion=proportion)
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=1.0))
    training(torch.tensor([[edge, -edge * 0.999, edge * 0.999, 0.0]]))
    assert training.getAnchoredTensor(FACTOR).item() == factor
    training.destroy()


@pytest.mark.parametrize("reduction", [poptorch.ReductionType.Mean, poptorch.ReductionType.Sum])
def test_share_when_gradients_are_accumulated_then_is_of_their_mean(
    reduction: poptorch.ReductionType,
) -> None:
    opts = options(Setting("sharded", accumulation=2, replicas=2), binEdgeLocation=0.5)
    opts.Training.accumulationAndReplicationReductionType(reduction)
    for mean, factor in ((32000.0, 2.0), (33000.0, 0.5)):
        model = OneWeight(1.0)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
        training = poptorch.trainingModel(model, opts.clone(), optimizer)
        training(torch.tensor([[0.5], [1.5], [0.0], [2.0]]).expand(4, 4) * mean)
        assert training.getAnchoredTensor(FACTOR).tolist() == [factor, factor]
        training.destroy()


def test_float16_gradients_when_they_would_underflow_then_train_after_some_windows() -> None:
    """Gradients of 1e-9 round to zero until the scale has made them 2^-25 or more."""
    weights = {}
    for is_automatic in (False, True):
        model = OneWeight(1e-9, torch.float16)
        opts = options() if is_automatic else Setting("sharded").options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=2.0**20)
        training = poptorch.trainingModel(model, opts, optimizer)
        for _ in range(12):
            training(torch.ones(1, 4, dtype=torch.float16))
        training.destroy()
        weights[is_automatic] = model.weight.data
    assert (weights[False] == 0).all()
    assert (weights[True] < -1e-3).all()


def test_float16_gradients_when_they_come_near_overflow_then_the_scale_goes_down() -> None:
    model = OneWeight(16000.0, torch.float16)
    found = train_one_weight(model, options(), 4, lr=1e-5)
    assert [scale for scale, _ in found] == [1.0, 0.5, 1.0, 0.5]
    torch.testing.assert_close(
        model.weight.data, torch.full((4,), -0.64, dtype=torch.float16), rtol=2e-3, atol=0.0
    )


@pytest.mark.parametrize("large", range(4))
def test_share_when_replicas_are_grouped_then_counts_the_gradients_of_all_groups(
    large: int,
) -> None:
    """One replica of four has large gradients; each replica has its own weights."""
    model = OneWeight(1.0)
    model.weight = nn.Parameter(torch.zeros(4, 3))
    opts = options(Setting("sharded", replicas=4), thresholdUpperCountProportion=0.24)
    training = poptorch.trainingModel(
        model, opts, poptorch.optim.SGD(model.parameters(), lr=2.0**-10)
    )
    no_grouping = poptorch.CommGroupType.NoGrouping
    one = poptorch.VariableRetrievalMode.OnePerGroup
    training.weight.replicaGrouping(no_grouping, 1, one)
    rows = torch.ones(4, 3)
    rows[large] = 4 * 8192.0
    assert course_of_rows(training, rows) == [(1.0, 0.5), (0.5, 1.0)]
    training.destroy()
    torch.testing.assert_close(model.weight.data, -2.0 * rows / 4 * 2.0**-10)


def course_of_rows(training: Any, rows: torch.Tensor) -> list[tuple[float, float]]:
    found = []
    for _ in range(2):
        training(rows)
        found.append(
            (
                training.getAnchoredTensor(TOTAL).unique().item(),
                training.getAnchoredTensor(FACTOR).unique().item(),
            )
        )
    return found


@pytest.mark.parametrize("name", ["LAMB", "AdamW"])
def test_updates_when_tensors_are_sharded_then_as_without_a_moving_scale(name: str) -> None:
    setting = Setting("sharded", accumulation=2, replicas=2)
    model = FAMILIES["mlp"].make(2)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(4)]
    states = []
    for opts in (setting.options(), options(setting)):
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        location.minElementsForReplicatedTensorSharding(0)
        opts.TensorLocations.setOptimizerLocation(location).setAccumulatorLocation(location)
        trained = copy.deepcopy(model)
        optimizer = getattr(poptorch.optim, name)(trained.parameters(), lr=0.01)
        training = poptorch.trainingModel(trained, opts, optimizer)
        for batch in batches:
            training(*batch)
        training.destroy()
        states.append(trained.state_dict())
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-5, atol=1e-6)


def test_scale_when_workers_differ_then_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("pipelined", accumulation=7, replicas=2)
    assert_same_bits_for_any_workers(monkeypatch, setting, options(setting))


def one_weight_training(opts: poptorch.Options | None = None) -> tuple[Any, Any]:
    model = OneWeight(1.0)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1.0, loss_scaling=2.0)
    return poptorch.trainingModel(model, opts or options(), optimizer), optimizer


def test_scale_when_the_device_is_detached_then_goes_on_where_it_was() -> None:
    training, _ = one_weight_training()
    assert course(training, 2, torch.ones(1, 4)) == [(2.0, 2.0), (4.0, 4.0)]
    training.detachFromDevice()
    training.attachToDevice()
    assert course(training, 1, torch.ones(1, 4)) == [(8.0, 8.0)]
    training.destroy()


def test_scale_when_an_optimizer_state_is_loaded_then_is_no_part_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    training, optimizer = one_weight_training()
    course(training, 2, torch.ones(1, 4))
    state = optimizer.state_dict()
    assert set(state["ipu_state"]) == {"Accl1___weight", "Accl2___weight", "Step___weight"}
    optimizer.load_state_dict(state)
    training.setOptimizer(optimizer)
    assert course(training, 1, torch.ones(1, 4)) == [(8.0, 8.0)]
    training.destroy()
    assert "missing" not in caplog.text


def test_scale_when_the_model_is_saved_then_the_loaded_one_goes_on(tmp_path) -> None:
    training, _ = one_weight_training()
    course(training, 2, torch.ones(1, 4))
    training.save(str(tmp_path / "model"))
    training.destroy()
    loaded = poptorch.load(str(tmp_path / "model"))
    assert course(loaded, 1, torch.ones(1, 4)) == [(8.0, 8.0)]
    loaded.destroy()


def test_scale_when_the_optimizer_changes_then_the_factor_stays() -> None:
    training, optimizer = one_weight_training()
    course(training, 2, torch.ones(1, 4))
    optimizer.loss_scaling = 16.0
    training.setOptimizer(optimizer)
    assert course(training, 1, torch.ones(1, 4)) == [(64.0, 8.0)]
    training.destroy()


def test_scale_when_automatic_then_loss_scaling_is_marked_variable() -> None:
    for is_automatic in (False, True):
        opts = poptorch.Options()
        opts.Training.setAutomaticLossScaling(is_automatic)
        model = OneWeight(1.0)
        optimizer = poptorch.optim.Adam(model.parameters(), lr=1.0)
        poptorch.trainingModel(model, opts, optimizer)
        assert optimizer.variable_attrs.isConstant("loss_scaling") is not is_automatic


def test_tensor_names_when_the_scale_is_automatic_then_have_it() -> None:
    training, _ = one_weight_training()
    training.compile(torch.ones(1, 4))
    assert {FACTOR, TOTAL} <= set(training.getTensorNames())
    training.destroy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binEdgeLocation", 0.0),
        ("binEdgeLocation", 1.5),
        ("thresholdUpperCountProportion", -0.1),
        ("updatePeriod", 0),
    ],
)
def test_setting_when_out_of_range_then_refused_at_compilation(name: str, value: float) -> None:
    training, _ = one_weight_training(options(**{name: value}))
    with pytest.raises(poptorch.Error, match=f"{name} is {value}"):
        training.compile(torch.ones(1, 4))


def test_setting_when_of_another_kind_then_refused_by_its_kind() -> None:
    training, _ = one_weight_training(options(updatePeriod=2.0))
    with pytest.raises(poptorch.Error, match="Unknown floating point option"):
        training.compile(torch.ones(1, 4))
