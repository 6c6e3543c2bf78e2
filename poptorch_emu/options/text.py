"""Options from text: a file of setter calls, a JSON object, or one in the environment."""

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
        # Not the path: Python would show lines of the file, where comments count too.
        code = compile("\n".join(lines), f"<{path.name}>", "exec")
    except SyntaxError as error:
        offending = (error.text or "").strip()
        raise ConfigFileError(
            f"SyntaxError at line {error.lineno} of {path.name}: {error.msg}\n> {offending}"
        ) from error
    # The lines speak of the public package, which stands above this module and is loaded by now.
    package = sys.modules[__name__.partition(".")[0]]
    exec(code, {"poptorch": package, "options": options})


def apply_json(options: Any, text: str) -> None:
    """Calls the setters that a JSON object names, with its values as arguments.

    A key is a dotted path from `options`; a list is unpacked; a string "A.B" that names a member of
    a public enumeration becomes it.

    Raises:
        ValueError: the text is no JSON object.
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
    """Calls the setters that the environment names.

    Raises:
        Error: the variable's value is no JSON object, or names no setter or no value of one.
    """
    text = os.environ.get(_DEFAULTS)
    if not text:
        return
    try:
        apply_json(options, text)
    except Exception as error:  # Any setter may be named, with any value.
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
