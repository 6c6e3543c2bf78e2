"""The pipelining tutorial, as a new user would run it: script with its options, and notebook."""

from __future__ import annotations

import gzip
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "tutorials" / "pipelining"


def run_script(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "mnist_pipeline.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=240
    )


def accuracy_in(output: str) -> float:
    found = re.search(r"Accuracy on the test set: ([\d.]+)%", output)
    assert found is not None, output
    return float(found.group(1))


@pytest.mark.parametrize("strategy", ["pipelined", "sharded"])
def test_script_when_run_then_learns_digits(strategy: str) -> None:
    done = run_script("--epochs", "5", "--strategy", strategy)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Epoch 5: loss [\d.]+, accuracy [\d.]+%, \d+ images/s", done.stdout)
    assert accuracy_in(done.stdout) > 90
    assert "Graph compilation: 100%" in done.stderr


def test_script_when_profiled_and_offloaded_then_runs(tmp_path: Path) -> None:
    options = ("--epochs", "1", "--offload-optimiser", "--profile", "--profile-dir", "p", "--debug")
    done = run_script(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "p" / "mnist_training"
    assert "3F0|3B0" in (folder / "schedule.txt").read_text()
    assert "aten.convolution" in (folder / "graph.txt").read_text()
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    # 4 IPUs; in each of 2 windows of each of 11 calls: 8 forwards, 8 backwards, 1 update.
    assert len(events) == 4 * 2 * 11 * 17


def write_idx(path: Path, values: np.ndarray, magic: int) -> None:
    header = struct.pack(f">{1 + values.ndim}I", magic, *values.shape)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(header + values.astype(np.uint8).tobytes())


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_script_when_given_idx_files_then_reads_them(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=400)
    images = rng.integers(256, size=(400, 28, 28))
    write_idx(tmp_path / f"t10k-images-idx3-ubyte{suffix}", images, 0x0803)
    write_idx(tmp_path / f"t10k-labels-idx1-ubyte{suffix}", labels, 0x0801)
    done = run_script("--epochs", "1", "--data-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Accuracy on the test set" in done.stdout


def test_script_when_a_file_is_not_idx_then_says_so(tmp_path: Path) -> None:
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((4, 28, 28)), 0x0D03)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(4), 0x0801)
    done = run_script("--data-dir", str(tmp_path))
    assert done.returncode != 0
    assert "is not an IDX file of bytes with 3 dimensions" in done.stderr


def test_notebook_when_run_from_top_to_bottom_then_every_cell_works() -> None:
    notebook = nbformat.read(FOLDER / "mnist_pipeline.ipynb", as_version=4)
    saved = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(saved) >= 6, "the notebook is kept with its outputs"
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(FOLDER)}}).execute()
