"""Costs of operations in real graphs, beyond those that follow from their shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.machine.costs.product import Product, plan_product
from poptorch_emu.machine.costs.vertices import Precision, Window
from poptorch_emu.machine.ipu import MK2

# Cycles to start a program in inference.
STEP = 476


class Function(nn.Module):
    def __init__(self, function: Callable, *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, *tensors: torch.Tensor):
        return self.function(*tensors)


def operations(function: Callable, *shapes: tuple[int, ...], dtype=torch.half, modules=()):
    """Returns the plan of an inference with meta tensors, and its operations by operator."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Precision.setPartialsType(torch.half)
    model = poptorch.inferenceModel(Function(function, *modules).eval(), options)
    inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
    plan = emulator.estimate(model, *inputs, system="mk2-pod4")
    return plan, {op.operator: op for op in plan.all_operations}


def own(num_elements: int) -> int:
    return math.ceil(num_elements / MK2.num_tiles)


def test_mask_then_costs_five_cycles_an_element() -> None:
    _, found = operations(lambda x: torch.where(x > 0, x, -1.0), (1024, 1024))
    assert found["aten::where"].compute_cycles == 5 * own(1024 * 1024)


def test_bias_then_is_a_program_of_its_own() -> None:
    layer = nn.Linear(256, 512).half().to("meta")
    _, found = operations(layer, (1024, 256), modules=[layer])
    plan = plan_product(Product(1024, 256, 512, Precision.HALF), MK2, MK2.num_tiles)
    bias = 0.5 * own(1024 * 512) + min(512 * 2, own(1024 * 512) * 2) / 4 + STEP
    assert found["aten::addmm"].cycles == plan.cycles + bias
    assert found["aten::addmm"].steps == 2


def test_division_by_a_number_then_is_a_product() -> None:
    _, found = operations(lambda x: x / 3, (1024, 1024))
    assert found["aten::div"].compute_cycles == 0.5 * own(1024 * 1024)
    _, found = operations(lambda x, y: x / y, (1024, 1024), (1024, 1024))
    assert found["aten::div"].compute_cycles == 5.25 * own(1024 * 1024)


@pytest.mark.parametrize(
    ("exponent", "rate"), [(2, 0.5), (0.5, 5.75), (2.5, 325)], ids=lambda value: str(value)
)
def test_power_then_depends_on_the_exponent(exponent, rate) -> None:
    _, found = operations(lambda x: x**exponent, (1024, 1024))
    assert found["aten::pow"].compute_cycles == rate * own(1024 * 1024)


@pytest.mark.parametrize(
    ("function", "operator", "rate"),
    [
        (lambda x, y: x % y, "aten::remainder", 292),
        (lambda x, y: x // y, "aten::floor_divide", 277),
        (lambda x, y: torch.div(x, y, rounding_mode="trunc"), "aten::div", 277),
        (lambda x, y: x * y, "aten::mul", 7),
        (lambda x, y: x & y, "aten::bitwise_and", 7),
        (lambda x, y: x < y, "aten::lt", 3.5),
    ],
)
@pytest.mark.parametrize("is_by_number", [False, True])
def test_integers_then_cost_what_their_vertex_costs(function, operator, rate, is_by_number) -> None:
    def called(x, y):
        return function(x, 3 if is_by_number else y) + 0 * y

    _, found = operations(called, (1024, 1024), (1024, 1024), dtype=torch.int)
    (op,) = (op for name, op in found.items() if name.startswith(operator))
    assert op.compute_cycles == rate * own(1024 * 1024) and op.steps == 1


def test_division_that_is_rounded_then_has_two_programs() -> None:
    _, found = operations(lambda x: torch.div(x, 3, rounding_mode="floor"), (1024, 1024))
    assert found["aten::div"].compute_cycles == (0.5 + 1.5) * own(1024 * 1024)


def test_constants_then_cost_nothing() -> None:
    _, found = operations(lambda x: x + torch.zeros_like(x), (1024, 1024))
    assert [name for name, op in found.items() if op.cycles] == ["aten::add"]


def trained(body: nn.Module, rows: int, width: int, loss: Callable):
    """Returns the operations, without views, of a float16 training with meta tensors."""
    options = poptorch.Options().showCompilationProgressBar(False)
    body = body.half().to("meta")
    model = Function(lambda x, *more: loss(body(x), *more), body)
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1))
    x = torch.empty(rows, width, dtype=torch.half, device="meta")
    labels = torch.empty(rows, dtype=torch.long, device="meta")
    return emulator.estimate(trainer, x, labels, system="mk2-pod4").all_operations


def test_gradient_of_swish_then_is_one_program() -> None:
    body = nn.Sequential(nn.Linear(512, 1024), nn.SiLU(), nn.Linear(1024, 1))
    loss = lambda out, _: poptorch.identity_loss(out, "sum")  # noqa: E731
    found = [op for op in trained(body, 1024, 512, loss) if op.module.endswith("1")]
    backward = [op for op in found if op.segment.startswith("backward")]
    assert len(backward) > 4
    assert sum(op.steps for op in backward) == 1
    assert sum(op.compute_cycles for op in backward) == 2.25 * own(1024 * 1024)


def test_gradient_of_a_cross_entropy_then_is_one_program() -> None:
    found = trained(nn.Linear(512, 1024), 1024, 512, F.cross_entropy)
    names = ("aten::nll_loss_backward", "aten::_log_softmax_backward_data")
    before, last = (next(op for op in found if op.operator == name) for name in names)
    assert (before.cycles, last.steps) == (0, 1)
    assert last.compute_cycles == 4.5 * own(1024 * 1024)


def test_convolution_of_single_channels_then_is_one_program() -> None:
    layer = nn.Conv2d(256, 256, 3, padding=1, groups=256, bias=False).half().to("meta")
    _, found = operations(layer, (2, 256, 32, 32), modules=[layer])
    product = Product(2 * 32 * 32, 1, 1, Precision.HALF, 256, Window(3, 3, line=32))
    assert found["aten::convolution"].cycles == plan_product(product, MK2, MK2.num_tiles).cycles


def test_convolution_of_few_channels_then_folds_its_window() -> None:
    layer = nn.Conv2d(3, 64, 7, stride=2, bias=False).half().to("meta")
    _, found = operations(layer, (8, 3, 224, 224), modules=[layer])
    points = 8 * 109 * 109
    plain = Product(points, 3, 64, Precision.HALF, 1, Window(7, 7, 2, 2))
    folded = Product(points, 3 * 49, 64, Precision.HALF)
    cycles = [plan_product(p, MK2, MK2.num_tiles).cycles for p in (plain, folded)]
    copied = math.ceil(points * 3 * 49 * 2 / MK2.num_tiles)
    assert found["aten::convolution"].cycles == min(cycles[0], cycles[1] + copied * (1 / 8 + 1 / 4))
    assert cycles[1] < cycles[0]


@pytest.mark.parametrize("groups", [1, 4])
def test_grouped_convolution_then_is_rough(groups) -> None:
    layer = nn.Conv2d(64, 64, 3, groups=groups).half().to("meta")
    plan, found = operations(layer, (4, 64, 32, 32), modules=[layer])
    assert found["aten::convolution"].is_rough == bool(plan.rough) == (groups > 1)


def test_recurrent_layer_when_the_sequence_is_longer_then_costs_more_steps() -> None:
    layer = nn.LSTM(32, 64).to("meta")
    cycles = []
    for steps in (10, 20, 30):
        plan, found = operations(
            lambda x: layer(x)[0], (steps, 4, 32), dtype=torch.float, modules=[layer]
        )
        assert plan.rough
        cycles.append(found["poptorch_emu::rnn_layer"].cycles)
    assert cycles[2] - cycles[1] == pytest.approx(cycles[1] - cycles[0], rel=0.1)
    assert cycles[1] - cycles[0] > 10 * (9 + 1) * STEP


def test_loop_then_costs_its_iterations() -> None:
    def looped(count: int):
        return lambda x: poptorch.for_loop(count, lambda y: [y * 2], [x])[0]

    _, few = operations(looped(3), (1024, 1024))
    plan, many = operations(looped(30), (1024, 1024))
    name = "poptorch_emu::for_loop"
    assert many[name].cycles == pytest.approx(10 * few[name].cycles)
    assert plan.rough


def test_backward_of_a_linear_layer_then_brings_operands_into_other_layouts() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Precision.setPartialsType(torch.half)
    layer = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 512)).half().to("meta")
    model = Function(lambda x: poptorch.identity_loss(layer(x), "sum"), layer)
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1))
    x = torch.empty(1024, 256, dtype=torch.half, device="meta")
    plan = emulator.estimate(trainer, x, system="mk2-pod4")
    products = [op for op in plan.all_operations if op.operator == "aten::mm"]

    def relaid(product: Product, *num_bytes: int) -> float:
        copied = sum(math.ceil(count / MK2.num_tiles) for count in num_bytes)
        return plan_product(product, MK2, MK2.num_tiles).cycles + copied * (1 / 8 + 1 / 4)

    data = relaid(Product(1024, 512, 512, Precision.HALF), 512 * 512 * 2)
    last = relaid(Product(512, 1024, 512, Precision.HALF), *[1024 * 512 * 2] * 2)
    first = relaid(Product(512, 1024, 256, Precision.HALF), 1024 * 512 * 2, 1024 * 256 * 2)
    assert sorted(op.cycles for op in products) == pytest.approx(sorted([data, last, first]))


def test_attention_then_has_two_products_and_a_softmax() -> None:
    shape = (2, 8, 256, 64)
    _, found = operations(F.scaled_dot_product_attention, shape, shape, shape, dtype=torch.float)
    ((name, op),) = [item for item in found.items() if "attention" in item[0]]
    assert "attention" in name and op.steps >= 2 + 6


def test_host_function_then_its_duration_is_said_to_be_unknown() -> None:
    layer = poptorch.CPU(lambda x: x + 1, "outside")

    def called(x: torch.Tensor):
        return layer(x) * 2

    plan, _ = operations(called, (4, 4), dtype=torch.float)
    assert any("outside" in text and "unknown" in text for text in plan.assumptions)


def test_backward_of_attention_then_takes_operands_out_of_one_product() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to("meta")
    model = Function(lambda x: poptorch.identity_loss(layer(x), "sum"), layer)
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1))
    plan = emulator.estimate(trainer, torch.empty(4, 32, 64, device="meta"), system="mk2-pod4")
    assert plan.throughput is not None and not plan.unknown


def test_distances_then_cost_all_numbers_of_each_pair_of_rows() -> None:
    layer = nn.Linear(64, 200, bias=False).to("meta")

    def loss(x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(torch.cdist(x, layer.weight, 1.0), "sum")

    model = Function(loss, layer)
    options = poptorch.Options().showCompilationProgressBar(False)
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1))
    plan = emulator.estimate(trainer, torch.empty(368, 64, device="meta"), system="mk2-pod4")
    found = {op.operator: op.compute_cycles for op in plan.all_operations}
    count = own(200 * 368 * 64)
    assert found["aten::_cdist_forward"] == (1.5 + 5 + 1.5) * count
    assert found["aten::_cdist_backward"] == (1.5 + 4.5 + 1.5) * count
