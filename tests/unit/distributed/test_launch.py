"""What a launcher says in variables, and what a launcher plans."""

from __future__ import annotations

import pytest

from poptorch_emu import Error
from poptorch_emu.distributed import launch
from poptorch_emu.distributed.instances import plan_instances
from poptorch_emu.distributed.meeting import interface_towards, meet, timeout_seconds

feature = pytest.mark.feature("poprun", fidelity="exact")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (
        launch.TOTAL, launch.LOCAL, launch.OFFSET, launch.UNIFORM, launch.WORLD_SIZE, launch.RANK,
        launch.LOCAL_WORLD_SIZE, launch.LOCAL_INDEX, launch.LOCAL_RANK,
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@feature
def test_instances_then_each_reads_what_the_plan_gave_it(monkeypatch):
    instances = plan_instances(3, 6, 2, ["a", "b"], 2)
    assert [i.host for i in instances] == ["a", "a", "b"]
    for number, (local_index, on_host) in enumerate([(0, 2), (1, 2), (0, 1)]):
        for name, value in instances[number].variables.items():
            monkeypatch.setenv(name, value)
        assert launch.read_launch() == launch.Launch(number, 3, local_index, 2, 2, on_host)


def test_launch_when_only_torchrun_speaks_then_each_has_one_replica(monkeypatch):
    assert not launch.is_launched()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert launch.is_launched()
    assert launch.read_launch() == launch.Launch(3, 4, 0, 1, 1, 4)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({launch.TOTAL: "5", launch.LOCAL: "2"}, "5 replicas cannot be divided"),
        ({launch.TOTAL: "4", launch.LOCAL: "2", launch.OFFSET: "1"}, "a multiple of the 2"),
        ({launch.TOTAL: "4", launch.LOCAL: "2", launch.OFFSET: "4"}, "process 2 of 2.*from 0 to 1"),
        ({launch.TOTAL: "4", launch.UNIFORM: "0"}, "different numbers of replicas"),
        ({launch.WORLD_SIZE: "2", launch.RANK: "-1"}, "process -1 of 2"),
    ],
)
def test_launch_when_variables_contradict_each_other_then_refuses(variables, text, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Error, match=text):
        launch.read_launch()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "Nothing says where the processes meet"),
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
        meet(1, 2)


def test_interface_then_is_the_one_of_the_route():
    assert interface_towards("127.0.0.1", 80) == "lo"


@pytest.mark.parametrize("text", ["0", "-3", "soon"])
def test_timeout_when_it_is_no_positive_number_then_refuses(text, monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_TIMEOUT", text)
    with pytest.raises(Error, match="positive number of seconds"):
        timeout_seconds()
