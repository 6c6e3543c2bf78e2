"""`emulator.show` with values and figures, without a screen and in a notebook."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.forked_programs import run_forked

from poptorch_emu import emulator
from poptorch_emu.emulator import showing

PROGRAM = """
import matplotlib.pyplot as plt
from poptorch_emu import emulator

emulator.show(emulator.schedules.gpipe())
for _ in range(2):
    plt.figure()
    plt.plot([1, 2])
emulator.show()
plt.plot([2, 1])
emulator.show("a text")
emulator.show()
"""


@pytest.mark.feature("emulator.show", fidelity="exact")
def test_program_without_a_screen_then_prints_values_and_the_paths_of_figures(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_forked(["program.py"], {"MPLBACKEND": "Agg"}, tmp_path)
    assert done.returncode == 0, done.stderr
    first, *figures = done.stdout.splitlines()
    assert first.startswith("gpipe, 1 stage on each IPU")
    saved = [f"figure: {tmp_path / f'program_{number}.png'}" for number in (1, 2, 3)]
    assert figures == [*saved[:2], "a text", saved[2]]
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "program_1.png", "program_2.png", "program_3.png"
    ]  # fmt: skip
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in tmp_path.glob("*.png"))


@pytest.mark.feature("emulator.show", fidelity="exact")
def test_notebook_then_gets_the_table_and_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    code = "from poptorch_emu import emulator\nemulator.show(emulator.schedules.gpipe().plan(2, 2))"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.data["text/html"].startswith("<div") and "1F0" in output.data["text/html"]
    assert output.data["text/plain"].startswith("slot")
    capsys.readouterr()


@pytest.mark.feature("emulator.show", fidelity="exact")
@pytest.mark.parametrize("started_as", ["", "-", "-c"])
def test_program_without_a_file_then_its_figures_are_called_figure(
    started_as: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started_as])
    monkeypatch.setattr(showing, "_saved", {})
    pyplot.figure()
    emulator.show()
    assert capsys.readouterr().out == f"figure: {tmp_path / 'figure_1.png'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["figure_1.png"]


def test_nothing_open_then_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    emulator.show()
    assert capsys.readouterr().out == ""
