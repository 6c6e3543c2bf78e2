"""Failing processes: their peers soon name the process, the place and the reason, and continue."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import failing_processes
from support.forked_programs import FINALIZED, FORKED_RUNNER, end, python_path, run_forked
from support.processes import Process, finish, start

feature = pytest.mark.feature("Options.Distributed", fidelity="exact")
SCRIPT = failing_processes.__file__
HOST = re.escape(socket.gethostname())


# A process that ends keeps its connections until Python has completed its exit.
SECONDS = {"end": 15.0}
# On a busy machine the first try may be too slow.
NUM_TRIES = 3


def seen(index: int, folder: Path, otherwise: str = "") -> dict[str, Any]:
    """Returns what a process recorded: `seconds` after the fault, `message`, and `again`."""
    path = folder / f"saw_{index}.json"
    assert path.exists(), otherwise
    saw = json.loads(path.read_text())
    assert saw["again"].endswith(saw["message"]) or not saw["seconds"]
    assert 0 < saw["loss_alone"] < 10
    return dict(saw)


def run(way: str, folder: Path, **more: str) -> list[dict[str, Any]]:
    """Returns the records of both processes, also of the faulty one if possible."""
    own = FINALIZED if way in SECONDS else {}
    ended = finish(start(SCRIPT, [way, str(folder)], 2, 1, {**own, **more}))
    indices = [0, 1] if way in ("option", "weights", "nan") else [0]
    return [seen(index, folder, ended[index].text) for index in indices]


def in_time(attempt: Callable[[Path], float], limit: float, folder: Path) -> bool:
    """Returns whether one of a few attempts, each in its own folder, was fast enough."""
    for number in range(NUM_TRIES):
        own = folder / str(number)
        own.mkdir()
        if attempt(own) < limit:
            return True
    return False


@pytest.fixture(scope="module", autouse=True)
def with_a_silent_one(tmp_path_factory) -> Iterator[tuple[list[Process], Path]]:
    """Two processes, one of which stops answering, and their folder. Other tests run meanwhile."""
    folder = tmp_path_factory.mktemp("silent")
    processes = start(SCRIPT, ["stop", str(folder)], 2, 1, {"POPTORCH_EMU_TIMEOUT": "8"})
    yield processes, folder
    end(processes)


@feature
@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("kill", rf"Process 1 on {HOST} failed: .*(connection|ended)"),
        ("kill before an exchange", rf"Process 1 on {HOST} failed: .*(connection|ended)"),
        ("exception", rf"Process 1 on {HOST} failed: RuntimeError: the disk is full$"),
        ("end", rf"Process 1 on {HOST} failed: it ended after 3 calls .* makes call 4"),
        ("nan", rf"Process 1 on {HOST} failed: .*floating-point|not finite"),
    ],
)
def test_processes_when_one_fails_then_others_say_so_within_2_s(way, text, tmp_path):
    def attempt(folder: Path) -> float:
        saw = run(way, folder)[0]
        assert re.search(text, saw["message"])
        return saw["seconds"]

    assert in_time(attempt, SECONDS.get(way, 2.0), tmp_path)


@feature
@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("option", "option device_iterations is 2 in process 1 and 1 in process 0"),
        ("weights", "tensor 'first.weight' is .* in process 1 and .* in process 0"),
    ],
)
def test_processes_when_models_differ_then_the_first_difference_is_named(way, text, tmp_path):
    first, second = (saw["message"] for saw in run(way, tmp_path))
    assert re.search(text, first)
    assert "different models" in second


launcher_feature = pytest.mark.feature("poprun", fidelity="exact")


def poprun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the launcher."""
    return run_forked(["-m", "poptorch_emu.poprun", *arguments])


@launcher_feature
def test_poprun_then_programs_find_their_names_and_lines_carry_the_instance():
    code = (
        "import popdist, poptorch, os, sys; popdist.init(); popdist.synchronize();"
        "print(popdist.getInstanceIndex(), popdist.getNumTotalReplicas(),"
        "popdist.getNumLocalReplicas(), os.environ['TOLD'], poptorch.__name__)"
    )
    result = poprun(
        "--num-instances", "2", "--num-replicas", "4", "--mpi-local-args", "-x TOLD=yes",
        "--vipu-partition", "p", *FORKED_RUNNER, "-c", code,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr + result.stdout
    lines = sorted(line for line in result.stdout.splitlines() if "poptorch_emu" in line)
    assert lines == ["[0] 0 4 2 yes poptorch_emu", "[1] 1 4 2 yes poptorch_emu"]


@launcher_feature
def test_poprun_when_asked_for_one_instance_then_shows_that_one():
    result = poprun(
        "--num-instances",
        "2",
        "--only-output-from-instance",
        "1",
        *FORKED_RUNNER,
        "-c",
        "print('here')",
    )
    assert result.stdout.splitlines() == ["[1] here"]


@launcher_feature
@pytest.mark.parametrize(
    ("way", "status", "cause", "python"),
    [
        ("kill", 128 + signal.SIGKILL, "it was ended by SIGKILL", [sys.executable]),
        ("exception", 1, "RuntimeError: the disk is full", FORKED_RUNNER),
    ],
    ids=["kill", "exception"],
)
def test_poprun_when_one_fails_then_reports_the_cause_and_leaves_none(
    way, status, cause, python, tmp_path
):
    def attempt(folder: Path) -> float:
        result = poprun("--num-instances", "3", *python, SCRIPT, way, str(folder))
        assert result.returncode == status, result.stdout + result.stderr
        assert f"poprun: Process 2 on {socket.gethostname()} failed: {cause}" in result.stderr
        assert not children_that_run(str(folder))
        saw = [seen(index, folder, result.stdout) for index in (0, 1)]
        assert all(cause in each["message"] for each in saw)
        return max(each["seconds"] for each in saw)

    assert in_time(attempt, 2.0, tmp_path)


@launcher_feature
def test_poprun_when_one_ends_with_a_status_then_that_is_its_own():
    code = "import os, sys; sys.exit(7 * (os.environ['POPDIST_REPLICA_INDEX_OFFSET'] == '2'))"
    result = poprun("--num-instances", "3", *FORKED_RUNNER, "-c", code)
    assert result.returncode == 7, result.stdout + result.stderr
    said = f"poprun: Process 2 on {socket.gethostname()} failed: it ended with status 7"
    assert said in result.stderr


def children_that_run(mark: str) -> list[str]:
    """Returns the processes whose command line has `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text:
            found.append(text)
    return found


@launcher_feature
def test_poprun_when_it_is_killed_then_leaves_no_child(tmp_path):
    # /proc shows other text while a process starts, so each process writes a file when it runs.
    code = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w'); time.sleep(100)"
    launcher = subprocess.Popen(
        [sys.executable, "-m", "poptorch_emu.poprun", "--num-instances", "2",
         sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": python_path()},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while len(os.listdir(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(os.listdir(tmp_path)) == 2
        assert len(children_that_run(str(tmp_path))) == 3
    finally:
        launcher.kill()
        launcher.wait()
    deadline = time.monotonic() + 60
    while children_that_run(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not children_that_run(str(tmp_path))


@launcher_feature
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--num-instances", "3", "--num-replicas", "4"), "4 replicas cannot be divided among 3"),
        (("--num-instances", "0"), "--num-instances must be at least 1, not 0"),
        (("--host", "no.such.host.invalid"), "'no.such.host.invalid' .* is not known"),
        (
            ("--num-instances", "4", "--host", "localhost", "--instances-per-host", "2"),
            "4 instances need more than 1 hosts with 2 each",
        ),
        (("--only-output-from-instance", "5"), "names instance 5, but they are numbered"),
    ],
)
def test_poprun_when_the_numbers_do_not_fit_then_refuses(arguments, text):
    result = poprun(*arguments, sys.executable, "-c", "pass")
    assert result.returncode == 2
    assert re.search(text, result.stderr)


@feature
def test_processes_when_one_is_silent_then_others_wait_for_the_timeout(with_a_silent_one):
    processes, folder = with_a_silent_one
    text, _ = processes[0].communicate(timeout=300)
    saw = seen(0, folder, text)
    assert 7.5 < saw["seconds"] < 40
    silent = rf"Process 1 on {HOST} failed: .*silent for 8 s \(POPTORCH_EMU_TIME"
    assert re.search(silent, saw["message"])


@launcher_feature
def test_poprun_with_a_cache_then_one_process_compiles(tmp_path):
    result = poprun(
        "--num-instances", "2", "--executable-cache-path", str(tmp_path / "cache"),
        "--mpi-local-args", "-x POPTORCH_LOG_LEVEL=INFO",
        sys.executable, str(Path(SCRIPT).with_name("process_training.py")), str(tmp_path), "sgd",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    output = result.stdout + result.stderr
    assert output.count("Executable cache: wrote") == 1, output
    assert output.count("Executable cache: loaded") == 1
