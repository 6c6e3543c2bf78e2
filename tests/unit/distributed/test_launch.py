"""Variables that a launcher sets, and the launcher's plan of processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.forked_programs import run_forked

from poptorch_emu import Error
from poptorch_emu.distributed import launcher
from poptorch_emu.distributed.instances import plan_instances
from poptorch_emu.distributed.launch_environment import (
    LOCAL,
    LOCAL_INDEX,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    OFFSET,
    RANK,
    TOTAL,
    UNIFORM,
    WORLD_SIZE,
    Launch,
    is_launched,
    read_launch,
)
from poptorch_emu.distributed.rendezvous import (
    interface_towards,
    join_default_group,
    timeout_seconds,
)

feature = pytest.mark.feature("poprun", fidelity="exact")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (
        TOTAL, LOCAL, OFFSET, UNIFORM, WORLD_SIZE, RANK,
        LOCAL_WORLD_SIZE, LOCAL_INDEX, LOCAL_RANK,
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@feature
def test_instances_then_each_reads_what_the_plan_gave_it(monkeypatch):
    instances = plan_instances(3, 6, 2, ["a", "b"], 2)
    assert [i.host for i in instances] == ["a", "a", "b"]
    for number, (local_index, on_host) in enumerate([(0, 2), (1, 2), (0, 1)]):
        for name, value in instances[number].variables.items():
            monkeypatch.setenv(name, value)
        assert read_launch() == Launch(number, 3, local_index, 2, 2, on_host)


def test_launch_when_only_torchrun_speaks_then_each_has_one_replica(monkeypatch):
    assert not is_launched()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert is_launched()
    assert read_launch() == Launch(3, 4, 0, 1, 1, 4)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {TOTAL: "5", LOCAL: "2"},
            "5 replicas cannot be divided",
        ),
        (
            {
                TOTAL: "4",
                LOCAL: "2",
                OFFSET: "1",
            },
            "a multiple of the 2",
        ),
        (
            {
                TOTAL: "4",
                LOCAL: "2",
                OFFSET: "4",
            },
            "process 2 of 2.*from 0 to 1. Correct POPDIST_REPLICA_INDEX_OFFSET and",
        ),
        (
            {TOTAL: "4", UNIFORM: "0"},
            "different numbers of replicas",
        ),
        ({WORLD_SIZE: "2", RANK: "2"}, "process 2 of 2.*Correct RANK and WORLD_SIZE"),
    ],
)
def test_launch_when_variables_contradict_each_other_then_refuses(variables, text, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Error, match=text):
        read_launch()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "The address at which the processes meet is not set"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "'no.such.host.invalid'.*is not known here"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "MASTER_PORT must be a port"),
        (
            {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "POPTORCH_EMU_TIMEOUT": "1"},
            "Process 1 did not meet the 1 others at 127.0.0.1:9 within 1 s",
        ),
    ],
)
def test_meeting_when_the_master_is_not_there_then_says_so(variables, text, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Error, match=text):
        join_default_group(1, 2)


def test_interface_then_is_the_one_of_the_route():
    assert interface_towards("127.0.0.1", 80) == "lo"


@pytest.mark.parametrize("text", ["0", "-3", "soon"])
def test_timeout_when_it_is_no_positive_number_then_refuses(text, monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_TIMEOUT", text)
    with pytest.raises(Error, match="positive number of seconds"):
        timeout_seconds()


def test_interface_when_no_route_leads_there_then_says_so():
    """The test runs in a network namespace without interfaces."""
    alone = ("unshare", "--user", "--map-root-user", "--net")
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    code = (
        "from poptorch_emu.distributed.rendezvous import interface_towards\n"
        "interface_towards('10.1.2.3', 80)"
    )
    done = subprocess.run(
        [*alone, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert "No network interface leads to 10.1.2.3, where the processes meet" in done.stderr


@feature
@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (["0-3"], [{0, 1, 2, 3}] * 3),
        (["0-1,4", "2-3"], [{0, 1, 4}, {2, 3}, {0, 1, 4}]),
        # The second node has no core of this process.
        (["0,2", "64-95", "1"], [{0, 2}, {1}, {0, 2}]),
        ([], [set()] * 3),
    ],
)
def test_cores_when_numa_aware_then_those_of_the_nodes_in_turn(
    lists, expected, tmp_path, monkeypatch
):
    for number, cores in enumerate(lists):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cores}\n")
    monkeypatch.setattr(launcher, "_NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert [launcher.numa_cores(index) for index in range(3)] == expected


@feature
def test_poprun_when_verbose_and_numa_aware_then_says_what_it_starts_and_the_cores_are_the_nodes():
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    done = run_forked(
        ["-m", "poptorch_emu.poprun", "-v", "--numa-aware", "yes", "--num-instances", "1",
         sys.executable, "-c", code]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "poprun: instance 0 on " in said and sys.executable in said
    assert str(sorted(launcher.numa_cores(0) or os.sched_getaffinity(0))) in said
