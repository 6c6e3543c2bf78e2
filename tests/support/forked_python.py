"""Replaces the interpreter if a program starts others: the server forks a process instead.

Usage: `python -IS forked_python.py ARGUMENTS`, in a program of `forked_programs` and in programs
    that
it starts. It needs no module that takes long to load.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Ends with the program's status; if this process is ended, the program is, too."""
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    requests.connect("\0" + os.environ["FORKING_SERVER"])
    told, theirs = socket.socketpair()
    request = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "leads_session": False,
    }
    with theirs:
        socket.send_fds(requests, [json.dumps(request).encode()], [1, 2, theirs.fileno()])
    lines = told.makefile()
    program = int(lines.readline())
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(program, number))
    status = int(lines.readline())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
