"""Processes on several hosts, under other launchers, and from an unchanged program."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support import failing_processes, process_training
from support.forked_programs import (
    FINALIZED,
    FORKED_PYTHON,
    FORKED_RUNNER,
    end,
    python_path,
    run_forked,
)
from support.processes import Process, finish, reserved_port, results_of, start

feature = pytest.mark.feature("poprun", fidelity="exact")
SCRIPT = process_training.__file__
ADDRESSES = ("10.213.77.1", "10.213.77.2")


def run(arguments: list[str], **more: str) -> str:
    """Returns the output of a launcher or a program."""
    done = run_forked(arguments, {**FINALIZED, **more})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_fresh(command: list[str], **more: str) -> str:
    """Returns the output of a command, which runs in a session that ends with it."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", **more},
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output + errors
    return output


def have_same_bits(results: list[dict], alone: dict) -> bool:
    return all(
        torch.equal(result[case]["weights"][name], value)
        for result in results
        for case, found in alone.items()
        for name, value in found["weights"].items()
    )


@contextlib.contextmanager
def namespaces(name: str) -> Iterator[dict[str, str]]:
    """Two network namespaces, joined by a pair of virtual interfaces and by nothing else.

    Yields their addresses by their names; the second one's interface is `emu-veth-b`.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("Network namespaces need root and the command ip.")
    alpha, beta = (f"emu-{name}-{os.getpid()}-{end}" for end in ("alpha", "beta"))
    hosts = dict(zip((alpha, beta), ADDRESSES, strict=True))
    made = subprocess.run(["ip", "netns", "add", alpha], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"This system makes no network namespaces: {made.stderr.decode().strip()}")
    try:
        ip = [
            f"netns add {beta}",
            f"link add emu-veth-a netns {alpha} type veth peer name emu-veth-b netns {beta}",
            f"-n {alpha} addr add {hosts[alpha]}/24 dev emu-veth-a",
            f"-n {beta} addr add {hosts[beta]}/24 dev emu-veth-b",
            *(f"-n {host} link set lo up" for host in hosts),
            f"-n {alpha} link set emu-veth-a up",
            f"-n {beta} link set emu-veth-b up",
        ]
        for line in ip:
            result = subprocess.run(
                ["ip", *line.split()], capture_output=True, text=True, check=False
            )
            if result.returncode:
                pytest.skip(f"`ip {line}` fails here: {result.stderr.strip()}")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


@dataclass
class LosingTheLink:
    """Processes on two hosts whose link goes down, and their folder."""

    processes: list[Process]
    folder: Path


@pytest.fixture(scope="module")
def losing_the_link(tmp_path_factory) -> Iterator[LosingTheLink]:
    folder = tmp_path_factory.mktemp("link")
    with namespaces("link") as hosts:
        more = {
            "MASTER_ADDR": next(iter(hosts.values())),
            "POPTORCH_EMU_TIMEOUT": "6",
            "TEST_INTERFACE": "emu-veth-b",
        }
        script = failing_processes.__file__
        processes = start(script, ["link", str(folder)], 2, 1, more, tuple(hosts))
        yield LosingTheLink(processes, folder)
        end(processes)


@pytest.fixture(scope="module", autouse=True)
def _meanwhile(request: pytest.FixtureRequest) -> None:
    """Lets other tests run while processes wait for their timeout."""
    with contextlib.suppress(pytest.skip.Exception):
        request.getfixturevalue("losing_the_link")


@feature
def test_poprun_on_two_hosts_then_the_bits_are_those_of_one_process(tmp_path):
    with namespaces("poprun") as hosts:
        check_bits_on(hosts, tmp_path)


def check_bits_on(hosts: dict[str, str], tmp_path: Path) -> None:
    first, cases = next(iter(hosts)), ["adamw", "dropout"]
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    run_fresh(
        ["ip", "netns", "exec", first, sys.executable, "-m", "poptorch_emu.poprun",
         "--host", ",".join(hosts), "--instances-per-host", "2",
         "--start-command", "ip netns exec {host}",
         sys.executable, SCRIPT, str(together), *cases],
        POPTORCH_EMU_LAUNCHER_ADDR=hosts[first],
        POPTORCH_EMU_TIMEOUT="60",
    )  # fmt: skip
    run([SCRIPT, str(alone), *cases], POPDIST_NUM_TOTAL_REPLICAS="4")
    assert have_same_bits(results_of(together, 4), results_of(alone, 1)[0])


@feature
def test_torchrun_then_programs_join_as_under_poprun(tmp_path):
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    run(
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--no-python", *FORKED_PYTHON, SCRIPT, str(together), "sgd"]
    )  # fmt: skip
    run([SCRIPT, str(alone), "sgd"], POPDIST_NUM_TOTAL_REPLICAS="2")
    assert have_same_bits(results_of(together, 2), results_of(alone, 1)[0])


# `mpirun` merges the outputs of its processes in the midst of lines, so each writes a file.
MPI_PROGRAM = """
import sys, torch, poptorch_emu as poptorch
from support.process_training import Model
options = poptorch.Options()
torch.manual_seed(0)
model = Model(1, 0.0, False)
trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
trainer(torch.full((1, 5), 1.0 + options.Distributed.processId), torch.ones(1, 3))
distributed = options.Distributed
result = {"processes": distributed.numProcesses, "weight": model.first.weight.detach().clone()}
torch.save(result, f"{sys.argv[1]}/result_{distributed.processId}.pt")
"""


@pytest.mark.feature("Options.Distributed", fidelity="exact")
def test_mpirun_then_options_join_by_its_variables(tmp_path):
    if shutil.which("mpirun") is None:
        pytest.skip("There is no mpirun (Debian: apt-get install openmpi-bin).")
    run_fresh(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
         sys.executable, "-c", MPI_PROGRAM, str(tmp_path)],
        MASTER_PORT=str(reserved_port()),
    )  # fmt: skip
    first, second = results_of(tmp_path, 2)
    assert first["processes"] == second["processes"] == 2
    assert torch.equal(first["weight"], second["weight"])


UNCHANGED_PROGRAM = """
import os, sys, torch, popdist, popdist.poptorch, poptorch, horovod.torch as hvd
if popdist.isPopdistEnvSet():
    popdist.init()
    hvd.init()
    options = popdist.poptorch.Options()
else:
    options = poptorch.Options().replicationFactor(2)
options.randomSeed(1)
path = sys.argv[1]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x, y):
        return poptorch.identity_loss(torch.nn.functional.mse_loss(self.layer(x), y), "mean")

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.arange(64.).reshape(16, 4) / 64, torch.ones(16, 2))
model = Net()
trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
loader = poptorch.DataLoader(options, data, batch_size=2, shuffle=False)
for x, y in loader:
    loss = trainer(x, y)
popdist.execute_on_instances({0}, torch.save, model.state_dict(), path)
popdist.synchronize()
again = torch.load(path)
mean = hvd.allreduce(torch.tensor([float(popdist.getInstanceIndex())]))
print("DONE", len(loader), again["layer.weight"].equal(model.layer.weight), mean.item())
"""


@feature
def test_poprun_of_an_unchanged_program_with_loader_and_checkpoint(tmp_path):
    text = run(
        ["-m", "poptorch_emu.poprun", "--num-instances", "2",
         sys.executable, "-c", UNCHANGED_PROGRAM, str(tmp_path / "checkpoint.pt")]
    )  # fmt: skip
    lines = sorted(line for line in text.splitlines() if "DONE" in line)
    assert lines == [f"[{index}] DONE 4 True 0.5" for index in (0, 1)]


# The group is the one that the connection creates, or one of the program's own. The program still
# uses the group at its exit.
SUMS_AT_THE_END = """
import atexit, pathlib, sys, torch
import torch.distributed as dist
def tell():
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    print("LEFT", sum("gloo" in name for name in names))
atexit.register(tell)
if sys.argv[1:] == ["own"]:
    dist.init_process_group("gloo")
    def meet():
        dist.barrier()
        dist.destroy_process_group()
        print("MET")
    atexit.register(meet)
import horovod.torch as hvd
hvd.init()
print("SUM", hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item())
tell()
"""


@feature
@pytest.mark.parametrize("group", ["made", "own"])
def test_horovod_when_its_sum_is_the_last_act_then_no_thread_outlives_the_interpreter(group):
    """A thread that still holds a tensor aborts if the interpreter has ended before."""
    text = run(
        ["-m", "poptorch_emu.poprun", "--num-instances", "2",
         *FORKED_RUNNER, "-c", SUMS_AT_THE_END, *([group] if group == "own" else [])]
    )  # fmt: skip
    for index in (0, 1):
        told = [line for line in text.splitlines() if line.startswith(f"[{index}] ")]
        assert f"[{index}] SUM 3.0" in told
        assert (f"[{index}] MET" in told) is (group == "own")
        during, after = (int(line.split()[-1]) for line in told if "LEFT" in line)
        assert during > 0
        assert after == 0


@feature
def test_processes_when_the_link_goes_down_in_a_window_then_both_say_so_after_the_timeout(
    losing_the_link,
):
    ended = finish(losing_the_link.processes)
    for index, (status, text) in enumerate((each.status, each.text) for each in ended):
        path = losing_the_link.folder / f"saw_{index}.json"
        assert path.exists(), text
        saw = json.loads(path.read_text())
        assert 5 < saw["seconds"] < 30
        named = f"Process {1 - index} on {re.escape(socket.gethostname())} failed: "
        silent = r"it was silent for 6 s \(POPTORCH_EMU_TIMEOUT\)"
        assert re.search(named + silent, saw["message"])
        assert saw["again"] == saw["message"]
        assert 0 < saw["loss_alone"] < 10
        assert status == 1
