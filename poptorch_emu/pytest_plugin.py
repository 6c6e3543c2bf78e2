"""`pytest -p poptorch_emu.pytest_plugin`: runs tests of a library with IPU code on virtual IPUs.

`import poptorch` means this package before the first test file is read. Each test starts with the
same random state, and compilations show no progress bars.
"""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from poptorch_emu.names.aliases import install
from poptorch_emu.runtime.progress import hide_progress_bars
from poptorch_emu.version import __version__

_SEED = 0

# Installed at import, because with `-p` or `pytest_plugins` in a conftest no hook runs earlier.
install()
hide_progress_bars()


def pytest_report_header() -> str:
    """Returns the line at the start of a run that says that IPUs are virtual."""
    return f"poptorch: poptorch_emu {__version__}, virtual IPUs, seed {_SEED} for each test"


@pytest.fixture(autouse=True)
def _same_random_state() -> None:
    torch.manual_seed(_SEED)
    numpy.random.seed(_SEED)
    random.seed(_SEED)
