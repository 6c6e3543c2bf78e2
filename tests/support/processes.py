"""Runs a script in several processes with a launcher's variables, and collects the results."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.forked_programs import ForkedProgram, end, python_path

Process = ForkedProgram | subprocess.Popen[str]

# Removes the current folder from the search path, so that only PYTHONPATH counts: `make sanitize`
# sets it to the sanitized engine.
_PATH_ONLY = "import sys; sys.path[:] = [path for path in sys.path if path]\n"


@dataclass
class Ended:
    """The status and the output of a process that has ended."""

    status: int
    text: str


def popdist_variables(index: int, num_instances: int, num_local: int, port: int) -> dict[str, str]:
    """Returns the variables that `poprun` sets for an instance."""
    return {
        "POPDIST_NUM_TOTAL_REPLICAS": str(num_instances * num_local),
        "POPDIST_NUM_LOCAL_REPLICAS": str(num_local),
        "POPDIST_NUM_IPUS_PER_REPLICA": "1",
        "POPDIST_REPLICA_INDEX_OFFSET": str(index * num_local),
        "POPDIST_LOCAL_INSTANCE_INDEX": str(index),
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(
    script: str,
    arguments: Sequence[str],
    num_instances: int,
    num_local: int,
    more: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
) -> list[Process]:
    """Starts a script (a path, or code) in each instance, optionally in network namespaces."""
    port = reserved_port()
    what = [script] if script.endswith(".py") else ["-c", _PATH_ONLY + script]
    variables = [
        {**popdist_variables(index, num_instances, num_local, port), **(more or {})}
        for index in range(num_instances)
    ]
    # A sanitizer has its own thread, and a process with threads cannot be forked.
    if not hosts and "LD_PRELOAD" not in os.environ:
        return [ForkedProgram([*what, *arguments], each, merges_errors=True) for each in variables]
    enter = [["ip", "netns", "exec", host] for host in hosts] or [[]] * num_instances
    common = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [*before, sys.executable, *what, *arguments],
            env={**common, **each},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for before, each in zip(enter, variables, strict=True)
    ]


def finish(processes: Sequence[Process], seconds: float = 200) -> list[Ended]:
    """Waits for all processes, and ends those that take too long."""
    try:
        texts = [process.communicate(timeout=seconds)[0] for process in processes]
        return [Ended(p.wait(), text) for p, text in zip(processes, texts, strict=True)]
    finally:
        end(processes)


_reserved: list[socket.socket] = []


def reserved_port() -> int:
    """Returns a port that no other program gets by chance while this process lives.

    The port is bound but not listened on, so that a server that reuses addresses can have it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("0.0.0.0", 0))
    _reserved.append(held)
    return int(held.getsockname()[1])


def results_of(folder: Path, num_instances: int) -> list[Any]:
    """Returns the values that each instance saved as `result_<index>.pt`."""
    return [torch.load(folder / f"result_{index}.pt") for index in range(num_instances)]
