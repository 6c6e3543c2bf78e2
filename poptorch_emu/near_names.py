"""Which known name was probably meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# From this likeness on a name is offered: a third of its letters may be wrong.
_LIKENESS = 2 / 3


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like `name`; None if none is.

    Capitals, hyphens and underscores do not count, so that `device_iterations` is like
    `deviceIterations`; of names that are equal then, the first is meant.
    """
    plain: dict[str, str] = {}
    for each in known:
        plain.setdefault(_plain(each), each)
    found = difflib.get_close_matches(_plain(str(name)), plain, n=1, cutoff=_LIKENESS)
    return plain[found[0]] if found else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns a sentence that offers the nearest known name, after a blank; "" if none is near."""
    found = nearest(name, known)
    return "" if found is None else f" Did you mean {found!r}?"


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Returns the error for a name that a module does not have."""
    near = "" if name.startswith("_") else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{near and '.'}{near}")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
