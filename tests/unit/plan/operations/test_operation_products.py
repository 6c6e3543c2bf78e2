"""Compares the products of an operation with PyTorch's counter and closed formulas."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import poptorch_emu as poptorch
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.costs.product import Product
from poptorch_emu.machine.costs.vertices import Precision, Window
from poptorch_emu.plan.operations.operation_code import codes_of
from poptorch_emu.plan.operations.operation_products import products_of

pytestmark = pytest.mark.feature("emulator.tile_memory", fidelity="modelled")


def products(model: torch.nn.Module, *inputs: torch.Tensor) -> list[Product]:
    """Returns the products of a model in training, forward and backward."""
    nodes = operations(model, *inputs)
    return [product for node in nodes for product in products_of(node, has_half_sums=False)]


def operations(model: torch.nn.Module, *inputs: torch.Tensor) -> list[torch.fx.Node]:
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1)
    training = poptorch.trainingModel(Summed(model), options, optimizer)
    training.compile(*inputs)
    return list(training._compiled().graph.operations)


class Summed(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor):
        result = self.model(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        return poptorch.identity_loss(result, "sum")


def num_macs(product: Product) -> int:
    macs = product.count * product.rows * product.reduced * product.columns
    return macs * product.window.num_positions


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (torch.nn.Conv2d(6, 8, (3, 5), stride=(2, 1)), (2, 6, 11, 13)),
        (torch.nn.Conv1d(4, 8, 3), (2, 4, 9)),
        (torch.nn.Conv3d(2, 4, (3, 2, 1)), (2, 2, 5, 6, 7)),
        (torch.nn.Linear(7, 9), (3, 5, 7)),
        (torch.nn.Bilinear(3, 4, 5), None),
    ],
    ids=["2-d", "1-d", "3-d", "linear", "bilinear"],
)
def test_products_then_have_the_counted_multiplications(module, shape) -> None:
    """Forward and the gradient of the weight multiply as often; inputs have no gradient here.

    PyTorch's counter counts a multiplication and an addition each.
    """
    inputs = [torch.randn(shape)] if shape else [torch.randn(6, 3), torch.randn(6, 4)]
    with FlopCounterMode(display=False) as counter:
        module(*inputs).sum().backward()
    assert 2 * sum(map(num_macs, products(module, *inputs))) == counter.get_total_flops()


def test_products_of_a_grouped_convolution_then_are_counted_in_each_group() -> None:
    """PyTorch's counter ignores the groups in the gradient of the weight."""
    module = torch.nn.Conv2d(6, 8, (3, 5), stride=(2, 1), groups=2)
    num_results, num_inputs_of_each = 2 * 8 * 5 * 9, 3 * 3 * 5
    found = products(module, torch.randn(2, 6, 11, 13))
    assert [num_macs(product) for product in found] == [num_results * num_inputs_of_each] * 2


def test_products_of_a_transposed_convolution_then_see_the_window_without_gaps() -> None:
    module = torch.nn.ConvTranspose2d(4, 6, 4, stride=2)
    forward, weight = products(module, torch.randn(2, 4, 5, 5))
    assert forward == Product(2 * 12 * 12, 4, 6, Precision.FLOAT, 1, Window(2, 2, line=12))
    assert weight.reduced == 2 * 12 * 12


def test_products_of_a_recurrent_layer_then_are_of_all_steps_and_of_one() -> None:
    steps, rows, features, width, gates = 9, 4, 5, 7, 4
    found = products(torch.nn.LSTM(features, width), torch.randn(steps, rows, features))
    assert found[:2] == [
        Product(steps * rows, features, gates * width, Precision.FLOAT),
        Product(rows, width, gates * width, Precision.FLOAT),
    ]
    assert found[-2:] == [
        Product(features, steps * rows, gates * width, Precision.FLOAT),
        Product(width, steps * rows, gates * width, Precision.FLOAT),
    ]


@pytest.mark.parametrize(("layer", "count"), [("RNN", 6), ("LSTM", 6), ("GRU", 9)])
def test_program_of_a_recurrent_layer_then_has_its_products_in_each_direction(layer, count) -> None:
    """Forward, gradients of data and gradients of weights each have one of inputs and of states."""
    nodes = operations(getattr(torch.nn, layer)(5, 7), torch.randn(9, 4, 5))
    codes = [code for node in nodes for code in codes_of(node, num_tiles=1472)]
    products = [code for code in codes if code.family is Family.PRODUCT]
    assert len({code.signature for code in products}) == len(products) == count


OWN = torch.library.Library("tile_test", "DEF")
OWN_NAMES = ("addmm_own", "bmm", "_scaled_dot_product_own", "convolution", "rnn_layer", "dot")
for name in OWN_NAMES:
    OWN.define(f"{name}(Tensor x) -> Tensor")
    OWN.impl(name, torch.neg, "CompositeExplicitAutograd")


class Custom(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = getattr(torch.ops.tile_test, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x)


@pytest.mark.parametrize("name", OWN_NAMES)
def test_operator_of_the_users_then_its_name_means_nothing(name: str) -> None:
    model = poptorch.inferenceModel(Custom(name))
    model.compile(torch.randn(4, 4))
    (node,) = model._compiled().graph.operations
    assert products_of(node, has_half_sums=False) == []


class Integers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


def test_product_of_integers_then_is_as_wide_as_one_of_floats() -> None:
    model = poptorch.inferenceModel(Integers())
    model.compile(torch.ones(8, 8, dtype=torch.int32))
    (found,) = (
        product
        for node in model._compiled().graph.operations
        for product in products_of(node, has_half_sums=True)
    )
    assert found.precision is Precision.FLOAT
