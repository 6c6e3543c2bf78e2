"""Options from text: a file of setter calls, or a JSON object, also from the environment."""

from __future__ import annotations

import json
import os
import sys
from enum import EnumMeta
from pathlib import Path
from typing import Any

from poptorch_emu import enums
from poptorch_emu.errors import ConfigFileError, make_error
from poptorch_emu.untrusted.texts import printable

_DEFAULTS = "POPTORCH_DEFAULT_OPTIONS"


def apply_file(options: Any, path: str | Path) -> None:
    """Runs each line of a file as `options.<line>`.

    Raises:
        ConfigFileError: a line is not valid Python.
    """
    path = Path(path)
    stripped = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    lines = [f"options.{line}" for line in stripped if line and not line.startswith("#")]
    try:
        # Only the file's name is given: with the whole path, Python would print lines of the file
        # itself, whose numbers differ because comments were removed.
        code = compile("\n".join(lines), f"<{path.name}>", "exec")
    except SyntaxError as error:
        offending = (error.text or "").strip()
        raise ConfigFileError(
            f"SyntaxError at line {error.lineno} of {path.name}: {error.msg}\n> {offending}"
        ) from error
    # Lines use the name `poptorch`, the public package. It imports this module, so it is loaded.
    package = sys.modules[__name__.partition(".")[0]]
    exec(code, {"poptorch": package, "options": options})


def apply_json(options: Any, text: str) -> None:
    """Calls the setters that a JSON object names, with its values as arguments.

    A key is a dotted path from `options`. A list is unpacked to several arguments. A string "A.B"
    that names a member of a public enumeration is converted to the member.

    Raises:
        ValueError: the text is not a JSON object.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(
            f'Options in JSON are an object such as {{"deviceIterations": 4}}, not {text!r}.'
        )
    for path, argument in values.items():
        setter = options
        for name in path.split("."):
            setter = getattr(setter, name)
        if isinstance(argument, list):
            setter(*argument)
        else:
            setter(_enum_member_or_same(argument))


def apply_defaults(options: Any) -> None:
    """Calls the setters that `POPTORCH_DEFAULT_OPTIONS` names.

    Raises:
        Error: the value is not a JSON object, or names an unknown setter or an invalid argument.
    """
    text = os.environ.get(_DEFAULTS)
    if not text:
        return
    try:
        apply_json(options, text)
    except Exception as error:  # The text may name any setter, with any argument.
        raise make_error(
            f"{_DEFAULTS} is '{printable(text)}', which cannot be applied "
            f"({type(error).__name__}: {error}). Give a JSON object of setters of Options, such as "
            '{"deviceIterations": 4}.'
        ) from error


def _enum_member_or_same(argument: Any) -> Any:
    if not isinstance(argument, str) or argument.count(".") != 1:
        return argument
    enum_name, member_name = argument.split(".")
    enum_class = getattr(enums, enum_name, None)
    if isinstance(enum_class, EnumMeta):
        return enum_class.__members__.get(member_name, argument)
    return argument
