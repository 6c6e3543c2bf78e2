"""Random optimiser settings in the whole engine, compared with the scalar references."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import update_reference as reference
from support.small_models import options, trained

import poptorch_emu as poptorch

_LR = st.floats(1e-4, 0.1)
_DECAY = st.sampled_from([0.0, 0.01, 0.3])
_BETAS = st.tuples(st.floats(0.5, 0.95), st.floats(0.8, 0.999))
_EPS = st.sampled_from([1e-8, 1e-4, 1e-2])


@st.composite
def sgds(draw: st.DrawFn) -> tuple[type, dict[str, Any], Any, dict[str, Any]]:
    momentum = draw(st.sampled_from([None, 0.0, 0.5, 0.9]))
    nesterov = bool(momentum) and draw(st.booleans())
    # PyTorch refuses Nesterov momentum together with dampening.
    dampening = 0.0 if nesterov else draw(st.sampled_from([0.0, 0.4]))
    values = {"lr": draw(_LR), "weight_decay": draw(_DECAY), "dampening": dampening}
    arguments = {**values, "momentum": momentum, "nesterov": nesterov}
    arguments["use_combined_accum"] = draw(st.booleans())
    told = {**values, "momentum": momentum or 0.0, "nesterov": nesterov}
    told["has_velocity"] = momentum is not None
    return poptorch.optim.SGD, arguments, reference.sgd, told


@st.composite
def adams(draw: st.DrawFn) -> tuple[type, dict[str, Any], Any, dict[str, Any]]:
    kind = draw(st.sampled_from([poptorch.optim.Adam, poptorch.optim.AdamW]))
    values = {"lr": draw(_LR), "eps": draw(_EPS), "weight_decay": draw(_DECAY)}
    betas = draw(_BETAS)
    told = {**values, "beta1": betas[0], "beta2": betas[1]}
    told["is_decoupled"] = kind is poptorch.optim.AdamW
    return kind, {**values, "betas": betas}, reference.adam, told


@st.composite
def rmsprops(draw: st.DrawFn) -> tuple[type, dict[str, Any], Any, dict[str, Any]]:
    values = {"lr": draw(_LR), "weight_decay": draw(_DECAY), "alpha": draw(st.floats(0.5, 0.99))}
    # Centered RMSprop divides by the root of a difference, which is imprecise for smaller eps.
    values["eps"] = draw(st.sampled_from([1e-2, 1e-1]))
    values["momentum"] = draw(st.sampled_from([0.0, 0.9]))
    centered, tensorflow = draw(st.booleans()), draw(st.booleans())
    arguments = {**values, "centered": centered, "use_tf_variant": tensorflow}
    told = {**values, "is_centered": centered, "is_tensorflow": tensorflow}
    return poptorch.optim.RMSprop, arguments, reference.rmsprop, told


@st.composite
def lambs(draw: st.DrawFn) -> tuple[type, dict[str, Any], Any, dict[str, Any]]:
    values = {"lr": draw(_LR), "eps": draw(_EPS), "weight_decay": draw(_DECAY)}
    values["max_weight_norm"] = draw(st.sampled_from([0.5, 65500.0]))
    betas, is_corrected = draw(_BETAS), draw(st.booleans())
    arguments = {**values, "betas": betas, "bias_correction": is_corrected}
    told = {**values, "beta1": betas[0], "beta2": betas[1], "is_corrected": is_corrected}
    return poptorch.optim.LAMB, arguments, reference.lamb, told


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(sgds(), adams(), rmsprops(), lambs()), st.sampled_from([1.0, 64.0]))
def test_engine_when_settings_are_random_then_follows_the_published_formula(
    case: tuple[type, dict[str, Any], Any, dict[str, Any]], loss_scaling: float
) -> None:
    """Runs ten updates of two weights whose gradients are the inputs."""
    kind, arguments, rule, told = case
    generator = torch.Generator().manual_seed(11)
    gradients = torch.randn(10, 2, generator=generator)
    start = torch.tensor([0.8, -1.3])
    (after,) = trained(
        lambda x, w: poptorch.identity_loss(w * x, "sum"),
        [start],
        [(gradient.unsqueeze(0),) for gradient in gradients],
        optimizer=lambda p: kind(p, **arguments, loss_scaling=loss_scaling),
        opts=options(),
    )
    if rule is reference.lamb:
        expected = rule(start.tolist(), gradients.tolist(), **told)
    else:
        expected = [
            rule(w, column.tolist(), **told)
            for w, column in zip(start.tolist(), gradients.t(), strict=True)
        ]
    torch.testing.assert_close(after, torch.tensor(expected), rtol=2e-5, atol=2e-6)
