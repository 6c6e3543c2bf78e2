"""Gradients summed over processes and replicas: the bits are those of one process with all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import process_training
from support.processes import finish, results_of, start

feature = pytest.mark.feature("popdist.poptorch.Options", fidelity="exact")
SCRIPT = process_training.__file__
# Cases for each way to add up gradients. More processes or replicas can affect only these, so all
# other cases run on two processes with two replicas each.
FEW = (
    *("sgd2", "clipped2", "lamb2", "dropout", "loss scale", "exchanging2"),
    *("sharded2", "sharded lamb2"),
)
LATE = ("exchanging lingering2", "sharded lingering2", "sharded exchanging2")
ALL = tuple(process_training.CASES)


def train(
    folder: Path, num_processes: int, cases: Mapping[int, Sequence[str]], workers: int = 2
) -> list[Any]:
    """Returns the results of each process after training all cases, by the number of replicas."""
    arguments = [f"{case}@{local}" for local, names in cases.items() for case in names]
    more = {"POPTORCH_EMU_WORKERS": str(workers), "POPTORCH_EMU_SYSTEM": "mk2-pod64"}
    ended = finish(start(SCRIPT, [str(folder), *arguments], num_processes, 1, more), seconds=900)
    assert all(each.status == 0 for each in ended), "\n".join(each.text for each in ended)
    return results_of(folder, num_processes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of one process with all replicas."""
    cases: dict[int, Sequence[str]] = {}
    for num_processes, _, of_group in GROUPS.values():
        for local, names in of_group.items():
            known = cases.get(num_processes * local, ())
            cases[num_processes * local] = names if len(names) > len(known) else known
    return train(tmp_path_factory.mktemp("alone"), 1, cases)[0]


# For each group: number of processes, workers of each, and the cases by replicas of a process.
GROUPS: dict[str, tuple[int, int, Mapping[int, Sequence[str]]]] = {
    "2": (2, 1, {1: FEW, 4: FEW}),
    "2-workers": (2, 4, {2: ALL}),
    "4": (4, 2, {1: FEW + LATE, 4: FEW[-3:]}),
}


@pytest.fixture(scope="module", params=GROUPS.values(), ids=list(GROUPS))
def together(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """For each training: its case, and the results of each process."""
    num_processes, workers, cases = request.param
    results = train(tmp_path_factory.mktemp("together"), num_processes, cases, workers)
    return [
        (f"{case}@{num_processes * local}", [result[f"{case}@{local}"] for result in results])
        for local, names in cases.items()
        for case in names
    ]


@feature
def test_processes_then_weights_have_the_bits_of_one_process(alone, together):
    for case, results in together:
        for result in results:
            for name, expected in alone[case]["weights"].items():
                assert torch.equal(result["weights"][name], expected), (case, name)


@feature
def test_processes_then_each_has_the_optimizer_states_of_one_process(alone, together):
    for case, results in together:
        expected = alone[case]["states"]
        assert expected, case
        for result in results:
            assert result["states"].keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(result["states"][name], value), (case, name)


@feature
def test_processes_then_losses_are_those_of_their_replicas(alone, together):
    for case, results in together:
        joined = torch.cat([result["losses"] for result in results], dim=-1)
        assert torch.equal(joined, alone[case]["losses"]), case


@feature
def test_processes_when_stages_linger_then_each_replica_still_has_its_own_losses(alone):
    losses = alone["lingering2@4"]["losses"]
    assert losses.flatten().unique().numel() == losses.numel()


@pytest.mark.feature("Replicated tensor sharding", fidelity="exact")
def test_processes_when_accumulators_are_sharded_then_the_price_is_said(tmp_path):
    told = {}
    for case in ("sharded", "sharded states"):
        ended = finish(start(SCRIPT, [str(tmp_path), case], 2, 1))
        assert all(each.status == 0 for each in ended), ended
        told[case] = ended[0].text
    # 5 * 7 + 7 + 7 * 3 + 3 numbers of 4 bytes.
    said = "4 weights are sharded over 2 processes, so 0.000264 MB are exchanged in each of the 3"
    assert said in " ".join(told["sharded"].split())
    assert "are exchanged in each" not in told["sharded states"]
