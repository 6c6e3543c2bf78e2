"""The runner's text when a program fails: the line, the rule and the way out, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forked_programs import PYTORCH, run_forked

pytestmark = pytest.mark.feature("python -m poptorch_emu", fidelity="exact")

PROGRAM = """
import torch
import poptorch

class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}

model = poptorch.inferenceModel(Model(), poptorch.Options().showCompilationProgressBar(False))
model(torch.ones(2))
model(torch.ones(3))
"""
CASES = {
    "to the host": (
        "x.relu().nonzero()",
        7,
        "return x.relu().nonzero()",
        "The rule: A compiled graph has static shapes.",
        "What to change: Use a form of fixed size",
    ),
    "another shape": (
        "x + 1",
        11,
        "model(torch.ones(3))",
        "The rule: A model is compiled once, for the types and shapes of its first call.",
        "What to change: To recompile, wrap the model anew",
    ),
}


def program_of(tmp_path: Path, expression: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(expression=expression))
    return path


def failed(tmp_path: Path, expression: str) -> tuple[Path, str]:
    """Returns a program and the errors that the runner prints for it."""
    path = program_of(tmp_path, expression)
    done = run_forked(["-m", "poptorch_emu", str(path)])
    assert done.returncode == 1
    return path, done.stderr


def failed_when_all_is_logged(tmp_path: Path, expression: str) -> str:
    """Returns the output at level DEBUG, which is read when the package is loaded."""
    arguments = ["-m", "poptorch_emu", str(program_of(tmp_path, expression))]
    done = run_forked(arguments, {"POPTORCH_LOG_LEVEL": "DEBUG"}, loaded=PYTORCH)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    ("expression", "line", "source", "rule", "change"), CASES.values(), ids=CASES
)
def test_program_when_it_breaks_a_rule_then_ends_with_line_rule_and_change(
    tmp_path: Path, expression: str, line: int, source: str, rule: str, change: str
) -> None:
    path, text = failed(tmp_path, expression)
    place, said_rule, said_change, more = text.splitlines()[-4:]
    assert place == f"In your program: {path}:{line}: {source}"
    assert said_rule == rule
    assert said_change.startswith(change)
    assert more.startswith("More: python -m poptorch_emu --explain ")
    assert text.count("Traceback (most recent call last)") == 1
    assert "poptorch_emu/" not in text.replace(str(path), "")


def test_program_when_asked_for_all_then_shows_our_frames(tmp_path: Path) -> None:
    text = failed_when_all_is_logged(tmp_path, "x.nonzero()")
    assert "poptorch_emu/executor/device_model.py" in text
    assert "The rule:" not in text


def test_program_when_the_fault_is_its_own_then_nothing_is_explained(tmp_path: Path) -> None:
    path, text = failed(tmp_path, "x + {}['missing']")
    assert text.rstrip().endswith("KeyError: 'missing'")
    assert f'File "{path}", line 7, in forward' in text
    assert "The rule:" not in text


def test_program_when_pytorch_refuses_what_forward_does_then_shows_its_own_lines_only(
    tmp_path: Path,
) -> None:
    path, text = failed(tmp_path, "x @ torch.ones(3)")
    assert text.count("Traceback (most recent call last)") == 1
    assert f'File "{path}", line 7, in forward' in text
    assert "poptorch_emu/" not in text.replace(str(path), "")
    assert "size" in text.splitlines()[-1]
    _, text = failed(tmp_path, "(poptorch.setLogLevel('DEBUG'), x @ torch.ones(3))[1]")
    assert "poptorch_emu/trace/recording/recorder.py" in text


def test_program_when_python_would_count_by_a_tensor_then_names_the_rule(tmp_path: Path) -> None:
    _, text = failed(tmp_path, "range(x.sum())")
    assert text.rstrip().endswith(
        "before tensors have values, so Python code cannot use them as counts."
    )
