"""Runs a script in several processes with the variables of a launcher, and collects its results."""

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

# Code finds modules where it is told, not in the folder that it happens to be in: `make sanitize`
# tells it where the sanitized engine is.
_PATH_ONLY = "import sys; sys.path[:] = [path for path in sys.path if path]\n"


@dataclass
class Ended:
    """What is left of a process."""

    status: int
    text: str


def popdist_variables(index: int, num_instances: int, num_local: int, port: int) -> dict[str, str]:
    """Returns what `poprun` tells an instance."""
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
    """Starts a script (a path, or code) in each instance, or each in its network namespace."""
    port = reserved_port()
    what = [script] if script.endswith(".py") else ["-c", _PATH_ONLY + script]
    variables = [
        {**popdist_variables(index, num_instances, num_local, port), **(more or {})}
        for index in range(num_instances)
    ]
    # A sanitizer has a thread of its own, so that its processes are not forked.
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
    """Waits for all; none outlives this."""
    try:
        texts = [process.communicate(timeout=seconds)[0] for process in processes]
        return [Ended(p.wait(), text) for p, text in zip(processes, texts, strict=True)]
    finally:
        end(processes)


_reserved: list[socket.socket] = []


def reserved_port() -> int:
    """Returns a port of this machine that nobody gets by chance while this process lives.

    It is bound and does not listen, which lets a server that reuses addresses have it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("0.0.0.0", 0))
    _reserved.append(held)
    return int(held.getsockname()[1])


def results_of(folder: Path, num_instances: int) -> list[Any]:
    """Returns what each instance saved as `result_<index>.pt`."""
    return [torch.load(folder / f"result_{index}.pt") for index in range(num_instances)]
