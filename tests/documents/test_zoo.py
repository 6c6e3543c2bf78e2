"""The table of docs/guide/todays_models.md, and the sweep that it is made from."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_table_in_the_guide_then_is_that_of_the_stored_sweep() -> None:
    tool = ROOT / "tools" / "zoo.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
