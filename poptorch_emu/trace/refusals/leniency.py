"""Warnings for uses that PopTorch rejects and this package runs: one for each user's line.

In strict mode ("error"), PopTorch's error is raised instead.
"""

from __future__ import annotations

from poptorch_emu.errors import Error
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import current_autograd_node
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.refusals import strict
from poptorch_emu.troubleshooting import before_hint

_told: set[tuple[str, str]] = set()


def start() -> None:
    """Forgets the warnings of an earlier trace."""
    _told.clear()


def tolerate(kind: str, error: Error, instead: str) -> None:
    """Warns with the text of `error`, and says what happens instead.

    Args:
        kind: kind of use that is tolerated. Each line of the user gets one warning of each kind.
        error: the error that PopTorch would raise.
        instead: sentence about the behaviour of this package.

    Raises:
        Error: strict mode is on.
    """
    if strict.raises_errors():
        raise error
    is_backward = current_autograd_node() is not None  # Forward has already warned.
    place = (kind, user_source())
    if place not in _told and not is_backward:
        _told.add(place)
        logger.warning("%s", before_hint(error.message, instead))
