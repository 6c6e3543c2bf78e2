"""Environment variables that show the graph of a compilation (api.md 5)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch


def compile_model() -> None:
    opts = poptorch.Options().showCompilationProgressBar(False)
    layers = [nn.Linear(2, 2) for _ in range(6)]
    poptorch.inferenceModel(nn.Sequential(*layers), opts).compile(torch.ones(1, 2))


def graph_lines(logged: pytest.LogCaptureFixture) -> list[str]:
    (text,) = [entry.getMessage() for entry in logged.records if "Graph, " in entry.getMessage()]
    return text.splitlines()[1:]


@pytest.mark.feature("POPTORCH_MAX_GRAPH_LEN", fidelity="exact")
def test_graph_is_logged_up_to_the_length_asked_for(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    poptorch.setLogLevel("TRACE")
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "0")
    compile_model()
    whole = graph_lines(logged)
    assert len(whole) > 10 and whole[-1].startswith("output 0 <- ")
    for length, expected in (("3", whole[-3:]), (None, whole[-10:]), ("-1", whole)):
        logged.clear()
        if length is None:
            monkeypatch.delenv("POPTORCH_MAX_GRAPH_LEN")
        else:
            monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", length)
        compile_model()
        assert graph_lines(logged) == expected


@pytest.mark.feature("POPTORCH_MAX_GRAPH_LEN", fidelity="exact")
def test_length_that_is_no_integer_then_error(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    poptorch.setLogLevel("TRACE")
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "many")
    with pytest.raises(poptorch.Error, match="POPTORCH_MAX_GRAPH_LEN must be an integer.*'many'"):
        compile_model()


@pytest.mark.feature("POPTORCH_MAX_GRAPH_LEN", fidelity="exact")
def test_graph_at_the_usual_level_is_not_logged(logged: pytest.LogCaptureFixture) -> None:
    poptorch.setLogLevel("INFO")
    compile_model()
    assert "Graph, " not in logged.text
