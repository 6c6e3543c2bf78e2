"""`AsynchronousDataAccessor` (api.md 15): its processes end however the program ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import forked_programs
from support.accessor_data import shared_memory_of, wait_until
from support.forked_programs import FINALIZED, ForkedProgram

pytestmark = pytest.mark.feature("AsynchronousDataAccessor", fidelity="exact")

SCRIPT = """
import signal, sys, time, warnings
import torch
import poptorch_emu as poptorch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        time.sleep(0.05)  # If shorter, programs that wait for their end slow the others.
        return torch.tensor([index])

if __name__ == "__main__":
    warnings.simplefilter("error")
    # A shell lets programs that it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = poptorch.DataLoader(
        poptorch.Options(), Slow(), num_workers=2, mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy[sys.argv[1]]})
    for index, element in enumerate(loader):
        if index == 5:
            print("ready", flush=True)
            if sys.argv[2] == "return":
                break
            if sys.argv[2] == "raise":
                raise RuntimeError("user's mistake")
"""

ENDS = {
    "return": (0, None),
    "raise": (1, None),
    "SIGINT to the group": (None, lambda process: os.killpg(process.pid, signal.SIGINT)),
    "SIGINT to the parent": (None, lambda process: process.send_signal(signal.SIGINT)),
    "SIGTERM": (-signal.SIGTERM, lambda process: process.send_signal(signal.SIGTERM)),
    "SIGKILL": (-signal.SIGKILL, lambda process: process.kill()),
}
CASES = [("Fork", end) for end in ENDS]
CASES += [("ForkServer", "SIGINT to the group"), ("ForkServer", "SIGKILL")]


def processes_of(session: int, token: str) -> list[int]:
    """Returns the living processes of a session, and those whose environment has `token`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            has_token = token.encode() in (folder / "environ").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if (has_token or int(fields[3]) == session) and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def named_memory_of(processes: list[int]) -> list[str]:
    """Returns the files of /dev/shm that PyTorch made in one of these processes."""
    return [name for pid in processes for name in os.listdir("/dev/shm") if f"torch_{pid}_" in name]


@dataclass
class Left:
    """The remains of a program that has ended: status, errors, and processes that still live."""

    status: int
    errors: str
    processes: list[int]
    shared: set[str]
    named: list[str]


def act_and_wait(process: ForkedProgram, end: str, token: str) -> Callable[[], Left]:
    """Ends a program that is ready; returns what waits until nothing is left of it.

    On a busy machine a fork server needs 10 s to end; a minute tells it from one that stays.
    """
    act = ENDS[end][1]
    others, shared = [], set()
    if act is not None:
        others = processes_of(process.pid, token)
        assert len(others) >= 2
        shared.update(*map(shared_memory_of, others))
        act(process)

    def wait() -> Left:
        process.wait(timeout=60)
        left = {
            "processes": lambda: processes_of(process.pid, token),
            "shared": lambda: shared & set(os.listdir("/dev/shm")),
            "named": lambda: named_memory_of(others),
        }
        wait_until(lambda: not any(find() for find in left.values()), 60, pause_seconds=0.1)
        found = {name: find() for name, find in left.items()}
        return Left(process.wait(), process.errors(), **found)

    return wait


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Left]:
    """The remains of each program.

    All programs end together, because their processes take seconds.
    """
    folder = tmp_path_factory.mktemp("ends")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    programs = {}
    try:
        for strategy, end in CASES:
            name = f"{folder}/{strategy} {end}"
            programs[strategy, end] = (
                name,
                ForkedProgram(
                    [str(script), strategy, end],
                    {**FINALIZED, "ACCESSOR_TEST": name},
                    leads_session=True,
                ),
            )
        for _, process in programs.values():
            assert wait_until(lambda: process.output() == "ready\n", 60)  # noqa: B023
        waits = {
            case: act_and_wait(process, case[1], f"ACCESSOR_TEST={name}\0")
            for case, (name, process) in programs.items()
        }
        return {case: wait() for case, wait in waits.items()}
    finally:
        forked_programs.end([process for _, process in programs.values()])


@pytest.mark.parametrize(("strategy", "end"), CASES, ids=[" ".join(case) for case in CASES])
def test_process_when_it_ends_then_no_other_lives_on(
    left: dict[tuple[str, str], Left], strategy: str, end: str
) -> None:
    found, expected = left[strategy, end], ENDS[end][0]
    assert not found.processes, found.errors
    assert not found.shared and not found.named
    assert found.status == expected or expected is None
    assert "leaked" not in found.errors
    if end == "return":
        assert found.errors == ""
