"""What every test shares: the seed, a fresh logger level, and the switch that rewrites goldens."""

import gc
import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from poptorch_emu.runtime import devices

# As large as one process can ask for.
os.environ.setdefault("POPTORCH_EMU_SYSTEM", "mk2-pod64")
# Keras reads it when it is imported.
os.environ.setdefault("KERAS_BACKEND", "torch")


# The tests' operations are small: a second thread costs more than it gives, and on a machine that
# is busy with something else, very much more.
torch.set_num_threads(1)

# Each seed would be noted for devices that are not there, with the stack of its caller.
for _device in (torch.cuda, torch.xpu, torch.mtia):
    if not _device.is_available():
        _device.manual_seed_all = lambda seed: None

# How long an example takes says nothing about what it shows.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files in tests/golden"
    )
    parser.addoption("--wheel", help="that tests/packaging installs; by default it builds one")


# Files whose fixtures take long, each once; processes of many of them wait.
FIRST = (
    *("test_processes_bits.py", "test_processes_hosts.py", "test_processes_failure.py"),
    *("test_processes_misfits.py", "test_export.py", "test_export_programs.py", "test_wheel.py"),
    *("test_accessor_ends.py", "test_tutorials.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has the long ones begin first: the last tests, which workers share, are short ones then."""
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """Makes what surrounds each test cheaper.

    The garbage collector need not look through what was loaded, nor so often. Records of PyTorch go
    up to where pytest catches them; it would add its handlers to each of dozens of loggers that
    keep theirs, several times a test.
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
    """Gives every test all IPUs: models of other tests hold theirs until they are collected."""
    monkeypatch.setattr(devices, "_manager", devices._Manager())


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every test a terminal of 80 columns, however wide the one is that tests run in."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Gives both loggers back their levels, whatever a test sets."""
    loggers = [logging.getLogger(name) for name in ("poptorch::python", "poptorch:cpp")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        if logger.level != level:  # To set it costs a look at every logger there is.
            logger.setLevel(level)
