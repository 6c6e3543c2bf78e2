"""Whether a worker process that is not forked could import the program that starts it.

Such a process begins by importing the program, under another name than `__main__`. There it finds
the class of the dataset, and runs whatever is not under `if __name__ == "__main__":`.
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
# Source: EX_CONFIG of sysexits.h; nothing else ends a worker so.
UNGUARDED_STATUS = 78
GUARD = (
    "An asynchronous DataLoader or accessor starts a process that imports the program, and the "
    "program starts another one when it is imported. Put its main part under "
    f"`if __name__ == '__main__':`; {Topic.UNGUARDED_MAIN}"
)


def end_if_unguarded() -> None:
    """Ends a worker that would start a worker while it imports the program; its parent says why."""
    process = current_process()
    if process.name == WORKER_NAME and getattr(process, "_inheriting", False):
        sys.stdout.flush()
        os._exit(UNGUARDED_STATUS)


def check_importable(dataset: Any) -> None:
    """Checks that what a dataset needs is not defined where no process can import it from.

    Raises:
        Error: it is defined in a notebook or at a prompt.
    """
    main = sys.modules["__main__"]
    # Python names what it reads from a pipe "<stdin>".
    is_file = os.path.exists(getattr(main, "__file__", None) or "<none>")
    if getattr(main, "__spec__", None) is not None or is_file:
        return
    pickler = _Pickler(_Nowhere())
    try:
        pickler.dump(dataset)
    except Exception:
        return  # It is refused for that, with its reason, when it is sent.
    if pickler.names:
        raise make_error(
            f"The dataset needs {', '.join(pickler.names)}, defined in a notebook, at a prompt or "
            "in code that is no file: a worker process cannot import that. Move it to a module, a "
            ".py file beside the notebook, and import it from there; or fork the worker, by "
            'async_options={"sharing_strategy": poptorch.SharingStrategy.Fork}; '
            f"{Topic.UNSENDABLE_DATASET}"
        )


class _Nowhere(io.RawIOBase):
    """Takes bytes and keeps none."""

    def write(self, data: Any) -> int:
        return len(data)


class _Pickler(pickle.Pickler):
    """Notes the classes and functions of the main program that an object needs."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.names: dict[str, None] = {}

    def reducer_override(self, value: Any) -> Any:
        """Looks at what is pickled by its name."""
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            self.names[value.__qualname__] = None
        return NotImplemented
