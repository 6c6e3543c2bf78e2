"""The checker of the course: right answers of every kind pass, and each mistake is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import course, schedules

ROOT = Path(__file__).parents[2]
FEATURE = pytest.mark.feature("emulator.course", fidelity="exact")
HIDDEN = [1024] * 8


def placed(ipu_of_layer: Callable[[int], int]) -> nn.Module:
    model = course.Layers(HIDDEN)
    for number, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, ipu_id=ipu_of_layer(number))
    return model


class InBlocks(course.Layers):
    """A model that opens its blocks in `forward`, which is also allowed."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{number}", ipu_id=number // 2):
                x = layer(x)
                if number == len(self.layers) - 1:
                    return x, nn.functional.mse_loss(x, target)
        raise AssertionError("there are layers")


class WithoutTheLast(course.Layers):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers[:-1]:
            x = layer(x)
        return x, nn.functional.mse_loss(x, target)


def options(accumulation: int = 1, **settings: Any) -> poptorch.Options:
    made = poptorch.Options()
    made.Training.gradientAccumulation(accumulation)
    for name, value in settings.items():
        getattr(made, name)(value)
    return made


def scheduled(accumulation: int, name: str) -> poptorch.Options:
    made = options(accumulation)
    emulator.set_schedule(made, name)
    return made


def offloaded(accumulation: int) -> poptorch.Options:
    made = options(accumulation)
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    made.TensorLocations.setOptimizerLocation(location)
    return made


def with_less_room(accumulation: int) -> poptorch.Options:
    made = options(accumulation)
    made.setAvailableMemoryProportion({"IPU0": 0.05, "IPU1": 0.05})
    return made


def cut(*counts: int, ipus: Sequence[int] = range(4)) -> poptorch.PipelinedExecution:
    names = iter(f"layer{number}" for number in range(12))
    return poptorch.PipelinedExecution(
        *(
            poptorch.Stage(*(next(names) for _ in range(count))).ipu(ipu)
            for ipu, count in zip(ipus, counts, strict=False)
        )
    )


def within_layers() -> nn.Module:
    """Returns a model whose IPUs begin at the second half of a layer."""
    model = course.Layers(HIDDEN)
    for ipu, number in enumerate((1, 3, 5), start=1):
        poptorch.BeginBlock(model.layers[number].down, ipu_id=ipu)
    return model


def wrapping(
    dtype: torch.dtype = torch.half, lr: float = 5e4, **settings: Any
) -> Callable[[nn.Module], Any]:
    def wrap(model: nn.Module) -> Any:
        model = model.to(dtype)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=lr, **settings)
        made = poptorch.Options().showCompilationProgressBar(False)
        return poptorch.trainingModel(model, made, optimizer)

    return wrap


def raising(model: nn.Module) -> Any:
    raise KeyError("a slip of a learner's")


OWN_TABLE = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]

RIGHT: dict[str, tuple[int, Callable[[], Any]]] = {
    "blocks begun": (1, lambda: placed(lambda number: number // 2)),
    "blocks in forward": (1, lambda: InBlocks(HIDDEN)),
    "fewest micro-batches": (2, lambda: options(54)),
    "most micro-batches": (2, lambda: options(64)),
    "iterations beside them": (2, lambda: options(54, deviceIterations=3)),
    "smaller micro-batches": (3, lambda: options(64)),
    "the best on other IPUs": (4, lambda: cut(3, 5, 3, 1, ipus=(3, 2, 1, 0))),
    "ZB-H1": (5, schedules.zero_bubble_h1),
    "a name": (5, lambda: "zero_bubble_v"),
    "another optimiser": (7, lambda: adam),
}


def adam(model: nn.Module) -> Any:
    model = model.half()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3, loss_scaling=4096.0)
    made = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.trainingModel(model, made, optimizer)


# For each wrong answer: the exercise, the answer, and a phrase of the reason.
WRONG: dict[str, tuple[int, Callable[[], Any], str]] = {
    "uncut": (1, lambda: course.Layers(HIDDEN), "use 1 of the 4 IPUs"),
    "two IPUs": (1, lambda: placed(lambda number: number // 4), "use 2 of the 4 IPUs"),
    "unequal": (1, lambda: placed(lambda n: min(n, 3)), "have 1, 1, 1, 5 layers"),
    "within layers": (1, within_layers, "have 1.5, 2, 2, 2.5 layers"),
    "backwards": (1, lambda: placed(lambda number: number % 4), "cannot go backwards"),
    "a layer left out": (1, lambda: WithoutTheLast(HIDDEN), "no longer computes"),
    "another model": (1, lambda: course.Layers([1024] * 4), "its weights are others"),
    "no model": (1, lambda: [0, 0, 1, 1], "of type list"),
    "one micro-batch": (2, options, "number of pipeline stages (7)"),
    "one too few": (2, lambda: options(53), "wait for 10.2% of the time"),
    "iterations": (2, lambda: options(8, deviceIterations=8), "Device iterations do not fill"),
    "one too many": (2, lambda: options(65), "sees 520 rows"),
    "replicas": (2, lambda: options(64, replicationFactor=2), "sees 1,024 rows"),
    "two IPUs, fewer stages": (
        2,
        lambda: options(12, setExecutionStrategy=cut(2, 2)),
        "use 2 IPUs, but the task has 4",
    ),
    "one IPU": (
        2,
        lambda: options(1, setExecutionStrategy=cut(4)),
        "use 1 IPU, but the task has 4",
    ),
    "another schedule": (2, lambda: scheduled(16, "zero_bubble_h1"), "schedule is another one"),
    "sharded": (
        2,
        lambda: options(64, setExecutionStrategy=poptorch.ShardedExecution()),
        "schedule is another one",
    ),
    "as it is": (3, lambda: options(16), "does not fit"),
    "offloading alone": (3, lambda: offloaded(16), "too slow"),
    "little room": (3, lambda: with_less_room(16), "too slow"),
    "tiny micro-batches": (3, lambda: options(2048), "too slow"),
    "a third": (3, lambda: options(3), "cannot be divided into 3"),
    "four IPUs": (
        3,
        lambda: options(16, setExecutionStrategy=cut(2, 2, 2, 2)),
        "use 4 IPUs, but the task has 2",
    ),
    "more replicas": (3, lambda: options(16, replicationFactor=2), "2 replicas need more"),
    "equal counts": (4, lambda: cut(3, 3, 3, 3), "Another cut gives"),
    "two stages": (4, lambda: cut(6, 6), "use 2 IPUs, but the task has 4"),
    "a block forgotten": (4, lambda: cut(3, 3, 3, 2), "No stage has layer11."),
    "a block forgotten in options": (
        3,
        lambda: options(64, setExecutionStrategy=cut(4, 3)),
        "Unknown Block 'layer7' list of expected Blocks: ['layer0', 'layer1', 'layer2', 'layer3', "
        "'layer4', 'layer5', 'layer6']. Add it to a stage",
    ),
    "GPipe": (5, schedules.gpipe, "stashes 8 micro-batches"),
    "1F1B": (5, schedules.one_f_one_b, "bubble is 27.3%"),
    "ZB-H2": (5, schedules.zero_bubble_h2, "stashes 7 micro-batches"),
    "no schedule": (5, lambda: "zero_bubble", "no schedule 'zero_bubble'"),
    "a small table": (5, lambda: schedules.from_table(OWN_TABLE), "2 IPUs and 2 micro-batches"),
    "all replicas": (6, lambda: {"num_ipus": 1, "replicas": 16}, "does not fit"),
    "all stages": (6, lambda: {"num_ipus": 16, "replicas": 1}, "fits and is faster"),
    "idle IPUs": (6, lambda: {"num_ipus": 4, "replicas": 2}, "leaves 8 of 16 IPUs idle"),
    "too many IPUs": (6, lambda: {"num_ipus": 8, "replicas": 4}, "takes 32 IPUs"),
    "other keys": (6, lambda: {"ipus": 4}, "keys ['ipus']"),
    "no power of two": (6, lambda: {"num_ipus": 3, "replicas": 4}, "num_ipus is 3"),
    "still float32": (7, lambda: wrapping(torch.float32), "weights are float32"),
    "no scaling": (7, wrapping, "become zero in float16"),
    "too large a scale": (7, lambda: wrapping(loss_scaling=2.0**40), "not finite"),
    "a small rate": (7, lambda: wrapping(lr=1e-2, loss_scaling=1024.0), "learning rate 5e+04"),
    "nothing wrapped": (7, lambda: lambda model: model.half(), "should return what"),
    "a slip": (7, lambda: raising, 'KeyError: "a slip of a learner\'s"'),
    "before it": (8, lambda: "layers.2.down", "equal bits"),
    "after it": (8, lambda: "layers.3.up", "only because its inputs do"),
    "around it": (8, lambda: "layers.3", "several modules are"),
    "no module": (8, lambda: "layers.9.up", "no module 'layers.9.up'"),
    "no path": (8, lambda: 3, "of type int"),
}


@FEATURE
@pytest.mark.parametrize(("number", "make"), RIGHT.values(), ids=RIGHT)
def test_right_answer_then_passes(number: int, make: Callable[[], Any]) -> None:
    assessment = course.check(number, make())
    assert assessment.is_right, str(assessment)
    assert str(assessment).startswith(f"Exercise {number}, {assessment.title}: right.\n")


@FEATURE
@pytest.mark.parametrize(("number", "make", "reason"), WRONG.values(), ids=WRONG)
def test_wrong_answer_then_fails_and_says_why(
    number: int, make: Callable[[], Any], reason: str
) -> None:
    assessment = course.check(number, make())
    assert not assessment.is_right
    assert any(reason in fault for fault in assessment.faults), assessment.faults
    assert str(assessment).startswith(f"Exercise {number}, {assessment.title}: not yet.\n- ")


def test_wrong_answers_then_there_are_some_for_each_exercise() -> None:
    assert {number for number, _, _ in WRONG.values()} == set(range(1, 9))


@pytest.mark.parametrize("number", range(1, 9))
def test_empty_cell_then_says_what_an_answer_is(number: int) -> None:
    (fault,) = course.check(number, ...).faults
    assert fault.startswith("There is no answer yet. It is ")


@pytest.mark.parametrize("number", [0, 9, "1", None])
def test_exercise_that_does_not_exist_then_is_an_error(number: Any) -> None:
    with pytest.raises(poptorch.Error, match=r"no exercise .* exercises 1 to 8"):
        course.check(number, ...)


def test_model_when_checked_then_is_the_learners_own_and_can_be_checked_again() -> None:
    made = placed(lambda number: number // 2)
    assert all(course.check(1, made).is_right for _ in range(2))
    assert isinstance(course.wrapped(1, made)[0], poptorch.PoplarExecutor)
    assert type(made) is course.Layers and type(made.layers[0].up.weight) is nn.Parameter


def test_options_when_checked_then_can_still_be_changed() -> None:
    made = options(64)
    assert course.check(2, made).is_right
    made.Training.gradientAccumulation(16)
    assert not course.check(2, made).is_right


@FEATURE
def test_wrapped_then_is_what_the_functions_of_the_emulator_take() -> None:
    report = emulator.estimate(*course.wrapped(4, cut(6, 2, 2, 2)), system="bow-pod16")
    assert [len(stage.blocks) for stage in report.stages] == [6, 2, 2, 2]
    assert not emulator.tile_memory(*course.wrapped(3, options(16)), system="bow-pod16").fits
    with pytest.raises(
        poptorch.Error,
        match="Exercise 5 has no model to wrap. Choose one of the exercises 1, 2, 3, 4, 6",
    ):
        course.wrapped(5, schedules.gpipe())
    with pytest.raises(poptorch.Error, match="of type int"):
        course.wrapped(3, 16)


def test_assessment_in_a_notebook_then_texts_are_no_markup() -> None:
    shown = course.check(5, "<b>bold</b>")._repr_html_()
    assert "&lt;b&gt;bold" in shown and "<b>bold" not in shown and "not yet." in shown
    assert "right." in course.check(5, "zero_bubble_h1")._repr_html_()


def test_suspect_then_has_the_weights_of_the_reference_and_other_results() -> None:
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    expected, found = course.reference(), course.suspect()
    for name, value in expected.state_dict().items():
        assert torch.equal(value, found.state_dict()[name])
    with torch.no_grad():
        assert not torch.equal(expected(rows, rows)[0], found(rows, rows)[0])


def test_notebook_then_has_an_empty_cell_and_a_check_for_each_exercise() -> None:
    text = (ROOT / "tutorials" / "course" / "course.py").read_text(encoding="utf-8")
    assert len(re.findall(r"^answer = \.\.\.", text, re.MULTILINE)) == 8
    found = re.findall(r"^show\(course\.check\((\d), answer\)\)$", text, re.MULTILINE)
    assert found == [*"12345678"]
    solved = (ROOT / "tutorials" / "course" / "solutions.py").read_text(encoding="utf-8")
    assert re.findall(r"^check\((\d), ", solved, re.MULTILINE) == [*"12345678"]


def test_workspace_then_opens_the_course_with_extras_that_exist() -> None:
    path = ROOT / ".devcontainer" / "devcontainer.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    (opened,) = settings["customizations"]["codespaces"]["openFiles"]
    assert (ROOT / opened).is_file()
    command = settings["postCreateCommand"]
    (extras,) = re.findall(r"'\.\[(\w+)\]'", command)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf"^{extras} = \[", project, re.MULTILINE)
    # The engine needs PyTorch as getting_started.md says, and a compiler, which this image has.
    (version,) = re.findall(r"'(torch>=[^']+)'", command)
    assert f'"{version}"' in (ROOT / "docs" / "getting_started.md").read_text(encoding="utf-8")
