"""Lines that reports name for operations, in the user's own files."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import FunctionType

import pytest

from poptorch_emu.trace.places.source_line import model_source, user_source


def defined_in(path: Path, text: str, **names: object) -> FunctionType:
    """Returns the function `call` from a source text, as if a file of this name had defined it."""
    found: dict[str, object] = dict(names)
    exec(compile(text, str(path), "exec"), found)
    call = found["call"]
    assert isinstance(call, FunctionType)
    return call


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_line_when_a_library_is_between_then_the_users_is_told_and_a_mistake_where_it_is(
    folder: str,
) -> None:
    library = Path("/opt/lib/python3/") / folder / "layers" / "layer.py"
    user = Path("/home/somebody/model.py")
    for found, expected in ((model_source, f"{user}:3"), (user_source, f"{library}:2")):
        inner = defined_in(library, "def call():\n    return found()\n", found=found)
        outer = defined_in(user, "def call():\n\n    return inner()\n", inner=inner)
        assert outer() == expected


def test_line_when_a_command_calls_an_installed_model_then_its_file_is_no_users() -> None:
    command = Path(sysconfig.get_path("scripts")) / "train"
    call = defined_in(command, "def call():\n    return found()\n", found=model_source)
    assert call().startswith(__file__)
