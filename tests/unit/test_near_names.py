"""Errors for unknown names suggest a similar name, for every kind of name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.near_names import did_you_mean, nearest


@pytest.mark.parametrize(
    "name, expected",
    [
        ("deviceIteration", "deviceIterations"),
        ("device_iterations", "deviceIterations"),
        ("DEVICEITERATIONS", "deviceIterations"),
        ("anchorTensor", None),
        ("deviceIterations2", None),
        ("", None),
        (3, None),
    ],
)
def test_the_nearest_name_does_not_depend_on_capitals_and_underscores(name, expected):
    assert nearest(name, ["logDir", "deviceIterations"]) == expected


def test_of_equally_near_names_the_first_is_meant():
    assert nearest("AMP", ["a_mp", "amp"]) == "a_mp"


def test_nothing_is_said_where_no_name_is_near():
    assert did_you_mean("loss", ["optimizer", "model"]) == ""
    assert did_you_mean("loss", []) == ""


def _set(name: str) -> Callable[[], None]:
    return lambda: setattr(poptorch.Options(), name, 4)


def _unknown_parameter() -> None:
    poptorch.inferenceModel(torch.nn.Linear(2, 2))(inputs=torch.ones(1, 2))


def _unknown_attribute() -> None:
    poptorch.inferenceModel(torch.nn.Linear(2, 2)).copyWeightsToHots()


def _unknown_parameter_of_model() -> None:
    poptorch.inferenceModel(torch.nn.Linear(2, 2)).wieght  # noqa: B018


class _TwoBlocks(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block("encoder"):
            x = x + 1
        with poptorch.Block("decoder"):
            return x + 1


def _unknown_block() -> None:
    stages = poptorch.Stage("encodr"), poptorch.Stage("decoder")
    options = poptorch.Options().deviceIterations(2)
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    poptorch.inferenceModel(_TwoBlocks(), options)(torch.ones(2, 2))


def _unknown_schedule() -> None:
    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a")))
    emulator.set_schedule(options, "zero_buble_v")


def _estimate(**settings: object) -> None:
    emulator.estimate(poptorch.inferenceModel(torch.nn.Linear(2, 2)), torch.ones(1, 2), **settings)


def _what_if(sweep: dict[str, list[object]]) -> None:
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    print(emulator.what_if(model, torch.ones(1, 2), sweep=sweep))


def _popart_attribute() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            attributes = {"alfa": 0.1}
            return poptorch.custom_op([x], "LeakyRelu", "ai.onnx", 1, [x], attributes)[0]

    poptorch.inferenceModel(Model())(torch.ones(2))


@pytest.mark.parametrize(
    "lookup, hint",
    [
        (lambda: poptorch.trainingmodel, "Did you mean 'trainingModel'"),
        (lambda: poptorch.data_loader, "Did you mean 'DataLoader'"),
        (lambda: poptorch.optim.adam, "Did you mean 'Adam'"),
        (lambda: emulator.timelines, "Did you mean 'timeline'"),
        (lambda: emulator.schedules.gpip, "Did you mean 'gpipe'"),
        (lambda: poptorch.OutputMode.Al, "Did you mean 'All'"),
        (lambda: poptorch.OverlapMode.NoOverlapp, "Did you mean 'NoOverlap'"),
        (lambda: poptorch.Options().outputMode("all"), r"Write poptorch\.OutputMode\.All\."),
        (lambda: poptorch.Options().syncPattern(7), r"Write poptorch\.SyncPattern\.Full\."),
        (lambda: poptorch.Options().deviceIteration(3), r"mean options\.deviceIterations\?"),
        (lambda: poptorch.Options().Trainig, r"Did you mean options\.Training\?"),
        (
            lambda: poptorch.Options().gradientAcumulation(3),
            r"Did you mean options\.Training\.gradientAccumulation\?",
        ),
        (
            lambda: poptorch.Options().gradientAccumulation(3),
            r"To set it, call options\.Training\.gradientAccumulation\(\.\.\.\)\.",
        ),
        (
            lambda: poptorch.Options().Training.enableStochasticRounding(True),
            r"call options\.Precision\.enableStochasticRounding",
        ),
        (_set("deviceIterations"), r"To set it, call options\.deviceIterations\(\.\.\.\)\."),
        (_set("gradientAccumulation"), r"call options\.Training\.gradientAccumulation"),
        (
            lambda: poptorch.TensorLocationSettings().useOnChipStorge(True),
            r"Did you mean useOnChipStorage\?",
        ),
        (_unknown_parameter, "Did you mean 'input'"),
        (_unknown_attribute, "Did you mean 'copyWeightsToHost'"),
        (_unknown_parameter_of_model, "Did you mean 'weight'"),
        (_unknown_block, "Did you mean 'encodr'"),
        (_unknown_schedule, "Did you mean 'zero_bubble_v'"),
        (lambda: emulator.set_latencies(poptorch.Options(), "modeled"), "mean 'modelled'"),
        (lambda: emulator.set_recomputation(poptorch.Options(), "execute"), "mean 'executed'"),
        (lambda: _estimate(system="bow-pod-16"), "Did you mean 'bow-pod16'"),
        (lambda: _what_if({"acumulation": [1]}), "Did you mean 'accumulation'"),
        (lambda: _what_if({"recomputation": ["standart"]}), "Did you mean 'standard'"),
        (_popart_attribute, "Did you mean 'alpha'"),
        (lambda: poptorch.setLogLevel("WARNN"), "Did you mean 'WARN'"),
    ],
)
def test_each_lookup_offers_what_was_probably_meant(lookup, hint):
    with pytest.raises((AttributeError, AssertionError, ValueError, poptorch.Error), match=hint):
        lookup()


@pytest.mark.parametrize("move", [lambda m: m.cuda(), lambda m: m.to("cuda:0")])
def test_a_wrapped_model_does_not_go_to_another_device(move):
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    with pytest.raises(poptorch.Error, match=r"runs on the IPU, but .* move it to 'cuda'"):
        move(model)


def test_a_wrapped_model_goes_to_the_host_and_to_other_types():
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    model.to("cpu")
    model.to(torch.float16)
    assert model.weight.dtype is torch.float16
