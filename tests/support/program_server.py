"""Forks a process for each requested program; `python -m` starts this server.

`forked_programs` sends requests over a socket that it created, and `forked_python` over a
connection.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from pathlib import Path
from typing import Any

# Variable of a program in which Python finalises at the end, as it usually does.
FINALIZES = "FORKED_PROGRAM_FINALIZES"
_LONGEST_REQUEST = 1 << 17
_RUNPY = runpy.run_path.__code__.co_filename  # Not `__file__`, because the module is frozen.


def _next_program(requests: socket.socket, listener: socket.socket) -> dict[str, Any] | None:
    """Forks a process for each request and returns the request there; returns `None` at the end."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                asking = key.fileobj
                if asking is listener:
                    waiting.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                if not isinstance(asking, socket.socket):
                    _tell_status(waiting, key)
                    continue
                message, files, *_ = socket.recv_fds(asking, _LONGEST_REQUEST, 3)
                if not message and asking is requests:
                    return None
                if not message:
                    _end_program(waiting, asking)
                    continue
                program = os.fork()
                if program == 0:
                    _take_over(waiting, files)
                    return dict(json.loads(message))
                for file in files[:2]:
                    os.close(file)
                os.write(files[2], f"{program}\n".encode())
                ended = os.pidfd_open(program)
                waiting.register(ended, selectors.EVENT_READ, (program, files[2], asking))


def _end_program(waiting: selectors.BaseSelector, connection: socket.socket) -> None:
    """Ends the program of a connection, if it runs, because its stand-in interpreter has ended."""
    for key in waiting.get_map().values():
        if key.data is not None and key.data[2] is connection:
            os.kill(key.data[0], signal.SIGKILL)
    waiting.unregister(connection)
    connection.close()


def _take_over(waiting: selectors.BaseSelector, files: list[int]) -> None:
    """Makes the first two files stdout and stderr, and closes the server's files."""
    for number, file in enumerate(files[:2], 1):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    for key in waiting.get_map().values():
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
            continue
        os.close(key.fd)
        os.close(key.data[1])


def _tell_status(waiting: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Sends the status of an ended program to the process that waits for it."""
    program, teller, _ = key.data
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    waiting.unregister(key.fileobj)
    os.close(key.fd)
    with contextlib.suppress(BrokenPipeError):  # The waiting process has ended.
        os.write(teller, f"{status}\n".encode())
    os.close(teller)


def _end(program: dict[str, Any]) -> None:
    """Runs the program in this process, and ends after all work that a program does at its end.

    Finalising Python is skipped, because it writes to nearly all shared memory and so copies it.
    """
    try:
        _run(**program)
        status = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    threading._shutdown()  # type: ignore[attr-defined]
    if "torch._dynamo.utils" in sys.modules:  # Its exit handler would load a module for nothing.
        atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # The file may be closed.
            file.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 0xFF)


def _run(
    arguments: list[str], environment: dict[str, str], folder: str, leads_session: bool
) -> None:
    """Runs the program so that its tracebacks begin in the program."""
    if leads_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]
    try:
        _execute(arguments)
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, _RUNPY):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _execute(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), module.__dict__)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    # Ignored here, because Ctrl-C also reaches the parent process, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("A process with threads cannot be forked.")
    gc.freeze()  # Programs neither scan the shared objects nor copy their memory.
    _listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _listener.bind("\0" + os.environ["FORKING_SERVER"])
    _listener.listen()
    _program = _next_program(socket.socket(fileno=int(sys.argv[1])), _listener)
    if _program is not None:
        if FINALIZES in _program["environment"]:
            _run(**_program)
        else:
            _end(_program)
