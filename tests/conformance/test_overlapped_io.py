"""Overlapped input and output: semantics §11. The annotations themselves are identities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("set_overlap_for_input / output", fidelity="modelled")

LOOP = "overlap_device_iteration_loop"


def _define(name: str) -> Callable[[torch.Tensor, str], torch.Tensor]:
    """Returns the annotation; where the package has none yet, an identity of the same name."""
    if not hasattr(torch.ops.poptorch_emu, name):
        annotate = torch.library.custom_op(
            f"poptorch_emu::{name}", lambda value, mode: value.clone(), mutates_args=(),
            schema="(Tensor value, str mode) -> Tensor",
        )  # fmt: skip
        annotate.register_fake(lambda value, mode: torch.empty_like(value))
    operator: Callable[[torch.Tensor, str], torch.Tensor] = getattr(torch.ops.poptorch_emu, name)
    return operator


overlap_input = _define("set_overlap_for_input")
overlap_output = _define("set_overlap_for_output")


def plain(x: torch.Tensor) -> torch.Tensor:
    return overlap_output(overlap_input(x, LOOP) + 1, LOOP)


def off(x: torch.Tensor) -> torch.Tensor:
    return overlap_output(overlap_input(x, "no_overlap") + 1, "no_overlap")


def input_used_twice(x: torch.Tensor) -> torch.Tensor:
    return overlap_input(x, LOOP) + x


def not_an_input(x: torch.Tensor) -> torch.Tensor:
    return overlap_input(x + 1, LOOP) * 2


def output_used(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = overlap_output(x + 1, LOOP)
    return y, y * 2


def not_an_output(x: torch.Tensor) -> torch.Tensor:
    return overlap_output(x + 1, LOOP) * 2


def returned_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = overlap_output(x + 1, LOOP)
    return y, y


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def run(
    function: Callable[[torch.Tensor], object],
    *,
    is_pipelined: bool = False,
    num_io_tiles: int = 32,
    output_mode: poptorch.OutputMode = poptorch.OutputMode.All,
) -> object:
    options = poptorch.Options().deviceIterations(2).showCompilationProgressBar(False)
    options.outputMode(output_mode)
    if not is_pipelined:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    if num_io_tiles:
        options.TensorLocations.numIOTiles(num_io_tiles)
    return poptorch.inferenceModel(Model(function), options)(torch.arange(4.0))


def test_overlap_when_all_is_right_then_changes_nothing() -> None:
    assert torch.equal(run(plain), torch.arange(4.0) + 1)


def test_overlap_when_output_mode_is_sum_then_is_allowed() -> None:
    assert torch.equal(run(plain, output_mode=poptorch.OutputMode.Sum), torch.tensor([4.0, 6.0]))


def test_overlap_when_switched_off_then_nothing_is_asked() -> None:
    result = run(off, is_pipelined=True, num_io_tiles=0, output_mode=poptorch.OutputMode.Final)
    assert torch.equal(result, torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (
            {"is_pipelined": True},
            "Overlapped IO is not supported with poptorch.PipelinedExecution.*"
            "poptorch.ShardedExecution",
        ),
        (
            {"num_io_tiles": 0},
            r"No IO tiles allocated.*poptorch.Options\(\).TensorLocations.numIOTiles",
        ),
        (
            {"output_mode": poptorch.OutputMode.Final},
            "Unsupported output mode for overlapped IO.*poptorch.OutputMode.All.*"
            "poptorch.OutputMode.Sum",
        ),
    ],
    ids=["pipelined", "no I/O tiles", "output mode"],
)
def test_overlap_when_options_do_not_allow_it_then_raises(setting, text: str) -> None:
    with pytest.raises(poptorch.Error, match=text):
        run(plain, **setting)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            input_used_twice,
            "poptorch.set_overlap_for_input must be the only op.*not the case for input 0",
        ),
        (not_an_input, "poptorch.set_overlap_for_input applied on a node.*not a tensor input"),
        (output_used, "poptorch.set_overlap_for_output must be the last op"),
        (not_an_output, "poptorch.set_overlap_for_output applied on a node.*not a tensor output"),
        (returned_twice, "poptorch.set_overlap_for_output cannot be used.*returned twice"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_annotation_when_misplaced_then_raises(function, text: str) -> None:
    with pytest.raises(poptorch.Error, match=text):
        run(function)
