"""The connection of a session to other processes that train the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from poptorch_emu import _C
from poptorch_emu.compile.executable import Executable
from poptorch_emu.distributed.agreement import common_seed, compare, digest_of
from poptorch_emu.distributed.connection import Connection, connect
from poptorch_emu.errors import Error


class PeerProcesses:
    """The processes that train one model together with this process.

    Attributes:
        ring: connection through which the engine reaches the other processes.
    """

    def __init__(self, executable: Executable, connection: Connection) -> None:
        """Gives the model its number, which is the same in all processes."""
        self._connection = connection
        self._executable = executable
        self._model = connection.next_model()
        self._is_compared = False
        self.ring = _C.Ring(connection.group_name, self._model, connection.timeout_seconds)
        connection.add(self.ring)

    def seed(self) -> int:
        """Returns the seed that process 0 has chosen."""
        return common_seed(self._connection, self._model)

    def compare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Checks, at the first upload, that all processes train the same model.

        Raises:
            Error: another process has a different program, options or weights.
        """
        self._connection.check()
        if self._is_compared:
            return
        self._is_compared = True
        facts: dict[str, str] = {}
        for part, lines in self._executable.key.parts.items():
            if part != "places in the code":
                for index, line in enumerate(lines):
                    facts.update([_fact(part, index, line)])
        for name, variable in self._executable.variables.items():
            if name in tensors and not variable.is_per_replica:
                facts[f"tensor '{name}'"] = digest_of(tensors[name])
        compare(self._connection, self._model, facts)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Reports failures in the context to other processes, and names the process that failed.

        Raises:
            Error: this or another process failed, before or in the context.
        """
        self._connection.check()
        self._connection.num_calls += 1
        try:
            yield
        except Error as error:
            explained = self._connection.explained(error, self.ring)
            if explained is error:
                raise
            raise explained from error
        except BaseException as error:
            line = (str(error).splitlines() or [""])[0]
            self._connection.fail(f"{type(error).__name__}: {line}")
            raise


def join(executable: Executable) -> PeerProcesses | None:
    """Returns the processes that train together with a program; `None` if it trains alone."""
    config = executable.config
    if not config.is_distributed:
        return None
    return PeerProcesses(executable, connect(config.process_id, config.num_processes))


def _fact(part: str, index: int, line: str) -> tuple[str, str]:
    """Returns (name, value) of a line in the program's key."""
    if part == "options":
        name, _, value = line.partition("=")
        return f"option {name}", value
    return f"line {index} of its {part}", line
