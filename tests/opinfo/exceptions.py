"""The samples that a static graph cannot express, and those whose numbers cannot be compared."""

from __future__ import annotations

RANDOM: frozenset[str] = frozenset()


def refusal_of(name: str, message: str) -> str:
    """Returns why `name` may be refused with this message; "" if it may not."""
    return ""
