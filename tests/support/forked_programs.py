"""Runs programs in processes forked from one that has loaded PyTorch and this package.

To load them takes seconds, which most programs of the tests spend on nothing else. A program that
is about a fresh interpreter, what it imports or the environment then, needs one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
_LONGEST_REQUEST = 1 << 17
# Read when the package or OpenMP is loaded, which is before a program is known.
_READ_AT_IMPORT = ("POPTORCH_LOG_LEVEL", "POPTORCH_LOG_DEST", "OMP_NUM_THREADS")


def python_path() -> str:
    """Returns where modules are found: first where this process was told, then in the sources."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([inherited] if inherited else []), str(ROOT), str(ROOT / "tests")])


class ForkedProgram:
    """A program that runs, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str | os.PathLike[str] = ".",
        *,
        merges_errors: bool = False,
    ) -> None:
        """Starts it.

        Args:
            arguments: of Python: a script, `-m` and a module or `-c` and code, and what that gets.
            environment: all of it.
            folder: that the program works in.
            merges_errors: whether its errors go where its output goes.
        """
        server = _server()
        for name in _READ_AT_IMPORT:
            if environment.get(name) != server.environment.get(name):
                raise ValueError(f"{name} is read by an import that a forked program does not do.")
        self.returncode: int | None = None
        self.stdout = tempfile.TemporaryFile("w+")
        self.stderr = None if merges_errors else tempfile.TemporaryFile("w+")
        self._status, theirs = socket.socketpair()
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.path.abspath(folder),
        }
        files = [self.stdout, self.stderr or self.stdout, theirs]
        with theirs:
            message = json.dumps(request).encode()
            socket.send_fds(server.requests, [message], [file.fileno() for file in files])
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

    def kill(self) -> None:
        """Ends the program, what is stopped too."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns all output and errors when the program has ended."""
        self.wait(timeout)
        return _text(self.stdout), _text(self.stderr) if self.stderr else ""


def run_forked(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str | os.PathLike[str] = ".",
    *,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, which comes after `timeout` seconds at the latest."""
    program = ForkedProgram(arguments, environment, folder)
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
    file.seek(0)
    return file.read()


@dataclass(frozen=True)
class _Server:
    requests: socket.socket
    environment: Mapping[str, str]


@functools.cache
def _server() -> _Server:
    """Starts the process that forks programs; it ends with this one."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {
        **{name: text for name, text in os.environ.items() if name not in _READ_AT_IMPORT},
        "PYTHONPATH": python_path(),
        "OMP_NUM_THREADS": "1",
    }
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.forked_programs", str(theirs.fileno())],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def finish() -> None:
        requests.close()
        process.wait()

    atexit.register(finish)
    return _Server(requests, environment)


def _next_program(requests: socket.socket) -> dict[str, Any] | None:
    """Forks a process for each request; returns the request there, and `None` here at the end."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not requests:
                    _tell_status(waiting, key)
                    continue
                message, files, *_ = socket.recv_fds(requests, _LONGEST_REQUEST, 3)
                if not message:
                    return None
                program = os.fork()
                if program == 0:
                    for number, file in enumerate(files[:2], 1):
                        os.dup2(file, number)
                    for file in (*files, *(each.fd for each in waiting.get_map().values())):
                        os.close(file)
                    return dict(json.loads(message))
                for file in files[:2]:
                    os.close(file)
                os.write(files[2], f"{program}\n".encode())
                ended = os.pidfd_open(program)
                waiting.register(ended, selectors.EVENT_READ, (program, files[2]))


def _tell_status(waiting: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Tells how a program has ended to the process that waits for it."""
    program, teller = key.data
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    waiting.unregister(key.fileobj)
    os.close(key.fd)
    with contextlib.suppress(BrokenPipeError):  # Who started it has ended.
        os.write(teller, f"{status}\n".encode())
    os.close(teller)


def _run(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Is, from here on, the program."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], folder
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), module.__dict__)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    # The one who started this ends it, and Ctrl-C reaches that one too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    __import__("poptorch_emu")
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("A process with threads cannot be forked: forked_programs")
    gc.freeze()  # Programs neither look through what they share nor copy it.
    _program = _next_program(socket.socket(fileno=int(sys.argv[1])))
    if _program is not None:
        _run(**_program)
