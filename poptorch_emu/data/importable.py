"""Checks that a worker process which is not forked can import the program that starts it.

Such a process first imports the program, under another name than `__main__`, to find the class of
the dataset. So it runs all code that is not under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from multiprocessing import current_process
from types import FunctionType
from typing import Any

from poptorch_emu.errors import make_error
from poptorch_emu.troubleshooting import Topic

WORKER_NAME = "data accessor"
# Exit status of an unguarded program: EX_CONFIG of sysexits.h, which no other end of a worker has.
UNGUARDED_STATUS = 78
GUARD = (
    "An asynchronous DataLoader or accessor starts a process that imports the program, and the "
    "program starts another one when it is imported. Put its main part under "
    f"`if __name__ == '__main__':`; {Topic.UNGUARDED_MAIN}"
)


def end_if_unguarded() -> None:
    """Ends a worker that would start a worker while it imports the program.

    The parent process reports the reason.
    """
    process = current_process()
    if process.name == WORKER_NAME and getattr(process, "_inheriting", False):
        sys.stdout.flush()
        os._exit(UNGUARDED_STATUS)


def check_importable(dataset: Any) -> None:
    """Checks that another process can import the classes and functions of a dataset.

    Raises:
        Error: a class or function is defined in a notebook or at a prompt.
    """
    main = sys.modules["__main__"]
    # A program from a pipe has the file name "<stdin>".
    is_file = os.path.exists(getattr(main, "__file__", None) or "<none>")
    if getattr(main, "__spec__", None) is not None or is_file:
        return
    pickler = _Pickler(_Nowhere())
    try:
        pickler.dump(dataset)
    except Exception:
        return  # The later transfer to the worker fails, with the reason.
    if pickler.names:
        raise make_error(
            f"The dataset needs {', '.join(pickler.names)}, defined in a notebook, at a prompt or "
            "in code that is no file: a worker process cannot import that. Move it to a module, a "
            ".py file beside the notebook, and import it from there; or fork the worker, by "
            'async_options={"sharing_strategy": poptorch.SharingStrategy.Fork}; '
            f"{Topic.UNSENDABLE_DATASET}"
        )


class _Nowhere(io.RawIOBase):
    """A stream that discards its bytes."""

    def write(self, data: Any) -> int:
        return len(data)


class _Pickler(pickle.Pickler):
    """A pickler that records the classes and functions of the main program in an object."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.names: dict[str, None] = {}

    def reducer_override(self, value: Any) -> Any:
        """Records a value that is pickled by its name."""
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            self.names[value.__qualname__] = None
        return NotImplemented
