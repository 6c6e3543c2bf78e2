"""Fixtures of the conformance tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.accessor_data import FORK, Make

from poptorch_emu import log
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes accessors and terminates them at the end of the test."""
    made = []

    def make_accessor(dataset: Any, **arguments: Any) -> AsynchronousDataAccessor:
        arguments.setdefault("sharing_strategy", FORK)
        made.append(AsynchronousDataAccessor(dataset, **arguments))
        return made[-1]

    yield make_accessor
    for accessor in made:
        accessor.terminate()


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Collects the messages of both loggers of the package, even if they do not propagate."""
    for logger in (log.logger, log.compiler_logger):
        monkeypatch.setattr(logger, "propagate", True)
    return caplog
