"""Checks that processes agree on options, program and weights before they train together."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.distributed.connection import Connection
from poptorch_emu.errors import make_error
from poptorch_emu.tensor_bytes import bytes_of
from poptorch_emu.untrusted.json_types import COUNT, type_fault
from poptorch_emu.untrusted.texts import printable


def common_seed(connection: Connection, model: int) -> int:
    """Returns an unpredictable seed that is the same in all processes."""
    key = f"seed/{model}"
    if connection.process == 0:
        connection.write(key, str(int.from_bytes(os.urandom(7), "little")))
    return int(_parsed(connection.read(key), COUNT, key))


def compare(connection: Connection, model: int, facts: Mapping[str, str]) -> None:
    """Compares the facts of all processes.

    Each process compares with process 0, and process 0 compares with all.

    Args:
        connection: connection to the other processes.
        model: number of the model.
        facts: facts by their name in messages; the first difference is reported.

    Raises:
        Error: a fact differs between two processes.
    """
    connection.write(f"facts/{model}/{connection.process}", json.dumps(dict(facts)))
    peers = range(1, connection.num_processes) if connection.process == 0 else (0,)
    for peer in peers:
        key = f"facts/{model}/{peer}"
        theirs = _parsed(connection.read(key), {str: str}, key)
        difference = _difference(facts, theirs, peer, connection.process)
        if difference:
            text = (
                f"Process {peer} on {connection.host_of(peer)} and process {connection.process} on "
                f"{connection.host} train different models: {difference}. Give all processes the "
                "same model, options, inputs and weights (set the seed before the model is made)."
            )
            connection.fail(text)
            raise make_error(text)


def _parsed(message: str, expected: Any, key: str) -> Any:
    """Returns the JSON value that another process wrote under a key."""
    try:
        value = json.loads(message)
        fault = type_fault(value, expected, "it")
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault:
        raise make_error(
            f"The message '{key}' from another process is invalid: {printable(fault)}. Use the "
            "same version of poptorch_emu in all processes."
        )
    return value


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str], peer: int, process: int) -> str:
    for name in [*ours, *theirs]:
        mine, other = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if mine != other:
            text = f"{name} is {other} in process {peer} and {mine} in process {process}"
            return printable(text)
    return ""


def digest_of(tensor: torch.Tensor) -> str:
    """Returns a hash of the values of a tensor as text."""
    value = bytes_of(tensor.cpu()).numpy()
    return f"{tuple(tensor.shape)} #{hashlib.blake2b(value.data, digest_size=8).hexdigest()}"
