"""Runs programs in processes forked from one that has loaded PyTorch and this package.

To load them takes seconds, which most programs of the tests spend on nothing else. A program that
is about the import of the package, or the environment then, is forked from a process that has
loaded PyTorch alone. One that is about a fresh interpreter needs one of its own. A program ends
without Python taking itself down, which would take ten times as long as all else: what is about
that asks for it by the variables `FINALIZED`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from support.program_server import FINALIZES

ROOT = Path(__file__).parents[2]
# Of a program that loads the package itself, what is loaded before.
PYTORCH = "torch"
# What is read when a module is loaded, which is before a program is known.
_READ_AT_IMPORT = {
    PYTORCH: {"OMP_NUM_THREADS"},
    "poptorch_emu": {"POPTORCH_LOG_LEVEL", "POPTORCH_LOG_DEST", "OMP_NUM_THREADS"},
}
# Of a program that loads the package itself, what a process that has loaded it has set.
_SET_BY_IMPORT = {"RDMAV_FORK_SAFE"}
# Has Python take itself down at the end of a program, and of those that this one starts.
FINALIZED = {FINALIZES: "1"}


def python_path() -> str:
    """Returns where modules are found: first where this process was told, then in the sources."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([inherited] if inherited else []), str(ROOT), str(ROOT / "tests")])


# In a forked program, what to start in place of an interpreter that loads the package. It begins
# with no name of Python, in which `poprun` would see the interpreter of the program.
FORKED_PYTHON = ("env", sys.executable, "-IS", str(Path(__file__).with_name("forked_python.py")))

# As `poprun` runs what is of Python.
FORKED_RUNNER = (*FORKED_PYTHON, "-m", "poptorch_emu")


class ForkedProgram:
    """A program that runs, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] = ".",
        *,
        loaded: str = "poptorch_emu",
        merges_errors: bool = False,
        errors: int | None = None,
        leads_session: bool = False,
    ) -> None:
        """Starts it.

        Args:
            arguments: of Python: a script, `-m` and a module or `-c` and code, and what that gets.
            variables: that its environment has beside those of this process.
            folder: that the program works in.
            loaded: the module that is loaded already: the package, or `PYTORCH`.
            merges_errors: whether its errors go where its output goes.
            errors: a file that they go to, by its descriptor, such as a terminal.
            leads_session: whether it begins a session, and so a process group, of its own.
        """
        for name in _READ_AT_IMPORT[loaded].intersection(variables or ()):
            raise ValueError(f"{name} is read by an import that a forked program does not do.")
        self.returncode: int | None = None
        self.stdout = tempfile.TemporaryFile("w+")
        has_file = not merges_errors and errors is None
        self.stderr = tempfile.TemporaryFile("w+") if has_file else None
        self._status, theirs = socket.socketpair()
        request = {
            "arguments": list(arguments),
            "environment": {**_environment(loaded), **(variables or {})},
            "folder": os.path.abspath(folder),
            "leads_session": leads_session,
        }
        to_errors = errors if errors is not None else (self.stderr or self.stdout).fileno()
        with theirs:
            message = json.dumps(request).encode()
            files = [self.stdout.fileno(), to_errors, theirs.fileno()]
            socket.send_fds(_server(loaded), [message], files)
        self.pid = int(self._told())

    def _told(self) -> str:
        """Returns the next line that the server tells; it tells the process id and the status."""
        line = b""
        while not line.endswith(b"\n"):
            more = self._status.recv(1)
            if not more:
                raise RuntimeError("The server of forked programs has ended.")
            line += more
        return line.decode()

    def poll(self) -> int | None:
        """Returns the status, `None` while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the status when the program has ended."""
        if self.returncode is None:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._status, selectors.EVENT_READ)
                if not waiting.select(timeout):
                    raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            self.returncode = int(self._told())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the program, what is stopped too."""
        self.send_signal(signal.SIGKILL)

    def output(self) -> str:
        """Returns what it has put out so far."""
        return _text(self.stdout)

    def errors(self) -> str:
        """Returns what is on its stderr so far, if that has a file of its own."""
        return _text(self.stderr) if self.stderr else ""

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns all output and errors when the program has ended."""
        self.wait(timeout)
        return self.output(), self.errors()


def run_forked(
    arguments: Sequence[str],
    variables: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
    *,
    loaded: str = "poptorch_emu",
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, which comes after `timeout` seconds at the latest."""
    program = ForkedProgram(arguments, variables, folder, loaded=loaded)
    try:
        output, errors = program.communicate(timeout)
        return subprocess.CompletedProcess(arguments, program.wait(), output, errors)
    finally:
        end([program])


def end(programs: Sequence[ForkedProgram | subprocess.Popen[str]]) -> None:
    """Ends what still runs, what is stopped too."""
    for program in programs:
        if program.poll() is None:
            program.kill()
            program.wait()
        for file in (program.stdout, program.stderr):
            if file is not None:
                file.close()


def _text(file: IO[str]) -> str:
    """Returns what is in a file, without a move of the place where its writers go on."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode()


def _environment(loaded: str) -> dict[str, str]:
    gone = _READ_AT_IMPORT["poptorch_emu"] | (_SET_BY_IMPORT if loaded == PYTORCH else set())
    inherited = {name: text for name, text in os.environ.items() if name not in gone}
    own = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    # In the abstract namespace, so that nothing is left of it.
    return {**inherited, **own, "FORKING_SERVER": f"forked programs {os.getpid()} {loaded}"}


@functools.cache
def _server(loaded: str) -> socket.socket:
    """Starts the process that forks programs, which ends with this one; returns the way to it."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Optimisers of PyTorch load its compiler, and so do operations that are not common.
    modules = [loaded] if loaded == PYTORCH else [loaded, "torch._dynamo"]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.program_server", str(theirs.fileno()), *modules],
            env=_environment(loaded),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def finish() -> None:
        requests.close()
        process.wait()

    atexit.register(finish)
    return requests
