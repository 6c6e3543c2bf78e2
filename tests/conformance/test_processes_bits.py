"""Gradients summed over processes and replicas: the bits are those of one process with all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import process_training
from support.processes import finish, results_of, start

feature = pytest.mark.feature("popdist.poptorch.Options", fidelity="exact")
SCRIPT = process_training.__file__
CASES = tuple(process_training.CASES)


def train(folder: Path, num_processes: int, workers: int = 2) -> list[Any]:
    """Returns what each process has after training all cases."""
    local = process_training.TOTAL_REPLICAS // num_processes
    more = {"POPTORCH_EMU_WORKERS": str(workers)}
    ended = finish(start(SCRIPT, [str(folder), *CASES], num_processes, local, more))
    assert len(list(folder.glob("result_*.pt"))) == num_processes, "\n".join(e.text for e in ended)
    return results_of(folder, num_processes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process with all replicas gets."""
    return train(tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.fixture(scope="module", params=[(2, 1), (2, 4), (4, 2)], ids=["2", "2-workers", "4"])
def together(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What several processes get."""
    num_processes, workers = request.param
    return train(tmp_path_factory.mktemp("together"), num_processes, workers)


@feature
@pytest.mark.parametrize("case", CASES)
def test_processes_then_weights_have_the_bits_of_one_process(alone, together, case):
    for result in together:
        for name, expected in alone[case]["weights"].items():
            assert torch.equal(result[case]["weights"][name], expected), name


@feature
@pytest.mark.parametrize("case", CASES)
def test_processes_then_losses_are_those_of_their_replicas(alone, together, case):
    joined = torch.cat([result[case]["losses"] for result in together], dim=-1)
    assert torch.equal(joined, alone[case]["losses"])
