"""Properties of every update rule, for all hyper-parameters, shapes and values."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.update_runner import make_config, run_updates

from poptorch_emu.update.formulas.clipping import clip_scale
from poptorch_emu.update.formulas.optimizer_config import HYPERS, OptimizerKind
from poptorch_emu.update.formulas.rules import is_elementwise

_RANGES = {
    "lr": (0.0, 0.1),
    "momentum": (0.0, 0.99),
    "dampening": (0.0, 0.9),
    "weight_decay": (0.0, 0.5),
    "velocity_scaling": (1.0, 1.0),
    "beta1": (0.0, 0.99),
    "beta2": (0.5, 0.999),
    "eps": (1e-3, 1e-1),
    "alpha": (0.5, 0.999),
    "max_weight_norm": (0.0, 10.0),
}
Case = tuple[OptimizerKind, dict[str, float], bool]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draws a rule, its hyper-parameters and whether it is TensorFlow's variant."""
    kind = draw(st.sampled_from(OptimizerKind))
    values = {
        name: float(draw(st.booleans())) if name == "nesterov" else draw(st.floats(*_RANGES[name]))
        for name in HYPERS[kind]
    }
    if values.get("nesterov"):
        values["dampening"] = 0.0
    return kind, values, draw(st.booleans())


def train(
    case: Case, weight: torch.Tensor, gradients: torch.Tensor, *, variable: bool = False
) -> list[torch.Tensor]:
    """Returns the weight and the state after one update for each gradient."""
    kind, values, uses_tf_variant = case
    config = make_config(kind, values, not variable, uses_tf_variant=uses_tf_variant)
    weight, state = run_updates(config, weight, list(gradients))
    return [weight, *state.values()]


@settings(max_examples=60)
@given(cases(), st.integers(0, 2**16), st.integers(1, 6))
def test_rule_when_hypers_are_variable_then_equals_constant(
    case: Case, seed: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(size, generator=generator)
    gradients = torch.randn(4, size, generator=generator)
    if case[1].get("momentum") == 0.0:
        case[1]["momentum"] = 0.5  # With a constant 0, the rule would have no velocity.
    constant = train(case, weight, gradients)
    variable = train(case, weight, gradients, variable=True)
    for left, right in zip(constant, variable, strict=True):
        # Each of a few steps may differ by one rounding.
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@settings(max_examples=60)
@given(cases(), st.integers(0, 2**16), st.integers(2, 8))
def test_rule_when_elementwise_then_a_flat_tensor_serves_many_parameters(
    case: Case, seed: int, size: int
) -> None:
    if not is_elementwise(case[0]):
        return
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(size, generator=generator)
    gradients = torch.randn(3, size, generator=generator)
    together = train(case, weight, gradients)
    cut = size // 2
    left = train(case, weight[:cut], gradients[:, :cut])
    right = train(case, weight[cut:], gradients[:, cut:])
    for whole, first, second in zip(together, left, right, strict=True):
        if whole.dim():
            torch.testing.assert_close(whole, torch.cat([first, second]), rtol=1e-6, atol=1e-6)


@settings(max_examples=60)
@given(cases(), st.integers(0, 2**16))
def test_rule_when_learning_rate_is_zero_then_weight_stays(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    case[1]["lr"] = 0.0
    weight = torch.randn(3, 2, generator=generator)
    after = train(case, weight, torch.randn(2, 3, 2, generator=generator))
    torch.testing.assert_close(after[0], weight, rtol=0, atol=0)


@settings(max_examples=60)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), st.floats(1e-3, 1e4))
def test_clip_scale_when_applied_then_norm_is_bounded_and_small_ones_stay(
    elements: list[float], limit: float
) -> None:
    scale = clip_scale([torch.tensor([element]) for element in elements], limit).item()
    norm = math.hypot(*elements)
    assert 0 <= scale <= 1
    assert norm * scale <= limit * (1 + 1e-5)
    if norm < limit * (1 - 1e-5):
        assert scale == 1
