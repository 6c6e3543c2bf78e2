"""Set-up for all tests: seed, devices, terminal, logger levels, and the option for golden files."""

import gc
import logging
import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from poptorch_emu.runtime import devices

# The largest system that one process can use.
os.environ.setdefault("POPTORCH_EMU_SYSTEM", "mk2-pod64")
# Keras reads this variable when it is imported.
os.environ.setdefault("KERAS_BACKEND", "torch")


# The tests' operations are small, so a second thread costs more than it gains, and very much more
# on a machine that is busy with other work.
torch.set_num_threads(1)

# Without these replacements, PyTorch records each seed, with the caller's stack, for absent
# devices.
for _device in (torch.cuda, torch.xpu, torch.mtia):
    if not _device.is_available():
        _device.manual_seed_all = lambda seed: None

# The duration of an example says nothing about the property under test.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files in tests/golden"
    )
    parser.addoption("--wheel", help="that tests/packaging installs; by default it builds one")


# Files with slow fixtures, which start first because many of their processes only wait.
FIRST = (
    *("test_processes_bits.py", "test_processes_hosts.py", "test_processes_failure.py"),
    *("test_processes_misfits.py", "test_export.py", "test_export_programs.py", "test_wheel.py"),
    *("test_accessor_ends.py", "test_tutorials.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts slow files first, so that workers share only short tests at the end."""
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """Reduces the cost of the set-up around each test.

    The garbage collector skips the objects that were loaded, and runs less often. Log records of
    PyTorch propagate to pytest's handlers, because otherwise pytest would add its handlers to each
    of dozens of loggers several times in each test.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def _devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every test all IPUs, because models of other tests hold theirs until collected."""
    monkeypatch.setattr(devices, "_manager", devices._Manager())


@pytest.fixture(autouse=True)
def _ipu_configuration() -> None:
    """Gives every test a process whose IPUs are not configured, for example for two replicas."""
    config = sys.modules.get("poptorch_emu.keras.ipu.config")
    if config is not None:
        config.reset_ipu_configuration()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every test a terminal of 80 columns, whatever the real width is."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Restores the levels of both loggers after each test."""
    loggers = [logging.getLogger(name) for name in ("poptorch::python", "poptorch:cpp")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        if logger.level != level:  # Setting a level clears the caches of all loggers.
            logger.setLevel(level)
