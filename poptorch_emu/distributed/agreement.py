"""What processes must agree on before they train together: options, program and weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

import torch

from poptorch_emu.distributed.connection import Connection
from poptorch_emu.errors import make_error


def common_seed(connection: Connection, model: int) -> int:
    """Returns a seed that nobody can foresee, the same in all processes."""
    key = f"seed/{model}"
    if connection.process == 0:
        connection.write(key, str(int.from_bytes(os.urandom(7), "little")))
    return int(connection.read(key))


def compare(connection: Connection, model: int, facts: Mapping[str, str]) -> None:
    """Compares facts with those of process 0, which compares with all.

    Args:
        connection: to the others.
        model: its number.
        facts: by their name, for people; the first that differs is reported.

    Raises:
        Error: a process has others.
    """
    connection.write(f"facts/{model}/{connection.process}", json.dumps(dict(facts)))
    peers = range(1, connection.num_processes) if connection.process == 0 else (0,)
    for peer in peers:
        theirs = json.loads(connection.read(f"facts/{model}/{peer}"))
        difference = _difference(facts, theirs, peer, connection.process)
        if difference:
            text = (
                f"Process {peer} on {connection.host_of(peer)} and process {connection.process} on "
                f"{connection.host} train different models: {difference}. Give all processes the "
                "same model, options, inputs and weights (set the seed before the model is made)."
            )
            connection.fail(text)
            raise make_error(text)


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str], peer: int, process: int) -> str:
    for name in [*ours, *theirs]:
        mine, other = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if mine != other:
            return f"{name} is {other} in process {peer} and {mine} in process {process}"
    return ""


def digest_of(tensor: torch.Tensor) -> str:
    """Returns a short text that other values, almost surely, do not have."""
    value = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} #{hashlib.blake2b(value.data, digest_size=8).hexdigest()}"
