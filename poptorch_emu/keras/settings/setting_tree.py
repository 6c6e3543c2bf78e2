"""Groups of settings with known names and types, whose errors suggest the nearest name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from poptorch_emu.near_names import did_you_mean


@dataclass(frozen=True)
class Setting:
    """The type and the default of one setting.

    Attributes:
        default: default value; other values must have its type.
        types: further types that are allowed.
        is_accepted: whether the setting has no effect here.
    """

    default: Any
    types: tuple[type, ...] = ()
    is_accepted: bool = True

    def check(self, path: str, value: Any) -> None:
        """Checks the type of a value.

        Raises:
            TypeError: the value has a wrong type.
        """
        kind = type(self.default)
        kinds = (kind, *self.types, *((int,) if kind is float else ()))
        is_flag = isinstance(value, bool) and bool not in kinds
        if is_flag or not isinstance(value, kinds):
            if isinstance(self.default, Enum):
                known = ", ".join(f"{kind.__name__}.{each.name}" for each in type(self.default))
            else:
                known = " or ".join(each.__name__ for each in kinds)
            raise TypeError(f"{path} must be {known}, not {value!r}.")


Tree = Mapping[str, "Setting | Tree"]


@dataclass(frozen=True)
class AttributeMetadata:
    """The dotted name, the types and the default of a setting (exact)."""

    name: str
    types: tuple[type, ...]
    default: Any


class Group:
    """A group of settings, which allows only the names in its tree."""

    def __init__(self, path: str, tree: Tree) -> None:
        """Sets all defaults.

        Args:
            path: name of the group in messages.
            tree: settings and groups in this group.
        """
        values = {
            name: copy(item.default) if isinstance(item, Setting) else Group(f"{path}.{name}", item)
            for name, item in tree.items()
        }
        vars(self).update(_path=path, _tree=tree, **values)

    _path: str
    _tree: Tree

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a setting.

        Raises:
            ValueError: the name does not exist, or is that of a group.
            TypeError: the value has a wrong type.
        """
        item = self._item(name)
        if not isinstance(item, Setting):
            raise ValueError(f"{self._path}.{name} is a group of settings: set its attributes.")
        item.check(f"{self._path}.{name}", value)
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        """Suggests a similar name for an unknown one.

        Raises:
            AttributeError: always, because Python finds existing names before.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(self._unknown(name))

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Returns the type and the default of a setting, from its dotted name (exact).

        Raises:
            ValueError: the name does not exist.
        """
        group, name = self._group_of(attr)
        item = group._item(name)
        if not isinstance(item, Setting):
            raise ValueError(group._unknown(name))
        return AttributeMetadata(attr, (type(item.default), *item.types), item.default)

    def to_dict(self) -> dict[str, Any]:
        """Returns all values by their dotted names (exact)."""
        return {name: value for name, _, value in self._settings()}

    def from_dict(self, dct: Mapping[str, Any]) -> None:
        """Sets values by their dotted names (exact).

        Raises:
            ValueError: a name does not exist.
            TypeError: a value has a wrong type.
        """
        for path, value in dct.items():
            group, name = self._group_of(path)
            setattr(group, name, value)

    def accepted_changes(self) -> list[str]:
        """Returns the names of settings without effect that differ from their defaults."""
        return [
            name
            for name, item, value in self._settings()
            if item.is_accepted and value != item.default
        ]

    def _settings(self) -> Iterator[tuple[str, Setting, Any]]:
        for name, item in self._tree.items():
            value = getattr(self, name)
            if isinstance(item, Setting):
                yield name, item, value
            else:
                yield from ((f"{name}.{inner}", *rest) for inner, *rest in value._settings())

    def _group_of(self, path: str) -> tuple[Group, str]:
        """Returns the group of a setting, and its name in the group, from its dotted name."""
        group = self
        *groups, last = path.split(".")
        for each in groups:
            if isinstance(group._item(each), Setting):
                raise ValueError(group._unknown(path))
            group = getattr(group, each)
        return group, last

    def _item(self, name: str) -> Setting | Tree:
        item = self._tree.get(name)
        if item is None:
            raise ValueError(self._unknown(name))
        return item

    def _unknown(self, name: str) -> str:
        hint = did_you_mean(name, self._tree)
        return f"{self._path} has no attribute {name!r}.{hint} It has {', '.join(self._tree)}."
