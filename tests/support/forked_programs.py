"""Runs programs in processes forked from one that has loaded PyTorch and this package.

Loading both takes seconds, which most test programs do not need to spend. A program that tests the
import of the package, or the environment at that time, is forked from a process that has loaded
PyTorch only. A program that tests a fresh interpreter needs its own. Programs end without
finalising Python, which would take ten times as long as everything else. Tests of finalisation
request it by the variables `FINALIZED`.
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
# Value of `loaded` for a program that imports the package itself.
PYTORCH = "torch"
# Variables that are read when a module is loaded, which is before a program's variables are set.
_READ_AT_IMPORT = {
    PYTORCH: {"OMP_NUM_THREADS"},
    "poptorch_emu": {"POPTORCH_LOG_LEVEL", "POPTORCH_LOG_DEST", "OMP_NUM_THREADS"},
}
# Variables that an import of the package sets; a program that imports it must not inherit them.
_SET_BY_IMPORT = {"RDMAV_FORK_SAFE"}
# Variables that make Python finalise at the end of a program and of programs that it starts.
FINALIZED = {FINALIZES: "1"}


def python_path() -> str:
    """Returns the search path of modules: first this process's PYTHONPATH, then the sources."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([inherited] if inherited else []), str(ROOT), str(ROOT / "tests")])


# Command for a forked program to start another Python program, without loading the package again.
# Its first word is not a name of Python, because `poprun` would add its runner to such a command.
FORKED_PYTHON = ("env", sys.executable, "-IS", str(Path(__file__).with_name("forked_python.py")))

# Command with the runner, which `poprun` would add to a Python program.
FORKED_RUNNER = (*FORKED_PYTHON, "-m", "poptorch_emu")


class ForkedProgram:
    """A running program, with the methods of `subprocess.Popen` that tests need."""

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
        """Starts the program.

        Args:
            arguments: arguments of Python: a script, `-m` and a module or `-c` and code, and the
                program's own arguments.
            variables: environment variables beside those of this process.
            folder: working directory of the program.
            loaded: module that is already loaded: the package, or `PYTORCH`.
            merges_errors: whether stderr is written to the same file as stdout.
            errors: descriptor of a file for stderr, such as a terminal.
            leads_session: whether the program starts its own session and process group.
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
        """Returns the server's next line, which is the process id and later the status."""
        line = b""
        while not line.endswith(b"\n"):
            more = self._status.recv(1)
            if not more:
                raise RuntimeError("The server of forked programs has ended.")
            line += more
        return line.decode()

    def poll(self) -> int | None:
        """Returns the status; `None` while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the program has ended, and returns the status."""
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
        """Ends the program, even if it is stopped."""
        self.send_signal(signal.SIGKILL)

    def output(self) -> str:
        """Returns the output so far."""
        return _text(self.stdout)

    def errors(self) -> str:
        """Returns the text on stderr so far, if stderr has its own file."""
        return _text(self.stderr) if self.stderr else ""

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits until the program has ended, and returns all output and errors."""
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
    """Runs a program to its end, for at most `timeout` seconds."""
    program = ForkedProgram(arguments, variables, folder, loaded=loaded)
    try:
        output, errors = program.communicate(timeout)
        return subprocess.CompletedProcess(arguments, program.wait(), output, errors)
    finally:
        end([program])


def end(programs: Sequence[ForkedProgram | subprocess.Popen[str]]) -> None:
    """Ends all programs that still run, even if they are stopped."""
    for program in programs:
        if program.poll() is None:
            program.kill()
            program.wait()
        for file in (program.stdout, program.stderr):
            if file is not None:
                file.close()


def _text(file: IO[str]) -> str:
    """Returns the contents of a file without moving the position at which others write."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode()


def _environment(loaded: str) -> dict[str, str]:
    gone = _READ_AT_IMPORT["poptorch_emu"] | (_SET_BY_IMPORT if loaded == PYTORCH else set())
    inherited = {name: text for name, text in os.environ.items() if name not in gone}
    own = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    # The socket is in the abstract namespace, so that no file is left behind.
    return {**inherited, **own, "FORKING_SERVER": f"forked programs {os.getpid()} {loaded}"}


@functools.cache
def _server(loaded: str) -> socket.socket:
    """Starts the process that forks programs and ends with this one; returns the socket to it."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The compiler is loaded in advance, because optimisers and rare operations load it.
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
