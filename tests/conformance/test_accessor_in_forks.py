"""Asynchronous accessors in a process that forks: their ends, and the right to iterate."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from support import forked_programs
from support.accessor_data import FORK, Make, Numbers, wait_until
from support.forked_programs import FINALIZED, ForkedProgram

import poptorch_emu as poptorch
from poptorch_emu.data.accessor_link import Kind, LinkClosed, new_links

pytestmark = [
    pytest.mark.feature("AsynchronousDataAccessor", fidelity="exact"),
    # Newer versions of Python warn about a fork of a process with threads.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


MAX_SECONDS = 15


def forked(action: Callable[[], object]) -> int:
    """Returns the id of a child that does `action` and then waits for a signal to end it."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(MAX_SECONDS)
            action()
            signal.pause()
        finally:
            os._exit(1)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_accessor_when_used_in_a_child_then_refused_and_the_parents_goes_on(make: Make) -> None:
    iterator = iter(make(Numbers(9), buffer_size=2))
    held = [next(iterator) for _ in range(3)][-1]
    receiver, sender = os.pipe()

    def iterate() -> None:
        for use in (next, iter):
            try:
                use(iterator)
            except poptorch.Error as error:
                os.write(sender, b"refused\n" * ("Create a new one" in str(error)))
        os.close(sender)

    child = forked(iterate)
    os.close(sender)
    with os.fdopen(receiver) as answers:
        assert answers.readlines() == ["refused\n"] * 2
    end(child)

    assert held.tolist() == [2]
    assert [next(iterator).item() for _ in range(6)] == list(range(3, 9))


SCRIPT = """
import os, signal
import torch
import poptorch_emu as poptorch

if __name__ == "__main__":
    accessor = poptorch.AsynchronousDataAccessor(
        [torch.zeros(1)], sharing_strategy=poptorch.SharingStrategy.Fork)
    child = os.fork()
    if child == 0:
        signal.alarm(15)
        signal.pause()
    print(accessor._accessor._process.pid, child, flush=True)
    signal.pause()
"""


def test_worker_when_parent_is_killed_then_ends_though_another_child_lives() -> None:
    program = ForkedProgram(["-c", SCRIPT], FINALIZED)
    try:
        assert wait_until(lambda: program.output().endswith("\n"))
        worker, child = map(int, program.output().split())
    finally:
        forked_programs.end([program])
    try:
        assert wait_until(lambda: not is_running(worker))
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_worker_when_another_thread_forks_at_its_start_then_its_end_is_seen() -> None:
    accessors, workers = new_links()
    workers.close_when_forked(unless_by_this_thread=True)
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.append(forked(lambda: None)))
    thread.start()
    thread.join()
    own = forked(lambda: workers.send(Kind.WAKE))
    workers.close()

    assert accessors.receive() == (Kind.WAKE, None)
    assert not accessors.has_message()
    end(own)
    assert accessors.has_message(10)
    with pytest.raises(LinkClosed):
        accessors.receive()
    end(*others)
    accessors.close()


def test_loader_when_children_come_and_go_then_its_worker_stays() -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(),
        Numbers(6),
        mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": FORK},
    )
    for element, expected in zip(loader, range(6), strict=True):
        child = os.fork()
        if child == 0:
            try:
                loader.terminate()
                del loader
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert element.item() == expected
    loader.terminate()
