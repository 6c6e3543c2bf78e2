"""The cache keeps metadata of results beside the executables, and wrong metadata has no effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models import FAMILIES
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.compile import compiler
from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.stored import container
from poptorch_emu.compile.stored.container import pack, unpack
from poptorch_emu.trace.fakes.result_memo import ResultMemo

pytestmark = pytest.mark.feature("enableExecutableCaching", fidelity="exact")


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the name of each operation whose results PyTorch computes."""
    names: list[str] = []
    real = ResultMemo._run_first

    def run_first(self, mode, func, args, kwargs):
        names.append(str(func))
        return real(self, mode, func, args, kwargs)

    monkeypatch.setattr(ResultMemo, "_run_first", run_first)
    return names


def compiled(folder: Path | None, model: nn.Module | None = None, **hypers: float) -> Executable:
    """Returns the executable of `model`, by default of a small residual network."""
    torch.manual_seed(4)
    data = FAMILIES["resnet"].batch(8)
    model = FAMILIES["resnet"].make(1) if model is None else model
    options = poptorch.Options().showCompilationProgressBar(False)
    if folder is not None:
        options.enableExecutableCaching(str(folder))
    optimizer = poptorch.optim.SGD(model.parameters(), **{"lr": 0.1, **hypers})
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(*data)
    executable = training._compiled()
    training.destroy()
    return executable


def same_program(one: Executable, other: Executable) -> bool:
    return one.key == other.key and one.program.serialize() == other.program.serialize()


def metadata_file(folder: Path) -> Path:
    (file,) = folder.glob("*.metadata")
    return file


def test_second_compilation_then_asks_about_no_result(
    tmp_path: Path, worked_out: list[str]
) -> None:
    first = compiled(tmp_path)
    assert worked_out
    worked_out.clear()
    assert same_program(compiled(tmp_path), first)
    assert not worked_out


def test_miss_that_finds_metadata_then_gives_the_program_that_it_gives_without(
    tmp_path: Path, worked_out: list[str]
) -> None:
    compiled(tmp_path)
    worked_out.clear()
    num_asked = []
    for folder in (tmp_path, None):
        made = compiled(folder, momentum=0.5)
        num_asked.append(len(worked_out))
        worked_out.clear()
        assert same_program(made, compiled(None, momentum=0.5))
        worked_out.clear()
    assert num_asked[0] < num_asked[1]


class Chosen(nn.Module):
    """Computes a chosen function; all of these models share one name for their metadata."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act
        self.head = FAMILIES["resnet"].make(1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        return self.head(self.act(x), labels)


def flipped(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def test_models_that_share_a_file_of_metadata_then_do_not_mix(tmp_path: Path) -> None:
    for act in (flipped, channels_last, torch.tanh, flipped):
        torch.manual_seed(1)
        cached = compiled(tmp_path, Chosen(act))
        torch.manual_seed(1)
        assert same_program(cached, compiled(None, Chosen(act)))
    assert len(list(tmp_path.glob("*.metadata"))) == 1
    assert len(list(tmp_path.glob("*.executable"))) == 3


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "a changed byte": lambda data: data[:-9] + b"7" + data[-8:],
    "of an executable": lambda data: pack({"program": b""}),
    "of something else": lambda data: pack({"results": b'{"aten.relu.default": [3]}'}),
    "no text": lambda data: pack({"results": b"\xff\xfe"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_then_warning_the_same_program_and_a_new_file(
    damage: str, tmp_path: Path, logged
) -> None:
    first = compiled(tmp_path)
    file = metadata_file(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[damage](whole))
    assert same_program(compiled(tmp_path), first)
    assert f"{file} cannot be used and will be replaced" in logged.text
    assert unpack(file.read_bytes(), "f").sections.keys() == {"results"}
    logged.clear()
    assert same_program(compiled(tmp_path), first)
    assert "cannot be used" not in logged.text


def test_every_cut_of_the_file_then_the_same_program(tmp_path: Path) -> None:
    first = compiled(tmp_path)
    file = metadata_file(tmp_path)
    whole = file.read_bytes()
    for size in range(0, len(whole), len(whole) // 5):
        file.write_bytes(whole[:size])
        assert same_program(compiled(tmp_path), first)


def test_file_of_another_version_then_is_not_used(
    tmp_path: Path, worked_out: list[str], logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(tmp_path)
    file = metadata_file(tmp_path)
    sections = unpack(file.read_bytes(), "f").sections
    with monkeypatch.context() as patched:
        patched.setattr(container, "__version__", "0.0.7")
        file.write_bytes(pack(sections))
    worked_out.clear()
    compiled(tmp_path)
    assert worked_out
    assert "cannot be used" not in logged.text
    assert unpack(file.read_bytes(), "f").is_of_this_version


def test_without_a_cache_then_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(None)
    assert not list(tmp_path.iterdir())


def test_lazy_module_then_the_error_is_that_of_a_compilation_without_cache(tmp_path: Path) -> None:
    options = poptorch.Options().enableExecutableCaching(str(tmp_path))
    inference = poptorch.inferenceModel(nn.LazyLinear(3), options)
    with pytest.raises(poptorch.Error, match="weight is not initialised yet"):
        inference(torch.ones(1, 2))


def test_metadata_when_capturing_fails_with_them_then_begins_again_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = compiled(tmp_path)
    real = compiler.trace_forward

    def trace(*args):
        if args[-1]:
            raise RuntimeError("expected predicate to be bool")
        return real(*args)

    monkeypatch.setattr(compiler, "trace_forward", trace)
    assert same_program(compiled(tmp_path), expected)
    assert "succeeded without them. RuntimeError: expected predicate" in caplog.text
    assert compiler.trace_forward is trace


def test_error_of_the_model_when_metadata_are_stored_then_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(tmp_path)

    def trace(*args):
        raise poptorch.Error("this model cannot be captured")

    monkeypatch.setattr(compiler, "trace_forward", trace)
    with pytest.raises(poptorch.Error, match="this model cannot be captured"):
        compiled(tmp_path)
    assert "cannot be captured" not in caplog.text and "succeeded" not in caplog.text
