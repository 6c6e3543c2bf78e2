"""What PopTorch refuses and this package runs: a warning for each line of the user, once a trace.

In strict mode ("error") it is the error of PopTorch after all.
"""

from __future__ import annotations

from poptorch_emu.errors import Error
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import current_autograd_node
from poptorch_emu.trace import strict
from poptorch_emu.trace.source_line import user_source
from poptorch_emu.troubleshooting import before_hint

_told: set[tuple[str, str]] = set()


def start() -> None:
    """Forgets what an earlier trace was warned of."""
    _told.clear()


def tolerate(kind: str, error: Error, instead: str) -> None:
    """Warns with the text of `error`, and says what happens instead.

    Args:
        kind: what is tolerated; of one kind, each line of the user is warned of once.
        error: what PopTorch would raise.
        instead: what is done here.

    Raises:
        Error: strict mode asks for errors.
    """
    if strict.raises_errors():
        raise error
    is_backward = current_autograd_node() is not None  # Forward was warned already.
    place = (kind, user_source())
    if place not in _told and not is_backward:
        _told.add(place)
        logger.warning("%s", before_hint(error.message, instead))
