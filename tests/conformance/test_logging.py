"""Logging and errors (api.md §3, §4, §5; `Options.maxRepeatLogs`) as a user sees them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import log

TIME = r"\[\d\d:\d\d:\d\d\.\d{3}\]"


PYTHON_LINE = TIME + r" \[poptorch::python\] \[warning\] from the python layer"
CPP_LINE = TIME + r" \[poptorch:cpp\] \[warning\] Parameter mask0: .*was downgraded to constant"


class Masks(nn.Module):
    """Has `count` integer buffers, each of which is downgraded with a warning."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for index in range(count):
            self.register_buffer(f"mask{index}", torch.ones(1, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.stack(list(self.buffers())).sum()


def speak() -> None:
    """Makes both layers warn."""
    opts = poptorch.Options().showCompilationProgressBar(False)
    poptorch.inferenceModel(Masks(1), opts).compile(torch.ones(1))
    poptorch.logger.warning("from the python layer")


@pytest.fixture
def import_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Yields a function that sets up logging as the import does, in a changed environment."""
    loggers = (log.logger, log.compiler_logger)
    before = [(each, list(each.handlers), each.level) for each in loggers]

    def set_up(**environment: str) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for each in loggers:
            each.handlers.clear()
        log._set_up()

    yield set_up
    for each, handlers, level in before:
        for handler in each.handlers:
            handler.close()
        each.handlers[:] = handlers
        each.setLevel(level)


@pytest.mark.feature("Log format", fidelity="exact")
@pytest.mark.parametrize("destination", [None, "", "stderr", "stdout", "file"])
def test_messages_then_each_layer_has_its_name_and_destination(
    destination, import_again, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = {None: {}, "file": {"POPTORCH_LOG_DEST": "cpp.txt"}}
    import_again(**value.get(destination, {"POPTORCH_LOG_DEST": destination}))
    speak()
    captured = capsys.readouterr()
    texts = {"stderr": captured.err, "stdout": captured.out}
    if destination == "file":
        texts["file"] = (tmp_path / "cpp.txt").read_text()
    assert re.search(PYTHON_LINE, texts["stderr"])
    for place, text in texts.items():
        assert bool(re.search(CPP_LINE, text)) == (place == (destination or "stderr"))


@pytest.mark.feature("POPTORCH_LOG_LEVEL", fidelity="exact")
@pytest.mark.parametrize(("level", "is_shown"), [("WARN", True), ("ERR", False), ("OFF", False)])
def test_log_level_in_the_environment_then_holds_for_both_layers(
    level, is_shown, import_again, capsys
) -> None:
    import_again(POPTORCH_LOG_LEVEL=level)
    speak()
    text = capsys.readouterr().err
    for line in (PYTHON_LINE, CPP_LINE):
        assert bool(re.search(line, text)) == is_shown


@pytest.mark.feature("POPTORCH_LOG_LEVEL", fidelity="exact")
def test_log_level_that_does_not_exist_then_import_fails(import_again) -> None:
    with pytest.raises(ValueError, match="Unknown log level: LOUD."):
        import_again(POPTORCH_LOG_LEVEL="LOUD")


@pytest.mark.feature("setLogLevel", fidelity="exact")
def test_set_log_level_then_sets_both_layers() -> None:
    before = poptorch.logger.level
    try:
        poptorch.setLogLevel("ERR")
        assert poptorch.logger.level == log.compiler_logger.level == 40
        poptorch.setLogLevel(1)
        assert poptorch.logger.level == log.compiler_logger.level == 10
        with pytest.raises(ValueError, match="Invalid log level integer"):
            poptorch.setLogLevel(5)
        with pytest.raises(ValueError, match="Unknown log level: LOUD.*Valid values are DEBUG, E"):
            poptorch.setLogLevel("LOUD")
    finally:
        poptorch.logger.setLevel(before)
        log.compiler_logger.setLevel(before)


@pytest.mark.feature("Uncaught exceptions", fidelity="exact")
def test_uncaught_exception_then_is_logged_once_with_its_traceback(capsys) -> None:
    try:
        raise poptorch.Error("too hot")
    except poptorch.Error as error:
        log.log_uncaught(type(error), error, error.__traceback__)
    lines = capsys.readouterr().err.splitlines()
    first = TIME + r" \[poptorch::python\] \[critical\] Traceback \(most recent call last\):"
    assert re.fullmatch(first, lines[0])
    assert [line for line in lines if "too hot" in line][-1] == "poptorch_emu.errors.Error: too hot"
    assert sum("[critical]" in line for line in lines) == 1


@pytest.mark.feature("Uncaught exceptions", fidelity="exact")
def test_uncaught_exception_of_a_child_process_then_its_stderr_is_shown(capsys) -> None:
    error = subprocess.CalledProcessError(3, ["child"], stderr=b"child says no")
    log.log_uncaught(type(error), error, None)
    assert "[critical] child says no" in capsys.readouterr().err


@pytest.mark.feature("Options.maxRepeatLogs", fidelity="exact")
@pytest.mark.parametrize(("limit", "shown"), [("default", 4), (2, 2), (6, 6), (None, 6)])
def test_repeated_messages_then_cut_off_with_one_line(limit, shown, capsys) -> None:
    opts = poptorch.Options().showCompilationProgressBar(False)
    if limit != "default":
        opts.maxRepeatLogs(limit)
    for _ in range(2):  # Each compilation counts anew.
        poptorch.inferenceModel(Masks(6), opts).compile(torch.ones(1))
        text = capsys.readouterr().err
        assert text.count("was downgraded to constant") == shown
        assert text.count("...repeated messages suppressed...") == int(shown < 6)


@pytest.mark.feature("Error", fidelity="exact")
def test_error_of_the_python_layer_then_its_text_and_attributes() -> None:
    error = poptorch.createPoptorchError("a number is missing")
    assert isinstance(error, poptorch.Error)
    assert str(error) == "'poptorch_py_error': a number is missing"
    assert (error.message, error.type, error.location) == (
        "a number is missing",
        "poptorch_py_error",
        "",
    )


@pytest.mark.feature("Error", fidelity="exact")
def test_error_of_the_compiler_then_file_type_message_and_contexts() -> None:
    class NoLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    opts = poptorch.Options().showCompilationProgressBar(False)
    with pytest.raises(poptorch.Error) as caught:
        poptorch.trainingModel(NoLoss(), opts)(torch.ones(1))
    lines = str(caught.value).splitlines()
    assert re.match(r"In \S+:\d+: 'poptorch_cpp_error': Couldn't find a loss in graph!", lines[0])
    assert "Error raised in:" in lines
    assert lines[lines.index("Error raised in:") + 1].startswith("  [0] ")
    assert caught.value.message.startswith("Couldn't find a loss") and caught.value.location


@pytest.mark.feature("Error", fidelity="exact")
def test_error_from_the_engine_with_a_long_text_then_goes_to_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    names = "\n".join(f"line {index}" for index in range(100))
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.anchorTensor("a", names)
    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(Long(), opts)(torch.ones(1))
    assert len(str(caught.value).splitlines()) == 80
    assert str(caught.value).endswith("See poptorch_error.log for details")
    assert "line 99" in (tmp_path / "poptorch_error.log").read_text()
