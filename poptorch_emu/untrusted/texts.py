"""Conversion of untrusted texts to a line for people or the name of a file."""

from __future__ import annotations

import hashlib
import html
import re

# Source: Linux, NAME_MAX (255) in limits.h; the rest is left for a prefix or suffix of the name.
_MOST_BYTES = 200
_KEPT = re.compile(r"([\n\t])")


def printable(text: str) -> str:
    """Returns the text as one line; characters that could control the terminal become escapes."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """Returns the text as `printable` does, but with its tabs and ends of lines."""
    if text.isprintable():
        return text
    return "".join(part if part in "\n\t" else printable(part) for part in _KEPT.split(text))


def as_html(text: str) -> str:
    """Returns the text as one line of HTML without tags and control characters."""
    return html.escape(printable(text))


def file_name(name: str, default: str) -> str:
    """Returns a name as one part of a path, so that a file always stays in its folder.

    Separators and unprintable characters become `_`; the end of a long name becomes a digest.

    Args:
        name: name from outside.
        default: result if no character of the name is left.
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
