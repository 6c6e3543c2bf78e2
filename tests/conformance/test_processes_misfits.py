"""Processes that do not fit together are refused, with a different message in each case."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import misfit_processes
from support.forked_programs import end
from support.processes import Process, finish, results_of, start

feature = pytest.mark.feature("Options.Distributed", fidelity="exact")
SCRIPT = misfit_processes.__file__


def started(way: str, folder: Path, **more: str) -> list[Process]:
    return start(SCRIPT, [way, str(folder)], 2, 1, {"POPTORCH_EMU_TIMEOUT": "60", **more})


def told(processes: list[Process], folder: Path) -> tuple[str, str]:
    """Returns the messages in both processes."""
    ended = finish(processes)
    assert all(each.status == 0 for each in ended), "\n".join(each.text for each in ended)
    first, second = results_of(folder, 2)
    return first, second


def messages(way: str, folder: Path) -> tuple[str, str]:
    """Starts two processes, and returns the messages in both."""
    return told(started(way, folder), folder)


@dataclass
class Waiting:
    """Processes that wait for a timeout, by their fault, and a port that is in use."""

    processes: dict[str, list[Process]]
    folders: dict[str, Path]
    port: str


@pytest.fixture(scope="module", autouse=True)
def waiting(tmp_path_factory) -> Iterator[Waiting]:
    """Starts the processes early, so that other tests run while they wait."""
    folders = {way: tmp_path_factory.mktemp(way) for way in ("group", "port")}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        of_group = started("group", folders["group"], POPTORCH_EMU_TIMEOUT="5")
        of_port = started("replicas", folders["port"], MASTER_PORT=port, POPTORCH_EMU_TIMEOUT="2")
        yield Waiting({"group": of_group, "port": of_port}, folders, port)
        end([*of_group, *of_port])


@feature
@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("replicas", "option replication_factor is (2 in process 1|1 in process 0)"),
        ("windows", "option device_iterations is (2 in process 1|1 in process 0)"),
        ("shapes", r"its inputs is float32\[(2, 5\] in process 1|1, 5\] in process 0)"),
    ],
)
def test_processes_when_one_has_other_numbers_then_both_name_them(way, text, tmp_path):
    for message in messages(way, tmp_path):
        assert re.search(rf"train different models: .*{text}", message), message


@feature
def test_processes_when_a_weight_is_grouped_then_refused(tmp_path):
    for message in messages("grouping", tmp_path):
        assert re.search(
            r"'weight' has a replicaGrouping, .* not supported with 2 processes", message
        )


@feature
def test_processes_when_forked_after_they_joined_then_the_child_is_refused(tmp_path):
    _, second = messages("fork", tmp_path)
    assert "was forked after the connection to other processes was made" in second


@feature
def test_processes_when_the_number_is_not_the_groups_then_refused(waiting):
    _, second = told(waiting.processes["group"], waiting.folders["group"])
    assert "process 1 of 3 by Options.Distributed, but it has joined as number 1 of 2" in second


@feature
def test_processes_when_the_port_is_in_use_then_process_0_says_so(waiting):
    first, second = told(waiting.processes["port"], waiting.folders["port"])
    assert f"at 127.0.0.1:{waiting.port}: another program uses this port. Set MASTER_PORT" in first
    assert "Process 1 did not meet the 1 others" in second
