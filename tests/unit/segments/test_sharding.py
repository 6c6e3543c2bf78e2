"""Choice of tensors to shard in an update, on both sides of each limit."""

from __future__ import annotations

import pytest
import torch

from poptorch_emu.config import CompileConfig, ShardingConfig
from poptorch_emu.segments.sharding import Sharding, sharding_of
from poptorch_emu.segments.variables import VariableInfo

ALL = ShardingConfig(weight=6, optimizer=6, accumulator=6)


def weight(shape=(2, 3), groups=(), *, is_per_replica=False) -> VariableInfo:
    return VariableInfo(0, "w", shape, torch.float32, is_per_replica, group_of_replica=groups)


def config(sharding: ShardingConfig, replicas: int = 2) -> CompileConfig:
    return CompileConfig(True, replication_factor=replicas, sharding=sharding)


@pytest.mark.parametrize(("threshold", "is_cut"), [(5, True), (6, True), (7, False), (None, False)])
@pytest.mark.parametrize("kind", ["weight", "optimizer", "accumulator"])
def test_each_kind_then_is_cut_from_its_own_size_on(kind, threshold, is_cut) -> None:
    found = sharding_of(weight(), config(ShardingConfig(**{kind: threshold})))
    flags = {
        "weight": found.has_weight,
        "optimizer": found.has_states,
        "accumulator": found.has_accumulator,
    }
    assert flags == {name: is_cut and name == kind for name in flags}
    assert found.is_active is is_cut


@pytest.mark.parametrize(
    "variable",
    [weight(()), weight(groups=(0, 1)), weight(is_per_replica=True)],
    ids=["without axes", "grouped", "of each replica"],
)
def test_weight_that_replicas_do_not_share_or_cut_then_stays_whole(variable) -> None:
    assert sharding_of(weight(), config(ALL)) == Sharding(True, True, True)
    assert sharding_of(variable, config(ALL)) == Sharding()


def test_one_replica_then_cuts_nothing() -> None:
    assert sharding_of(weight(), config(ALL, replicas=1)) == Sharding()
