"""Runs in TensorBoard's files, written without TensorFlow and read by TensorBoard's own reader."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest


def use_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes TensorBoard use its own stub, because importing TensorFlow takes seconds.

    TensorBoard keeps what it has found, so a process that has TensorFlow must not get the stub.
    """
    if "tensorflow" not in sys.modules:
        name = "tensorboard.compat.notf"
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def events_of(run: Path) -> Any:
    """Returns TensorBoard's reader of one run, with all points."""
    from tensorboard.backend.event_processing import event_accumulator

    reader = event_accumulator.EventAccumulator(str(run), size_guidance={"scalars": 0})
    return reader.Reload()


def curves_of(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns (step, value) of each point, by the tag of the curve."""
    reader = events_of(run)
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }
