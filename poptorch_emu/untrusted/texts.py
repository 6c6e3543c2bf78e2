"""Texts of others as what they are to be: a line for people, a name of a file."""

from __future__ import annotations

import hashlib

# Source: Linux, NAME_MAX in limits.h; some are left for what is put before or behind a name.
_MOST_BYTES = 200


def printable(text: str) -> str:
    """Returns one line in which no character controls the terminal; such ones become escapes."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text
    )


def file_name(name: str, default: str) -> str:
    """Returns a name as one part of a path, which stays in its folder whatever the name is.

    Separators and what does not print become `_`; of a long name the end becomes a digest.

    Args:
        name: that a user gave.
        default: for a name of which nothing is left.
    """
    kept = "".join(
        "_" if character in "/\\" or not character.isprintable() else character
        for character in name
    ).strip(".")
    encoded = kept.encode()
    if len(encoded) > _MOST_BYTES:
        start = encoded[:_MOST_BYTES].decode(errors="ignore")
        kept = f"{start}_{hashlib.blake2b(encoded, digest_size=8).hexdigest()}"
    return kept or default
