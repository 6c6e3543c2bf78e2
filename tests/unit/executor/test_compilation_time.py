"""The progress bar and the reported time cover everything that a user waits for."""

from __future__ import annotations

import re
import time

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.executor import attached_device
from poptorch_emu.runtime import session
from poptorch_emu.runtime.session import Session

LOADING_SECONDS = 0.4


@pytest.fixture
def slow_device(monkeypatch):
    """Makes the loading of a program slow."""

    def slowly(executable):
        time.sleep(LOADING_SECONDS)
        return Session(executable)

    monkeypatch.setattr(attached_device, "Session", slowly)


def test_time_of_loading_when_compiled_then_is_part_of_what_is_told(slow_device, capsys):
    inference = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    begin = time.perf_counter()
    inference.compile(torch.ones(1, 2))
    waited = time.perf_counter() - begin
    said = re.search(r"Graph compilation: 100% in (.*) s", capsys.readouterr().err)
    assert said is not None
    for told in (float(said[1]), inference._on_device.compilation.time()):
        seconds = told if isinstance(told, float) else told.total_seconds()
        assert LOADING_SECONDS - 0.05 <= seconds <= waited + 0.05


def test_loading_that_fails_then_nothing_is_compiled_and_the_bar_is_not_full(monkeypatch, capsys):
    def fails(executable):
        raise MemoryError("no memory")

    monkeypatch.setattr(attached_device, "Session", fails)
    inference = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    with pytest.raises(MemoryError, match="no memory"):
        inference.compile(torch.ones(1, 2))
    assert not inference.isCompiled()
    assert "100%" not in capsys.readouterr().err
    monkeypatch.undo()
    assert inference(torch.ones(1, 2)).shape == (1, 2)


class _SlowEngine:
    """Replaces the engine by one that is slow after its last output, as during an update."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, *arguments):
        results = self._engine.run(*arguments)
        time.sleep(LOADING_SECONDS)
        return results


@pytest.mark.parametrize("latencies", ["measured", "modelled"])
def test_measured_step_of_the_page_then_counts_what_comes_after_the_outputs(latencies, monkeypatch):
    options = poptorch.Options().showCompilationProgressBar(False)
    emulator.set_latencies(options, latencies)
    inference = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    inference.compile(torch.ones(1, 2))
    assert emulator.summary(inference).view["speed"]["measured_step_seconds"] is None
    running = inference._on_device.device.session
    assert isinstance(running, session.Session)
    monkeypatch.setattr(running, "_executor", _SlowEngine(running._executor))
    begin = time.perf_counter()
    inference(torch.ones(1, 2))
    waited = time.perf_counter() - begin
    measured = emulator.summary(inference).view["speed"]["measured_step_seconds"]
    assert LOADING_SECONDS <= measured <= waited
    inference.detachFromDevice()
    assert emulator.summary(inference).view["speed"]["measured_step_seconds"] == measured
