"""Printing while a model runs: api.md section 12.2."""

import pytest
import torch
from support.flow_models import FunctionModel, infer, quiet_options

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("ipu_print_tensor", fidelity="exact")


def printed(capfd, x, **options):
    infer(lambda m, x: poptorch.ipu_print_tensor(x, "t", **options), x)
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.0, -2.5], "t: ( 1.000, -2.500)\n"),
        (3, "t: 3\n"),
        ([0.012, 0.034], "t: (0.01200, 0.03400)\n"),
        ([123456.0, 2.0], "t: (123456,      2)\n"),
        ([1, 20], "t: ( 1, 20)\n"),
        ([[1, 2], [3, 4]], "t: (\n (1, 2)\n (3, 4)\n)\n"),
        ([[[1], [2]], [[3], [4]]], "t: (\n (\n  (1)\n  (2)\n )\n (\n  (3)\n  (4)\n )\n)\n"),
        ([1e-6, 1.0], "t: (1.000e-06, 1.000e+00)\n"),
    ],
)
def test_print_when_run_then_values_are_on_standard_error(capfd, value, text):
    assert printed(capfd, torch.tensor(value)) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"digits": 2}, "t: (0.5, 2.0)\n"),
        ({"float_format": "scientific", "digits": 3}, "t: (5.00e-01, 2.00e+00)\n"),
        ({"float_format": "fixed", "digits": 3}, "t: (0.50, 2.00)\n"),
        ({"float_format": "none"}, "t: (0.5,   2)\n"),
        ({"digits": 2, "separator": " ", "open_bracket": "[", "close_bracket": "]"},
         "t: [0.5 2.0]\n"),
    ],
)  # fmt: skip
def test_print_when_format_is_chosen_then_it_is_used(capfd, options, text):
    assert printed(capfd, torch.tensor([0.5, 2.0]), **options) == text


@pytest.mark.parametrize(("float_format", "end"), [("fixed", ""), ("scientific", "e+00")])
def test_print_when_digits_are_eight_then_seven_follow_the_point(capfd, float_format, end):
    text = printed(capfd, torch.tensor([1.4962566]), digits=8, float_format=float_format)
    assert text == f"t: (1.4962566{end})\n"


def test_print_when_a_block_is_long_then_its_middle_is_left_out(capfd):
    x = torch.arange(12).reshape(6, 2)
    text = printed(capfd, x, summarise_threshold=4, edge_items=1)
    assert text == "t: (\n ( 0,  1)\n ...\n (10, 11)\n)\n"


def test_print_when_long_then_only_the_ends_are_shown(capfd):
    text = printed(capfd, torch.arange(100), summarise_threshold=99, edge_items=2)
    assert text == "t: ( 0,  1, ..., 98, 99)\n"
    assert "..." not in printed(capfd, torch.arange(100), summarise_threshold=100)


def test_print_when_a_row_is_wide_then_it_is_broken(capfd):
    text = printed(capfd, torch.arange(30), max_line_width=20)
    assert text.splitlines()[:2] == ["t: ( 0,  1,  2,  3,", "   4,  5,  6,  7,"]
    assert max(map(len, text.splitlines())) <= 20
    numbers = text.removeprefix("t: ").replace("\n", "").strip("()").split(",")
    assert [int(number) for number in numbers] == list(range(30))


def test_print_when_run_for_micro_batches_then_once_for_each(capfd):
    def forward(model, x):
        return poptorch.ipu_print_tensor(x, "row") * 2

    result = infer(forward, torch.tensor([[1], [2], [3]]), deviceIterations=3)
    assert capfd.readouterr().err == "row: (\n (1)\n)\nrow: (\n (2)\n)\nrow: (\n (3)\n)\n"
    assert result.tolist() == [[2], [4], [6]]


def test_print_when_result_is_not_used_then_nothing_is_printed(capfd):
    def forward(model, x):
        poptorch.ipu_print_tensor(x, "unused")
        return x + 1

    infer(forward, torch.tensor([1.0]))
    assert capfd.readouterr().err == ""


def test_print_when_of_a_constant_then_it_is_printed_at_every_run(capfd):
    constant = FunctionModel(lambda m, x: x + poptorch.ipu_print_tensor(torch.ones(1), "c"))
    model = poptorch.inferenceModel(constant, quiet_options())
    poptorch.setLogLevel("ERR")
    model(torch.tensor([1.0]))
    model(torch.tensor([1.0]))
    poptorch.setLogLevel("WARN")
    assert capfd.readouterr().err == "c: (1.000)\n" * 2


@pytest.mark.parametrize("print_gradient", [True, False])
def test_print_when_trained_then_the_gradient_is_printed_if_asked(capfd, print_gradient):
    def forward(model, x):
        y = poptorch.ipu_print_tensor(model.weight * x, "y", print_gradient, digits=2)
        return poptorch.identity_loss(y.square().sum(), "none")

    model = FunctionModel(forward)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    poptorch.trainingModel(model, quiet_options(), optimizer)(torch.ones(1, 3))
    forward_text = "y: (\n ( 0.5, -1.0,  2.0)\n)\n"
    gradient_text = "y_gradient: (\n ( 1.0, -2.0,  4.0)\n)\n" if print_gradient else ""
    assert capfd.readouterr().err == forward_text + gradient_text


def test_print_when_it_has_no_title_then_a_name_is_made(capfd):
    infer(lambda m, x: poptorch.ipu_print_tensor(x), torch.tensor([True]))
    assert capfd.readouterr().err.endswith(": (1)\n")


def test_print_when_called_outside_a_trace_then_nothing_is_printed(capfd):
    x = torch.ones(2)
    assert poptorch.ipu_print_tensor(x) is x
    assert capfd.readouterr().err == ""


def test_print_when_arguments_are_wrong_then_error():
    with pytest.raises(poptorch.Error, match="ipu print tensor must take a torch.tensor argument"):
        poptorch.ipu_print_tensor(3)
    with pytest.raises(KeyError):
        poptorch.ipu_print_tensor(torch.ones(1), float_format="hex")
