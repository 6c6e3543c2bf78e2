"""Dictionaries of attributes that are passed through a graph as text."""

from __future__ import annotations

import json
from typing import Any

ATTR_PREFIX = "attr:"

# Keeps each dictionary alive under a name: the prefix and the hexadecimal index in this list.
attributes_lists: list[dict[str, Any]] = []


def accessAttributes(attribute_id_str: str) -> Any:
    """Returns the attributes that a text stands for: JSON, or `attr:` and a hexadecimal id (exact).

    Args:
        attribute_id_str: JSON text, or the id of an entry of `poptorch.attributes_lists`.

    Raises:
        ValueError: the argument is not a string, or is neither JSON nor a known id.
    """
    if not isinstance(attribute_id_str, str):
        raise ValueError(
            f"Wrong type for attribute_id_str: {type(attribute_id_str).__name__}. It must be a "
            "string that represents the attributes."
        )
    try:
        if not attribute_id_str.startswith(ATTR_PREFIX):
            return json.loads(attribute_id_str)
        index = int(attribute_id_str.removeprefix(ATTR_PREFIX), 16)
        return attributes_lists[index if index >= 0 else len(attributes_lists)]
    except (ValueError, IndexError) as cause:
        raise ValueError(
            f"Invalid attribute_id_str: {attribute_id_str!r}. It must be JSON, or '{ATTR_PREFIX}' "
            f"and a hexadecimal number below {len(attributes_lists):#x}."
        ) from cause
