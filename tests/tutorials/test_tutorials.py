"""Every tutorial from top to bottom with small settings, and its notebook beside its source."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "notebooks.py"
SOURCES = sorted(
    path
    for path in ROOT.glob("tutorials/*/*.py")
    if path.read_text(encoding="utf-8").startswith("# %% [markdown]")
)
NAMES = [source.stem for source in SOURCES]
# A line `EPOCHS = 10  # in the tests: 1` of a tutorial names the smaller value for the tests.
SMALL = re.compile(r"^(\w+ = ).*  # in the tests: (.+)$", re.MULTILINE)
# Optional packages that a tutorial needs.
NEEDED = {
    "small_transformers": "transformers",
    "keras_quick_start": "keras",
    "tensorflow_quick_start": "tensorflow",
}


def notebook_tool() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_tool", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Other packages cause it.
@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_tutorial_when_run_from_top_to_bottom_then_every_cell_works(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tutorial also asserts the values that it shows, so that a cell with a wrong text fails."""
    if source.stem in NEEDED:
        pytest.importorskip(NEEDED[source.stem])
    plt.switch_backend("Agg")
    monkeypatch.chdir(source.parent)
    monkeypatch.syspath_prepend(source.parent)
    module = types.ModuleType(f"tutorial_{source.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = SMALL.sub(r"\1\2", source.read_text(encoding="utf-8"))
    files_before = set(source.parent.iterdir())
    try:
        exec(compile(text, source, "exec"), vars(module))
        assert not plt.get_fignums(), "each figure is shown: `show()`"
    finally:
        plt.close("all")
        torch.set_default_dtype(torch.float32)
    left = set(source.parent.iterdir()) - files_before
    printed = capsys.readouterr().out
    for path in sorted(left):
        if path.suffix == ".png":
            assert f"figure: {path}\n" in printed
            assert path.stat().st_size > 3_000, "the figure is not empty"
            path.unlink()
            left.remove(path)
    assert {path.name for path in left} <= {"__pycache__"}, "a tutorial leaves only figures behind"


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_notebook_then_has_the_cells_of_its_source_and_their_output(source: Path) -> None:
    tool = notebook_tool()
    assert tool.differences(source) == []
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert str(Path.home()) + "/" not in text and "ipykernel_" not in text
    assert not re.search(r"\b\d{6,}\.py", text), "the kernel's name of a cell, another each time"
    assert any(cell == "markdown" for cell, _ in tool.cells_of(source))


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_notebook_then_shows_a_table_of_the_emulator_and_a_picture(source: Path) -> None:
    """Emulator values appear in a notebook as an HTML table and a picture, not as text."""
    notebook = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))
    kinds = {
        kind
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        for kind in output.get("data", ())
    }
    assert kinds >= {"text/html", "image/png"}
    text = source.read_text(encoding="utf-8")
    printed = re.findall(r"^ *print\((?:emulator\.\w+\(.*\)|report|split|schedule)\)$", text, re.M)
    assert not printed, "show(...) gives a notebook the table"
    drawn = {*re.findall(r"([\w)]+)\.plot\(", text)} - {"plt", "axis", "axes"}
    assert drawn, "a picture that a value of the emulator draws, beside those of the tutorial's own"


def test_notebook_when_its_source_changes_then_the_tool_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tutorial of two cells is created and accepted, then changed and refused."""
    tool = notebook_tool()
    source = tmp_path / "tiny" / "tiny.py"
    source.parent.mkdir()
    source.write_text("# %% [markdown]\n# # Tiny\n\n# %%\nprint(6 * 7)\n")
    monkeypatch.setattr(tool, "TUTORIALS", tmp_path)
    assert "is missing" in tool.differences(source)[0]
    monkeypatch.setattr(sys, "argv", ["notebooks.py", "tiny"])
    assert tool.main() == 0
    made = source.with_suffix(".ipynb").read_text()
    assert '"42\\n"' in made and tool.differences(source) == []
    source.write_text(source.read_text().replace("6 * 7", "6 * 8"))
    monkeypatch.setattr(sys, "argv", ["notebooks.py", "--check"])
    assert tool.main() == 1
    assert "are not those of its source" in capsys.readouterr().out


def test_tool_when_asked_for_an_unknown_tutorial_then_lists_them() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "no_such"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "'no_such'; choose from basics, " in done.stderr


def test_list_of_tutorials_then_names_each_once() -> None:
    text = (ROOT / "tutorials" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\((\w+)/(\w+)\.ipynb\)", text)
    made = sorted((source.parent.name, source.stem) for source in SOURCES)
    assert sorted(linked) == made
