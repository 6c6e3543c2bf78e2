"""Replicas, with and without sharding of tensors, against the plain loop on the global batch."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from support.helpers import Setting, plain_step
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content

pytestmark = pytest.mark.feature("Replicated tensor sharding", fidelity="exact")

KINDS = ("Weight", "Optimizer", "Accumulator")
SUBSETS = [(), *((kind,) for kind in KINDS), KINDS]
# One optimiser with all numbers of replicas and each kind of tensor; the others with few of them.
CASES = [
    *itertools.product(["AdamW"], [1, 2, 4], SUBSETS),
    *itertools.product(["SGD", "Adam", "RMSprop", "LAMB"], [4], [KINDS]),
    *itertools.product(["LAMB"], [2], [("Optimizer",)]),
]


def sharded(options: poptorch.Options, kinds: tuple[str, ...], min_elements: int | None = 0):
    """Returns `options` with sharding of these kinds of tensors."""
    for kind in kinds:
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        if min_elements is not None:
            location.minElementsForReplicatedTensorSharding(min_elements)
        getattr(options.TensorLocations, f"set{kind}Location")(location)
    return options


def _make(name: str, module, parameters, **own):
    arguments = {
        "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        "RMSprop": {"lr": 0.005},
    }.get(name, {"lr": 0.01, "weight_decay": 0.01})
    # PyTorch has no LAMB; that of poptorch_emu also runs on the host.
    owner = poptorch.optim if name == "LAMB" else module
    return getattr(owner, name)(parameters, **arguments, **own)


def _train(model, setting, optimizer, batches, kinds, min_elements=0):
    """Returns the losses of all calls; `model` has the trained weights."""
    options = sharded(setting.options(), kinds, min_elements)
    training = poptorch.trainingModel(model, options, optimizer)
    losses = [training(*batch)[1].reshape(-1) for batch in batches]
    training.destroy()
    return torch.cat(losses)


@pytest.mark.parametrize(
    ("name", "replicas", "kinds"),
    CASES,
    ids=[f"{name}-{replicas}-{'+'.join(kinds) or 'whole'}" for name, replicas, kinds in CASES],
)
def test_training_when_sharded_then_equals_the_global_batch(
    name: str, replicas: int, kinds: tuple[str, ...]
) -> None:
    setting = Setting("sharded", accumulation=2, replicas=replicas)
    model = FAMILIES["mlp"].make(2)
    plain = copy.deepcopy(model)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(3)]
    losses = _train(model, setting, _make(name, poptorch.optim, model.parameters()), batches, kinds)
    optimizer = _make(name, torch.optim, plain.parameters())
    expected = torch.cat([plain_step(plain, optimizer, batch, setting) for batch in batches])
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    for name_, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name_], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kinds", [("Weight",), ("Optimizer",), ("Weight", "Optimizer")])
def test_training_when_weights_and_states_are_sharded_then_has_the_bits_of_the_whole_run(
    kinds: tuple[str, ...],
) -> None:
    setting = Setting("pipelined", accumulation=8, replicas=4)
    model = FAMILIES["mlp"].make(4)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(3)]
    results = []
    for chosen in ((), kinds):
        trained = copy.deepcopy(model)
        optimizer = poptorch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        losses = _train(trained, setting, optimizer, batches, chosen)
        results.append([losses, *trained.state_dict().values()])
    for whole, cut in zip(*results, strict=True):
        assert torch.equal(whole, cut)


@pytest.mark.parametrize("replicas", [2, 4])
def test_clipping_when_sharded_then_equals_the_plain_loop(replicas: int) -> None:
    setting = Setting("sharded", accumulation=2, replicas=replicas)
    model = FAMILIES["mlp"].make(2)
    plain = copy.deepcopy(model)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(3)]
    optimizer = _make("AdamW", poptorch.optim, model.parameters(), max_grad_norm=0.05)
    losses = _train(model, setting, optimizer, batches, KINDS)
    optimizer = _make("AdamW", torch.optim, plain.parameters())
    expected = [plain_step(plain, optimizer, batch, setting, 0.05) for batch in batches]
    torch.testing.assert_close(losses, torch.cat(expected), rtol=1e-4, atol=1e-5)


def test_half_accumulators_when_sharded_then_close_to_the_whole_run() -> None:
    setting = Setting("sharded", accumulation=3, replicas=2)
    model = FAMILIES["mlp"].make(1)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(3)]
    results = []
    for kinds in ((), KINDS):
        trained = copy.deepcopy(model)
        optimizer = poptorch.optim.SGD(trained.parameters(), lr=0.1, accum_type=torch.float16)
        results.append(_train(trained, setting, optimizer, batches, kinds))
    torch.testing.assert_close(*results, rtol=2e-3, atol=2e-3)


def _sizes(kinds, replicas=4, min_elements=0, shape=(60, 40)) -> tuple[list[int], list[int]]:
    """Returns the bytes of variables and of gradients that each replica held."""
    model = torch.nn.Sequential(torch.nn.Linear(*shape, bias=False), torch.nn.CrossEntropyLoss())

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.loss = model

        def forward(self, x, labels):
            return self.loss(self.linear(x), labels)

    options = sharded(Setting(replicas=replicas, accumulation=2).options(), kinds, min_elements)
    user = Whole()
    training = poptorch.trainingModel(
        user, options, poptorch.optim.AdamW(user.parameters(), lr=0.1)
    )
    training(torch.randn(4 * replicas, shape[0]), torch.randint(shape[1], (4 * replicas,)))
    session = training._session
    return (
        [session.replica_bytes(replica) for replica in range(replicas)],
        [session.peak_accumulator_bytes(replica) for replica in range(replicas)],
    )


WEIGHT = 4 * 60 * 40
STEP = 4


@pytest.mark.parametrize(
    ("kinds", "variables", "gradients"),
    [
        ((), 3 * WEIGHT + STEP, WEIGHT),
        (("Optimizer",), WEIGHT + 2 * WEIGHT // 4 + STEP, WEIGHT),
        (("Weight", "Optimizer"), 3 * WEIGHT // 4 + STEP, WEIGHT),
        (KINDS, 3 * WEIGHT // 4 + STEP, WEIGHT // 4),
    ],
    ids=["whole", "states", "weights", "everything"],
)
def test_storage_when_sharded_over_four_replicas_then_each_holds_a_quarter(
    kinds: tuple[str, ...], variables: int, gradients: int
) -> None:
    assert _sizes(kinds) == ([variables] * 4, [gradients] * 4)


def test_storage_when_not_divisible_then_each_holds_the_rounded_up_part() -> None:
    held, _ = _sizes(("Weight", "Optimizer"), replicas=4, shape=(7, 3))
    assert held == [3 * 4 * 6 + STEP] * 4


@pytest.mark.parametrize(("min_elements", "is_cut"), [(2400, True), (2401, False), (None, False)])
def test_threshold_when_a_tensor_has_fewer_elements_then_it_stays_whole(
    min_elements: int | None, is_cut: bool
) -> None:
    held, _ = _sizes(("Weight", "Optimizer"), min_elements=min_elements)
    assert held[0] == (3 * WEIGHT // 4 if is_cut else 3 * WEIGHT) + STEP


def test_threshold_when_not_given_then_8192_elements() -> None:
    """Source: PopART's default."""
    held, _ = _sizes(("Optimizer",), replicas=2, min_elements=None, shape=(128, 64))
    assert held[0] == 4 * 128 * 64 * 2 + STEP
    held, _ = _sizes(("Optimizer",), replicas=2, min_elements=None, shape=(128, 63))
    assert held[0] == 4 * 128 * 63 * 3 + STEP


def test_optimizer_state_when_sharded_then_reads_whole_and_loads_again() -> None:
    setting = Setting("sharded", accumulation=2, replicas=4)
    model = FAMILIES["mlp"].make(1)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(4)]
    states = []
    for kinds in ((), ("Optimizer", "Weight")):
        trained = copy.deepcopy(model)
        optimizer = poptorch.optim.Adam(trained.parameters(), lr=0.01)
        training = poptorch.trainingModel(trained, sharded(setting.options(), kinds), optimizer)
        for index, batch in enumerate(batches):
            if index == 2:
                training.detachFromDevice()
                training.attachToDevice()
            training(*batch)
        states.append(optimizer.state_dict()["ipu_state"])
        training.destroy()
    assert states[0]["Accl1___parts.0.0.weight"].shape == (16, 8)
    for name, value in states[0].items():
        cut = states[1][name]
        torch.testing.assert_close(cut, value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kinds", [(), KINDS], ids=["whole", "sharded"])
def test_training_when_workers_differ_then_replicas_give_the_same_bits(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting("pipelined", accumulation=4, iterations=2, replicas=4)
    model = FAMILIES["mlp"].make(2)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(2)]
    results = []
    for workers in ("1", "3", "8"):
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", workers)
        trained = copy.deepcopy(model)
        optimizer = poptorch.optim.Adam(trained.parameters(), lr=0.01)
        losses = _train(trained, setting, optimizer, batches, kinds)
        results.append([losses, *trained.state_dict().values()])
    for other in results[1:]:
        for expected, value in zip(results[0], other, strict=True):
            assert torch.equal(expected, value)


class Frozen(torch.nn.Module):
    """A layer that is not trained, with a buffer, before one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(6, 5, bias=False).requires_grad_(False)
        self.register_buffer("offset", torch.randn(5))
        self.trained = torch.nn.Linear(5, 3, bias=False)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        x = self.trained(torch.tanh(self.frozen(x) + self.offset))
        return x if labels is None else (x, self.loss(x, labels))


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_inference_when_weights_are_sharded_then_replicas_hold_parts_and_give_the_same_bits(
    replicas: int,
) -> None:
    setting = Setting("sharded", replicas=replicas, iterations=2)
    model, x = Frozen(), torch.randn(4 * replicas, 6)
    offsets = torch.randn(2, 5)
    results = []
    for kinds in ((), ("Weight",)):
        infer = poptorch.inferenceModel(model, sharded(setting.options(), kinds))
        for offset in offsets:
            model.offset.copy_(offset)
            if infer.isCompiled():
                infer.copyWeightsToDevice()
            results.append(infer(x))
        held = [infer._session.replica_bytes(replica) for replica in range(replicas)]
        count = replicas if kinds else 1
        assert held == [4 * sum(-(-size // count) for size in (30, 5, 15))] * replicas
        assert emulator.memory(infer).num_bytes(content=Content.WEIGHT) == held[0]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    torch.testing.assert_close(results[1], model(x))


def test_training_when_a_sharded_weight_is_frozen_then_it_is_cut_and_stays() -> None:
    setting = Setting("sharded", accumulation=2, replicas=2)
    model = Frozen()
    plain = copy.deepcopy(model)
    rows = 2 * setting.num_micro_batches
    batches = [(torch.randn(rows, 6), torch.randint(3, (rows,))) for _ in range(3)]
    options = sharded(setting.options(), ("Weight",))
    optimizer = poptorch.optim.SGD(model.trained.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    losses = torch.cat([training(*batch)[1].reshape(-1) for batch in batches])
    assert training._session.replica_bytes(1) == 4 * (15 + 3 + 8)
    training.destroy()
    optimizer = torch.optim.SGD(plain.trained.parameters(), lr=0.1)
    expected = torch.cat([plain_step(plain, optimizer, batch, setting) for batch in batches])
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    assert torch.equal(model.frozen.weight, plain.frozen.weight)
