"""The script of the pipelining tutorial, as a new user would run it, with its options."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import importlib
import json
import os
import re
import struct
import subprocess
import termios
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from support.forked_programs import ForkedProgram, end, run_forked

import poptorch_emu as poptorch
from poptorch_emu.plan.memory.memory_plan import Content, Store

FOLDER = Path(__file__).parents[2] / "tutorials" / "pipelining"
SCRIPT = FOLDER / "mnist_pipeline.py"
MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def run_script(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_forked([str(SCRIPT), *arguments], folder=cwd or ".", timeout=240)


def run_on_terminal(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the script with a terminal of 200 columns as its stderr."""
    terminal, of_script = os.openpty()
    fcntl.ioctl(of_script, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
    drawn = bytearray()

    def read() -> None:
        # A terminal raises an error at its end, when no process has it open any more.
        with contextlib.suppress(OSError):
            while piece := os.read(terminal, 4096):
                drawn.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    program = ForkedProgram([str(SCRIPT), *arguments], folder=cwd or ".", errors=of_script)
    try:
        output, _ = program.communicate(timeout=240)
    finally:
        end([program])
        os.close(of_script)
        reader.join()
        os.close(terminal)
    return subprocess.CompletedProcess(arguments, program.wait(), output, drawn.decode())


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
    assert done.stderr.count("Graph compilation: 100% in ") == 2
    assert "[debug]" not in done.stderr
    lines = (done.stdout + done.stderr).split("\n")
    assert all(line.isprintable() for line in lines), "A log has no control characters."


def write_idx(path: Path, values: np.ndarray, magic: int) -> None:
    header = struct.pack(f">{1 + values.ndim}I", magic, *values.shape)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(header + values.astype(np.uint8).tobytes())


def write_noise(folder: Path, count: int, suffix: str = "") -> None:
    """Writes `count` random images with random labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=count)
    images = rng.integers(256, size=(count, 28, 28))
    write_idx(folder / f"t10k-images-idx3-ubyte{suffix}", images, 0x0803)
    write_idx(folder / f"t10k-labels-idx1-ubyte{suffix}", labels, 0x0801)


# For each strategy: cells that its table of actions contains, and cells that it does not.
SCHEDULES = {"pipelined": ("0F6|0B0", "0F8"), "sharded": ("3F0|3B0", "0F6|0B0")}


@pytest.mark.parametrize("strategy", SCHEDULES)
def test_script_when_given_all_its_options_then_each_takes_effect(
    tmp_path: Path, strategy: str
) -> None:
    write_noise(tmp_path, 80)  # 64 to train, 16 to test.
    options = {
        "--batch-size": 2,
        "--device-iterations": 2,
        "--gradient-accumulation": 8,
        "--test-batch-size": 2,
        "--epochs": 2,
        "--learning-rate": 0,
        "--strategy": strategy,
        "--profile-dir": "elsewhere",
        "--data-dir": ".",
    }
    flags = ["--offload-optimiser", "--profile", "--debug"]
    words = [str(word) for option in options.items() for word in option]
    done = run_on_terminal(*words, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # 32 images a call of training, 8 a call of testing.
    for bar in (r"Epoch 1: 100%.* 2/2 ", r"Epoch 2: 100%.* 2/2 ", r"Test: 100%.* 2/2 "):
        assert re.search(bar, done.stderr), done.stderr
    assert "Epoch 3" not in done.stderr and "[debug]" in done.stderr
    assert done.stderr.count("\rGraph compilation: 100%|") >= 2
    # A step of more than a second is shown as "s/step".
    bar = r"Epoch 1: 100%.* 2/2 .*(step/s|s/step), accuracy=.*, loss="
    assert re.search(bar, done.stderr)
    # Without a learning rate each epoch sees the same loss.
    losses = re.findall(r"Epoch \d: loss ([\d.]+), accuracy", done.stdout)
    assert len(losses) == 2 and losses[0] == losses[1]
    profile = tmp_path / "elsewhere" / "mnist_training"
    assert "poptorch-emu view elsewhere/mnist_training/profile.pop" in done.stdout
    assert "bottleneck: " in done.stdout and (profile / "profile.pop").is_file()
    graph = (profile / "graph.txt").read_text()
    assert "input_0: float32[2, 1, 28, 28]" in graph and "aten.convolution" in graph
    present, absent = SCHEDULES[strategy]
    schedule = (profile / "schedule.txt").read_text()
    assert present in schedule and absent not in schedule
    events = json.loads((profile / "trace.json").read_text())["traceEvents"]
    # 4 IPUs; in each of 2 windows of each of 4 calls: 8 forwards, 8 backwards, 1 update.
    assert len(events) == 4 * 2 * 4 * 17


@pytest.mark.parametrize("is_offloaded", [False, True])
def test_option_to_offload_then_optimiser_state_is_in_streaming_memory(
    is_offloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("mnist_pipeline")
    monkeypatch.setattr("sys.argv", ["script", *["--offload-optimiser"] * is_offloaded])
    options = script.training_options(script.parse_arguments())
    model = script.Network()
    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters()))
    training.compile(torch.zeros(128, 1, 28, 28), torch.zeros(128, dtype=torch.long))
    plan = poptorch.emulator.memory(training)
    training.destroy()
    # Two states a parameter, float32; the step counts beside them are small.
    wanted = 2 * 4 * sum(parameter.numel() for parameter in model.parameters())
    store = Store.REMOTE if is_offloaded else Store.ON_CHIP
    assert wanted * 0.9 < plan.num_bytes(content=Content.STATE, store=store) <= wanted * 1.01


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.is_dir(), reason="the MNIST images are not here")
def test_script_when_given_mnist_then_reaches_97_percent() -> None:
    """8,000 images to train and 2,000 to test; 97.7 % were measured."""
    options = "--batch-size 40 --gradient-accumulation 10 --device-iterations 2 --epochs 5"
    done = run_on_terminal(*options.split(), "--learning-rate", "6e-3", "--data-dir", str(MNIST))
    assert done.returncode == 0, done.stderr
    assert re.search(r"Epoch 5: 100%.* 10/10 ", done.stderr)
    assert accuracy_in(done.stdout) >= 97


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_script_when_given_idx_files_then_reads_them(tmp_path: Path, suffix: str) -> None:
    write_noise(tmp_path, 400, suffix)
    done = run_script("--epochs", "1", "--data-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Accuracy on the test set" in done.stdout


def test_script_when_a_file_is_not_idx_then_says_so(tmp_path: Path) -> None:
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((4, 28, 28)), 0x0D03)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(4), 0x0801)
    done = run_script("--data-dir", str(tmp_path))
    assert done.returncode != 0
    assert "is not an IDX file of bytes with 3 dimensions" in done.stderr
