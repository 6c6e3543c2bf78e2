"""Finds the known name that was probably meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Smallest similarity of a name that is offered: a third of its letters may be wrong.
_LIKENESS = 2 / 3


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to `name`; `None` if no name is similar.

    Case, hyphens and underscores are ignored, so that `device_iterations` matches
    `deviceIterations`. Among names that are then equal, the first is returned. A name that differs
    only in its numbers is another one, not a mistyped one: `layer11` does not match `layer1`.
    """
    sought = _plain(str(name))
    plain: dict[str, str] = {}
    for each in known:
        if _plain(each) == sought or _letters(each) != _letters(sought):
            plain.setdefault(_plain(each), each)
    found = difflib.get_close_matches(sought, plain, n=1, cutoff=_LIKENESS)
    return plain[found[0]] if found else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns a sentence that offers the nearest known name, after a blank; "" if none is near."""
    found = nearest(name, known)
    return "" if found is None else f" Did you mean {found!r}?"


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Returns the error for a name that a module lacks."""
    near = "" if name.startswith("_") else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{near and '.'}{near}")


def _letters(name: str) -> str:
    return "".join(each for each in _plain(name) if not each.isdigit())


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
