"""One of several processes compiles; if it dies meanwhile, the others continue."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.accessor_data import wait_until
from support.forked_programs import ForkedProgram, end

from poptorch_emu.compile.stored.cache import only_one
from poptorch_emu.compile.stored.key import Key

KEY = Key({"options": ("a", "b")})
# Program that prints before and after it acquires the lock, and holds it until a file exists.
HOLDER = """
import pathlib, sys, time
from poptorch_emu.compile.stored.cache import only_one
from poptorch_emu.compile.stored.key import Key

print("asked", flush=True)
with only_one(sys.argv[1], Key({"options": ("a", "b")}), 2):
    print("held", flush=True)
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
"""


def has_said(process: ForkedProgram, word: str, seconds: float) -> bool:
    return wait_until(lambda: process.output().endswith(f"{word}\n"), seconds)


@pytest.mark.parametrize("ending", ["killed", "finished"])
def test_lock_when_its_holder_is_gone_then_the_next_has_it(ending: str, tmp_path: Path) -> None:
    file = tmp_path / "end"
    arguments = ["-c", HOLDER, str(tmp_path), str(file)]
    started = [ForkedProgram(arguments)]
    try:
        assert has_said(started[0], "held", 30)
        started.append(ForkedProgram(arguments))
        assert has_said(started[1], "asked", 30)
        assert not has_said(started[1], "held", 0.3)
        if ending == "killed":
            started[0].kill()
        else:
            file.touch()
        assert has_said(started[1], "held", 30)
    finally:
        end(started)


def test_lock_when_there_is_one_process_or_no_folder_then_nothing_is_locked(tmp_path: Path) -> None:
    with only_one(str(tmp_path), KEY, 1), only_one(None, KEY, 2):
        assert list(tmp_path.iterdir()) == []
