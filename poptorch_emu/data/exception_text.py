"""An exception of a worker process as text, for the error that its accessor raises."""

from __future__ import annotations

import logging
import traceback

from poptorch_emu.log import logger
from poptorch_emu.trace.source_line import is_users_file

# What `text_of_exception` begins the traceback with.
WHERE = "In the worker process:"
_TITLE = "Traceback (most recent call last)"


def text_of_exception(error: BaseException) -> str:
    """Returns what an exception says and where it comes from, each of them once.

    Of the traceback only the frames of the dataset's own files are told, unless POPTORCH_LOG_LEVEL
    is DEBUG.
    """
    told = traceback.TracebackException.from_exception(error)
    what = "".join(told.format_exception_only()).strip()
    if _TITLE in what:  # It comes from a helper process, and tells the traceback of that one.
        return what
    if not logger.isEnabledFor(logging.DEBUG):
        told.stack[:] = [frame for frame in told.stack if is_users_file(frame.filename)]
        if not told.stack and told.__cause__ is None and told.__context__ is None:
            return what
    where = "".join(told.format()).strip().removesuffix(what).rstrip()
    return f"{what}\n\n{WHERE}\n{where}"
