"""Generates the notebooks of the tutorials from their sources, with their real output.

    python tools/notebooks.py              # runs and writes all of them
    python tools/notebooks.py basics       # one of them
    python tools/notebooks.py --check      # lists notebooks whose cells differ from their source

A source, for example `tutorials/basics/basics.py`, is a jupytext percent script; edit only sources.
The tool needs the extra `notebook`. In the output, folders of this computer are left out of paths.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "tutorials"
MAX_BYTES = 300_000
_SECONDS_PER_NOTEBOOK = 900
_COLOURS = 128
# File of a cell's code as the kernel reports it; a message may leave out the folder.
_CELL_FILE = re.compile(r"(?:/\S*/ipykernel_\d+/|\b)\d{6,}\.py")


def sources() -> list[Path]:
    """Returns the sources of notebooks, sorted by name; other files begin with a docstring."""
    return sorted(path for path in TUTORIALS.glob("*/*.py") if _is_source(path))


def _is_source(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith("# %% [markdown]")


def cells_of(source: Path) -> list[tuple[str, str]]:
    """Returns kind and text of each cell of a source."""
    return _cells(jupytext.read(source, fmt="py:percent"))


def differences(source: Path) -> list[str]:
    """Returns a text for each problem of a source's notebook; an empty list if it is right."""
    path = source.with_suffix(".ipynb")
    if not path.exists():
        return [f"{path} is missing."]
    notebook = nbformat.read(path, as_version=4)
    found = []
    if _cells(notebook) != cells_of(source):
        found.append(f"The cells of {path} are not those of its source.")
    if any(cell.cell_type == "code" and not cell.execution_count for cell in notebook.cells):
        found.append(f"{path} has cells that were not run.")
    if path.stat().st_size > MAX_BYTES:
        found.append(f"{path} has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}.")
    return [f"{text} Run: python tools/notebooks.py {source.stem}" for text in found]


def make(source: Path) -> Path:
    """Runs a source as a notebook, and writes the notebook beside it.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    where = {"metadata": {"path": str(source.parent)}}
    NotebookClient(notebook, timeout=_SECONDS_PER_NOTEBOOK, resources=where).execute()
    for index, cell in enumerate(notebook.cells):
        cell.id = f"{source.stem}-{index}"
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = _without_folders(output.text)
            for kind in {"text/plain", "text/html"} & set(output.get("data", {})):
                output.data[kind] = _without_folders(output.data[kind])
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _with_few_colours(output.data["image/png"])
    path = source.with_suffix(".ipynb")
    nbformat.write(notebook, path)
    return path


def _cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.rstrip()) for cell in notebook.cells]


def _without_folders(text: str) -> str:
    return _CELL_FILE.sub("cell.py", text).replace(f"{ROOT}{os.sep}", "")


def _with_few_colours(picture: str) -> str:
    """Returns a base64 PNG with a palette, which suffices for plots in a third of the bytes."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    written = io.BytesIO()
    image.quantize(_COLOURS).save(written, "png", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main() -> int:
    """Generates or checks the notebooks; returns 1 if one has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="names of tutorials (default: all)")
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    arguments = parser.parse_args()
    known = {source.stem: source for source in sources()}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"there is no tutorial {unknown[0]!r}; choose from {', '.join(known)}.")
    found = []
    # The kernel imports the package of this folder, whether it is installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["COLUMNS"] = "130"  # Width of a notebook's cells; there is no terminal.
    for name in arguments.names or known:
        if not arguments.check:
            print(f"{name}: {make(known[name]).stat().st_size:,} bytes")
        found += differences(known[name])
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
