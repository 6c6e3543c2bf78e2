"""An exception of a worker process as text, for the error that its accessor raises."""

from __future__ import annotations

import logging
import traceback

from poptorch_emu.log import logger
from poptorch_emu.trace.places.source_line import is_users_file

# First line of the traceback in `text_of_exception`.
WHERE = "In the worker process:"
_TITLE = "Traceback (most recent call last)"


def text_of_exception(error: BaseException) -> str:
    """Returns the message and the traceback of an exception, each once.

    The traceback only has the frames of the dataset's own files, unless POPTORCH_LOG_LEVEL is
    DEBUG.
    """
    told = traceback.TracebackException.from_exception(error)
    title = "".join(told.format_exception_only()).strip()
    if _TITLE in title:  # The text of a helper process, which has its traceback already.
        return title
    if not logger.isEnabledFor(logging.DEBUG):
        told.stack[:] = [frame for frame in told.stack if is_users_file(frame.filename)]
        if not told.stack and told.__cause__ is None and told.__context__ is None:
            return title
    where = "".join(told.format()).strip().removesuffix(title).rstrip()
    return f"{title}\n\n{WHERE}\n{where}"
