"""Generates the entries of the API reference on the site from docstrings.

A page of docs/api lists names, one on each line, in code blocks of the language `{api}`.
`popdist.*` means all public names of the module. Docstrings are Markdown with Google's sections;
they are converted to MyST, which the page's own parser reads. Entries begin with a fidelity word.
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import public_names

from poptorch_emu.names.aliases import MODULES, STAND_INS

os.environ.setdefault("KERAS_BACKEND", "torch")  # before a page about Keras imports it

BLOCK = re.compile(r"^```\{api\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TARGETS = {name: target for name, target in {**MODULES, **STAND_INS}.items() if "." not in name}
# Fields of Sphinx for the items of each docstring section.
_FIELDS = {"Args": "param", "Raises": "raises"}
_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):$")
_WORD = re.compile(r" \((exact|modelled|accepted|refused)\)")
_ATTRIBUTES = re.compile(r"^Attributes:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_DOCUMENT = re.compile(r"`docs/(\w+)\.md`")
# Texts for values, and for a type of Python, which have no docstring of their own.
_TEXTS = {
    "__version__": "The version of this package, as text.",
    "attributes_lists": "What `Attribute` puts on operations: a list of dicts, by their ids.",
    "BlockId": "The name of a block: a `str`.",
    "logger": "The logger of this package, one of `logging`: `setLogLevel` sets its level.",
    "Average": "The mean over all replicas: a value of `op`.",
    "Sum": "The sum over all replicas: a value of `op`.",
}
_FENCES = {"class": "`" * 9, "member": "`" * 7}


class _Text(str):
    """Text that appears unchanged in a signature."""

    __repr__ = str.__str__


def listed(page: str) -> list[str]:
    """Returns the names that the blocks of a page list, with stars expanded."""
    lines = [line.strip() for block in BLOCK.findall(page) for line in block.split("\n")]
    return [name for line in lines if line for name in _without_star(line)]


def text_of_page(page: str) -> str:
    """Returns the Markdown of a page with its blocks replaced by the entries."""
    return BLOCK.sub(lambda block: "\n".join(_lines_of(block.group(0))), page)


def entries_of_page(page: str) -> dict[str, str]:
    """Returns the fidelity word of each entry of a page; none if its package is missing.

    Raises:
        ValueError: an entry has no fidelity word.
    """
    try:
        return {entry: word for name in listed(page) for entry, word in entries(name).items()}
    except ModuleNotFoundError:
        return {}


def resolve(name: str) -> Any:
    """Returns the object of a listed name; for a group of options, its class.

    Raises:
        AttributeError: the name does not exist.
    """
    first, *rest = name.split(".")
    found: Any = import_module(_TARGETS.get(first, first))
    for part in rest:
        if found is public_names.poptorch_emu.Options:
            found = type(getattr(found(), part))
        elif isinstance(found, ModuleType) and not hasattr(found, part):
            found = import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
    return found


def entries(name: str) -> dict[str, str]:
    """Returns the fidelity word of a listed name and of each of its members, by full name.

    Raises:
        ValueError: the name or a member has no fidelity word.
    """
    value = resolve(name)
    known = public_names.WORDS.get(name.rpartition(".")[2], "")
    if inspect.isclass(value) and not known:
        found = dict(public_names.of_class(value, name, ""))
        groups = {f"{name}.{group}" for group in public_names.GROUPS}
        found = {member: word for member, word in found.items() if member not in groups}
    else:
        found = {name: known or public_names.word(value)}
    if silent := [entry for entry, word in found.items() if not word]:
        raise ValueError(f"No fidelity word in the docstrings of {', '.join(silent)}.")
    return found


def text_of(name: str) -> list[str]:
    """Returns the entry of a listed name as lines of MyST."""
    value = resolve(name)
    (_, word), *members = entries(name).items()
    if text := _TEXTS.get(name.rpartition(".")[2]):
        return _entry_of("data", name, [text], word, [])
    if not inspect.isclass(value):
        kind = "function" if callable(value) else "data"
        return _entry(kind, name, value, word, [])
    listed_members = {member.rpartition(".")[2]: word for member, word in members}
    attributes = _attributes_of(inspect.getdoc(value) or "")
    for base in value.__mro__[1:]:  # Inherited members are documented in their own class.
        of_base = _attributes_of(inspect.cleandoc(vars(base).get("__doc__") or ""))
        new = of_base.keys() & listed_members.keys() - attributes.keys()
        attributes |= {name: of_base[name] for name in sorted(new)}
    inner: list[str] = []
    for member, text in attributes.items():
        found = _WORD.search(text)
        member_word = found.group(1) if found else listed_members.get(member, word)
        inner += _entry_of("attribute", member, _markdown(text), member_word, [])
    for member, member_word in listed_members.items():
        if member not in attributes:
            static = inspect.getattr_static(value, member)
            inner += _entry(_kind_of_member(static), member, static, member_word, [])
    return _entry("class", name, value, word, inner)


def _entry(kind: str, name: str, value: Any, word: str, members: list[str]) -> list[str]:
    if kind in ("attribute", "data"):  # The docstring belongs to the value's type.
        return _entry_of(kind, name, [], word, members)
    signature = "" if kind == "property" else _signature(getattr(value, "__func__", value))
    text = _markdown(_docstring_of(value))
    if isinstance(value, enum.EnumMeta):
        text += ["", "Members: " + ", ".join(f"`{member}`" for member in value.__members__) + "."]
    lines = _entry_of(kind, name + signature, text, word, members)
    options = [":classmethod:"] if isinstance(value, classmethod) else []
    options += [":staticmethod:"] if isinstance(value, staticmethod) else []
    return [lines[0], *options, *lines[1:]]


def _docstring_of(value: Any) -> str:
    """Returns the docstring; for a class, followed by that of its constructor."""
    own = inspect.getdoc(value) or ""
    constructor = getattr(value, "__init__", None) if inspect.isclass(value) else None
    is_ours = getattr(constructor, "__module__", "").startswith(public_names.poptorch_emu.__name__)
    of_constructor = (constructor.__doc__ or "") if is_ours else ""
    return f"{own}\n\n{inspect.cleandoc(of_constructor)}".strip()


def _entry_of(kind: str, head: str, text: list[str], word: str, members: list[str]) -> list[str]:
    fence = _FENCES["class" if members else "member"]
    first = f"{{fidelity}}`{word}` {text[0] if text else ''}"
    return [f"{fence}{{py:{kind}}} {head}", "", first, *text[1:], "", *members, fence, ""]


def _kind_of_member(value: Any) -> str:
    if isinstance(value, (property, functools.cached_property)):
        return "property"
    is_method = callable(value) or isinstance(value, (classmethod, staticmethod))
    return "method" if is_method else "attribute"


def _signature(value: Any) -> str:
    if isinstance(value, enum.EnumMeta) or inspect.isclass(value) and issubclass(value, str):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    items = signature.parameters.values()
    parameters = [_plain(item) for item in items if item.name not in ("self", "cls")]
    result = signature.empty if inspect.isclass(value) else signature.return_annotation
    returned = result if result is signature.empty else _Text(result if result else "None")
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    default, annotation = parameter.default, parameter.annotation
    if isinstance(default, enum.Enum):
        default = _Text(f"{type(default).__name__}.{default.name}")
    elif default is not parameter.empty and repr(default).startswith("<"):
        default = _Text("...")
    if isinstance(annotation, str):
        annotation = _Text(annotation)
    return parameter.replace(default=default, annotation=annotation)


def _markdown(docstring: str) -> list[str]:
    """Returns a docstring as MyST: each section becomes fields, and its example comes last."""
    examples = [textwrap.dedent(code).strip() for code in _EXAMPLE.findall(docstring)]
    plain = _ATTRIBUTES.sub("", _EXAMPLE.sub("", _WORD.sub("", docstring, count=1)))
    lines = _DOCUMENT.sub(r"[docs/\1.md](/docs/\1.md)", plain).split("\n")
    found: list[str] = []
    section = ""
    for line in lines:
        if match := _SECTION.match(line):
            section = match.group(1)
            found += [f":{section.lower().rstrip('s')}s:"] if section not in _FIELDS else []
        elif section and line and not line.startswith(" "):
            section = ""
            found += ["", line]
        elif section in _FIELDS and re.match(r" {4}\S", line):
            item, _, text = line.strip().partition(": ")
            found.append(f":{_FIELDS[section]} {item.replace('*', '')}: {text}")
        else:
            found.append(line)
    return found + [line for code in examples for line in _block(code)]


def _attributes_of(docstring: str) -> dict[str, str]:
    """Returns the description of each attribute in a docstring, by name."""
    found: dict[str, str] = {}
    for section in _ATTRIBUTES.findall(docstring):
        for item in re.split(r"\n(?=\S)", textwrap.dedent(section).strip()):
            names, _, text = item.partition(":")
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _block(code: str) -> list[str]:
    return ["", "```pycon", *code.replace("<BLANKLINE>", "").split("\n"), "```"]


def _lines_of(block: str) -> list[str]:
    try:
        return [line for name in listed(block) for line in text_of(name)]
    except ModuleNotFoundError as failure:
        return [f"There are no entries here: {failure}"]


def _without_star(line: str) -> Iterator[str]:
    module = line.removesuffix(".*")
    if module == line:
        yield line
    else:
        yield from (f"{module}.{name}" for name in public_names.offered(resolve(module)))
