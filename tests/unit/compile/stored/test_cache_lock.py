"""Of several processes one compiles; a process that dies while it does holds nobody up."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poptorch_emu.compile.stored.cache import only_one
from poptorch_emu.compile.stored.key import Key

KEY = Key({"options": ("a", "b")})
# Says when it has the lock, and keeps it until its input ends.
HOLDER = """
import sys
from poptorch_emu.compile.stored.cache import only_one
from poptorch_emu.compile.stored.key import Key

with only_one(sys.argv[1], Key({"options": ("a", "b")}), 2):
    print("held", flush=True)
    sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def has_spoken(process: subprocess.Popen[str], seconds: float) -> bool:
    return bool(select.select([process.stdout], [], [], seconds)[0])


@pytest.mark.parametrize("ending", ["killed", "finished"])
def test_lock_when_its_holder_is_gone_then_the_next_has_it(ending: str, tmp_path: Path) -> None:
    first = start(tmp_path)
    second = None
    try:
        assert has_spoken(first, 120)
        second = start(tmp_path)
        assert not has_spoken(second, 3)
        if ending == "killed":
            first.send_signal(signal.SIGKILL)
        else:
            first.stdin.close()
        assert has_spoken(second, 120)
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                stream.close()


def test_lock_when_there_is_one_process_or_no_folder_then_nothing_is_locked(tmp_path: Path) -> None:
    with only_one(str(tmp_path), KEY, 1), only_one(None, KEY, 2):
        assert list(tmp_path.iterdir()) == []
