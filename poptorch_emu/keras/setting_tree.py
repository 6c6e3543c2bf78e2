"""Groups of settings whose names and types are known, and whose errors suggest the nearest name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from poptorch_emu.near_names import did_you_mean


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        default: of the type that values must have.
        types: further types that are taken.
        is_accepted: whether it has no effect here.
    """

    default: Any
    types: tuple[type, ...] = ()
    is_accepted: bool = True

    def check(self, path: str, value: Any) -> None:
        """Checks a value.

        Raises:
            TypeError: it is of another type.
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
    """What is known of a setting: its dotted name, its types and its default (exact)."""

    name: str
    types: tuple[type, ...]
    default: Any


class Group:
    """A group of settings; it takes no others than those of its tree."""

    def __init__(self, path: str, tree: Tree) -> None:
        """Starts with the defaults.

        Args:
            path: how the group is called in messages.
            tree: its settings and groups.
        """
        values = {
            name: (
                type(item.default)(item.default)
                if isinstance(item, Setting) and isinstance(item.default, (list, dict))
                else item.default
                if isinstance(item, Setting)
                else Group(f"{path}.{name}", item)
            )
            for name, item in tree.items()
        }
        vars(self).update(_path=path, _tree=tree, **values)

    _path: str
    _tree: Tree

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a setting.

        Raises:
            ValueError: there is none of this name, or it is a group.
            TypeError: the value is of another type.
        """
        item = self._item(name)
        if not isinstance(item, Setting):
            raise ValueError(f"{self._path}.{name} is a group of settings: set its attributes.")
        item.check(f"{self._path}.{name}", value)
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        """Says which name may be meant.

        Raises:
            AttributeError: always; what there is was found before.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(self._unknown(name))

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Returns what is known of a setting, from its dotted name (exact).

        Raises:
            ValueError: there is none of this name.
        """
        first, _, rest = attr.partition(".")
        item = self._item(first)
        if rest and not isinstance(item, Setting):
            group: Group = getattr(self, first)
            found = group.get_attribute_metadata(rest)
            return AttributeMetadata(attr, found.types, found.default)
        if rest or not isinstance(item, Setting):
            raise ValueError(self._unknown(attr))
        return AttributeMetadata(attr, (type(item.default), *item.types), item.default)

    def to_dict(self) -> dict[str, Any]:
        """Returns all values by their dotted names (exact)."""
        return {name: value for name, _, value in self._settings()}

    def from_dict(self, dct: Mapping[str, Any]) -> None:
        """Sets values by their dotted names (exact).

        Raises:
            ValueError: there is no such name.
            TypeError: a value is of another type.
        """
        for name, value in dct.items():
            group: Group = self
            *groups, last = name.split(".")
            for each in groups:
                if isinstance(group._item(each), Setting):
                    raise ValueError(group._unknown(name))
                group = getattr(group, each)
            setattr(group, last, value)

    def accepted_changes(self) -> list[str]:
        """Returns the names of settings that have no effect and are not at their defaults."""
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

    def _item(self, name: str) -> Setting | Tree:
        item = self._tree.get(name)
        if item is None:
            raise ValueError(self._unknown(name))
        return item

    def _unknown(self, name: str) -> str:
        hint = did_you_mean(name, self._tree)
        return f"{self._path} has no attribute {name!r}.{hint} It has {', '.join(self._tree)}."
