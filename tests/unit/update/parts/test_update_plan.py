"""The parts of an update on each IPU at the end of a window, as values."""

import math
from dataclasses import replace

import pytest
import torch

from poptorch_emu.config import CompileConfig, ShardingConfig
from poptorch_emu.enums import ReductionType
from poptorch_emu.segments.sharding import Sharding, sharding_of
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.loss_scale import LossScaleRule
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    Hyper,
    OptimizerConfig,
    OptimizerKind,
)
from poptorch_emu.update.parts.update_parts import Gradient
from poptorch_emu.update.parts.update_plan import UpdatePlan, gradient_scale

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "lr": 0.1, "weight_decay": 0.0}


def optimizer(kind=OptimizerKind.ADAM, *, limit=math.inf, **others):
    values = {**ADAM, **others}
    hypers = tuple((name, Hyper(values[name], is_constant=True)) for name in sorted(values))
    return OptimizerConfig(kind, (GroupConfig(hypers),), (0, 0, 0), max_grad_norm=limit)


def config(replicas=1, sharding=None, **others):
    return CompileConfig(
        is_training=True,
        replication_factor=replicas,
        sharding=sharding or ShardingConfig(),
        **others,
    )


def weight(name="w", shape=(4, 6), groups=(), *, is_per_replica=False):
    return VariableInfo(0, name, shape, torch.float32, is_per_replica, group_of_replica=groups)


def plan(gradients, num_ipus, settings, optimiser=None):
    """Returns the plan for (weight, IPU) pairs."""
    result = UpdatePlan(optimiser or optimizer(), settings, num_ipus)
    result.add([Gradient(w.name, ipu, 0, w, i, stage=ipu) for i, (w, ipu) in enumerate(gradients)])
    return result


def names(result):
    return [[part.code.name for part in parts] for parts in result.parts]


def test_plan_when_one_replica_then_each_ipu_updates_and_nothing_else():
    result = plan([(weight("a"), 0), (weight("b"), 2)], 3, config())
    assert names(result) == [["update 0"], ["update 1"], ["update 2"]]
    assert set(result.parts[0][0].stores.values()) == {"a", "Accl1___a", "Accl2___a", "Step___a"}
    assert not result.parts[1][0].stores and not result.links


def test_plan_when_made_again_then_the_rule_is_that_of_before_unless_its_values_differ():
    def nodes(**others):
        (part,) = plan([(weight(), 0)], 1, config(), optimizer(**others)).parts[0]
        return [instruction.node for instruction in part.code.instructions]

    assert nodes() == nodes()
    assert not set(nodes()).intersection(nodes(beta1=0.8))


def test_plan_when_replicated_then_all_reduce_first_and_replica_0_updates():
    result = plan([(weight("a"), 0), (weight("b"), 0)], 1, config(4))
    reduction, update = result.parts[0]
    assert (reduction.runners, reduction.reductions) == ((0, 1, 2, 3), ("a", "b"))
    assert (update.runners, update.is_sharded) == ((0,), False)


def test_plan_when_clipping_then_each_updating_ipu_gets_the_norm_of_each_ipu_with_gradients():
    gradients = [(weight("a"), 0), (weight("b"), 2)]
    result = plan(gradients, 3, config(2), optimizer(limit=1.0))
    assert names(result) == [
        ["reduce 0", "norm 0", "update 0"],
        ["update 1"],
        ["reduce 2", "norm 2", "update 2"],
    ]
    assert [(link.producer, link.consumer) for link in result.links] == [
        ("norm 0", "update 0"),
        ("norm 2", "update 0"),
        ("norm 0", "update 2"),
        ("norm 2", "update 2"),
    ]


def test_plan_when_clipping_then_norms_are_those_of_stages_in_their_order():
    result = UpdatePlan(optimizer(limit=1.0), config(), 2)
    # A V: stages 0 and 3 on the first IPU, 1 and 2 on the second.
    result.add(
        [
            Gradient(name, ipu, 0, weight(name), number, stage=stage)
            for number, (name, ipu, stage) in enumerate(
                [("d", 0, 3), ("c", 1, 2), ("b", 1, 1), ("a", 0, 0)]
            )
        ]
    )
    assert names(result) == [["norm 0", "norm 3", "update 0"], ["norm 1", "norm 2", "update 1"]]
    for consumer in ("update 0", "update 1"):
        senders = [link.producer for link in result.links if link.consumer == consumer]
        assert senders == ["norm 0", "norm 1", "norm 2", "norm 3"]


def test_plan_when_weights_are_grouped_then_the_first_of_each_group_updates_them():
    gradients = [
        (weight("shared"), 0),
        (weight("pairs", groups=(0, 0, 1, 1)), 0),
        (weight("own", groups=(0, 1, 2, 3)), 0),
    ]
    result = plan(gradients, 1, config(4))
    assert [part.runners for part in result.parts[0]] == [(0, 1, 2, 3), (0,), (0, 2), (0, 1, 2, 3)]
    assert result.parts[0][0].reductions == ("shared", "pairs")
    groups = {state.name: state.group_of_replica for state in result.states}
    assert groups["Accl1___pairs"] == (0, 0, 1, 1) and groups["Step___own"] == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("sharding", "states", "accumulators", "reductions"),
    [
        (ShardingConfig(weight=0), [], [], ("w",)),
        (ShardingConfig(optimizer=0), ["Accl1___w", "Accl2___w"], [], ("w",)),
        (ShardingConfig(accumulator=0), [], ["w"], None),
    ],
    ids=["weight", "optimizer", "accumulator"],
)
def test_plan_when_sharded_then_every_replica_updates_its_part_and_counts_for_itself(
    sharding, states, accumulators, reductions
):
    result = plan([(weight(), 0)], 1, config(2, sharding))
    assert [state.name for state in result.states if state.is_sharded] == states
    assert result.sharded_accumulators == accumulators
    update = result.parts[0][-1]
    assert (update.runners, update.is_sharded) == ((0, 1), True)
    assert [state.name for state in result.states if state.is_per_replica] == ["Step___w"]
    reduced = [part.reductions for part in result.parts[0] if part.reductions]
    assert reduced == ([] if reductions is None else [reductions])


@pytest.mark.parametrize(
    ("variable", "replicas"),
    [
        (weight(), 1),
        (weight(shape=()), 2),
        (weight(groups=(0, 1)), 2),
        (weight(is_per_replica=True), 2),
    ],
    ids=["one-replica", "0-d", "grouped", "changed-by-the-model"],
)
def test_sharding_when_a_weight_cannot_be_cut_then_it_stays_whole(variable, replicas):
    assert sharding_of(variable, config(replicas, ShardingConfig(0, 0, 0))) == Sharding()


def test_plan_when_lamb_is_sharded_then_squares_are_added_up_between_two_halves():
    optimiser = optimizer(OptimizerKind.LAMB, max_weight_norm=10.0)
    gradients = [(weight("a"), 0), (weight("b"), 0), (weight("scale", ()), 0)]
    result = plan(gradients, 1, config(2, ShardingConfig(0, 0, 0)), optimiser)
    assert names(result) == [
        ["reduce 0", "directions 0", "reduce squares 0", "steps 0", "update 0"]
    ]
    reduction, directions, squares, steps, update = result.parts[0]
    assert reduction.reductions == ("scale",)
    assert list(directions.sums.values()) == list(squares.reductions) == result.sums
    assert len(result.sums) == 2 and list(steps.stores.values()) == ["a", "b"]
    assert {"scale", "Step___scale"} < set(update.stores.values())
    (link,) = result.links
    assert (link.producer, link.consumer, len(link.sources)) == ("directions 0", "steps 0", 2)


def test_plan_when_lamb_is_sharded_then_weights_share_what_is_recorded_unless_values_differ():
    def nodes(**others):
        settings = config(2, ShardingConfig(optimizer=1))
        halves = plan(
            [(weight("a"), 0), (weight("b", (2, 6)), 0)],
            1,
            settings,
            optimizer(OptimizerKind.LAMB, max_weight_norm=10.0, **others),
        ).parts[0]
        return [
            {instruction.node for instruction in part.code.instructions}
            for part in halves
            if part.code.name in ("directions 0", "steps 0")
        ]

    assert nodes() == nodes()
    for half, other in zip(nodes(), nodes(beta1=0.8), strict=True):
        assert half and not half & other


@pytest.mark.parametrize(("threshold", "is_cut"), [(24, True), (25, False), (None, False)])
def test_sharding_when_a_weight_has_24_elements_then_thresholds_above_keep_it(threshold, is_cut):
    settings = config(2, ShardingConfig(threshold, None, threshold))
    expected = Sharding(is_cut, False, is_cut)
    assert sharding_of(weight(), settings) == expected


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"replication_factor": 4, "gradient_accumulation": 5}, 1 / 20),
        ({"replication_factor": 4, "gradient_accumulation": 5, "num_processes": 2}, 1 / 40),
        ({"replication_factor": 4, "gradient_accumulation": 5, "is_running_mean": True}, 1 / 4),
        ({"replication_factor": 4, "reduction_type": ReductionType.Sum}, 1.0),
    ],
)
def test_gradient_scale_then_divides_by_what_was_added_up(settings, scale):
    assert gradient_scale(CompileConfig(is_training=True, **settings)) == scale


def loss_scaled(**others):
    scaled = optimizer(**others)
    return replace(scaled, loss_scaling=Hyper(1.0, False), loss_scale_rule=LossScaleRule())


def test_plan_when_the_loss_scale_is_automatic_then_ipus_count_and_the_last_one_decides():
    gradients = [Gradient(f"w{i}", i, 0, weight(f"w{i}"), i, stage=i) for i in range(2)]
    result = UpdatePlan(loss_scaled(limit=1.0), config(2), 3)
    result.add(gradients, loss_ipu=2)
    assert names(result) == [
        ["reduce 0", "norm 0", "count 0", "update 0"],
        ["reduce 1", "norm 1", "count 1", "update 1"],
        ["loss scale", "update 2"],
    ]
    links = [(link.producer, link.consumer) for link in result.links]
    assert len(set(links)) == len(links)
    assert {link for link in links if "norm" not in link[0]} == {
        ("count 0", "loss scale"),
        ("count 1", "loss scale"),
        ("loss scale", "update 0"),
        ("loss scale", "update 1"),
    }
    change = result.parts[2][0]
    assert set(change.stores.values()) == {"lossScaleUpdateFactor", "lossScaleStatistics"}
    assert set(change.named) == {"finalLossScale"}


def test_plan_when_the_loss_scale_is_automatic_and_weights_grouped_then_every_replica_counts():
    result = UpdatePlan(loss_scaled(), config(2, weight_groups=("w",)), 1)
    result.add([Gradient("w", 0, 0, weight("w", groups=(0, 1)), 0)])
    assert names(result)[0][:4] == ["count 0", "reduce counts 0", "counts 0", "loss scale"]
    assert result.parts[0][0].runners == (0, 1)
    assert result.sums == ["counts 0"]
