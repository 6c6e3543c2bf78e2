"""Any nesting of loops and branches has the value and the gradient of plain Python."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flow_models import train_weight

import poptorch_emu as poptorch

STEPS = st.sampled_from(["scale", "shift", "sine", "in place", "swap"])


def _branches(children: Any) -> Any:
    code = st.lists(children, min_size=1, max_size=3)
    loops = st.tuples(st.just("loop"), st.integers(1, 3), code)
    conds = st.tuples(st.just("cond"), st.sampled_from([-1.0, 0.0, 1.0]), code, code)
    return loops | conds


CODE = st.lists(st.recursive(STEPS, _branches, max_leaves=8), min_size=1, max_size=4)


def run(code: Any, weight: torch.Tensor, a: Any, b: Any, loop: Any, cond: Any) -> tuple[Any, Any]:
    """Interprets `code` on two tensors of the same shape."""
    for step in code:
        if step == "scale":
            a = a * weight
        elif step == "shift":
            b = b + 0.1 * a.sum() * weight
        elif step == "sine":
            a = torch.sin(a + b)
        elif step == "in place":
            a = a.clone()
            a[:, 1:] *= 0.5
        elif step == "swap":
            a, b = b, a
        elif step[0] == "loop":
            _, count, body = step
            a, b = loop(count, _body(body, weight, loop, cond), [a, b])
        else:
            _, limit, then, otherwise = step
            bodies = [_body(part, weight, loop, cond) for part in (then, otherwise)]
            a, b = cond(a.sum() > limit, bodies[0], [a, b], bodies[1], [a, b])
    return a, b


def _body(code: Any, weight: torch.Tensor, loop: Any, cond: Any) -> Any:
    return lambda a, b: run(code, weight, a, b, loop, cond)


def plain_loop(count: int, body: Any, inputs: Any) -> Any:
    for _ in range(count):
        inputs = body(*inputs)
    return inputs


def plain_cond(condition: Any, then: Any, then_inputs: Any, other: Any, other_inputs: Any) -> Any:
    return then(*then_inputs) if condition else other(*other_inputs)


@settings(max_examples=8)
@given(code=CODE)
def test_nest_when_trained_then_gradient_equals_plain_autograd(code: Any) -> None:
    x = torch.tensor([[0.3, -0.7, 1.1]])
    weight = torch.tensor([0.5, -0.9, 1.2])

    def loss_of(model: Any, x: torch.Tensor, loop: Any, cond: Any) -> torch.Tensor:
        a, b = run(code, model.weight, x * model.weight, x, loop, cond)
        return (a * a + b).sum()

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, x, poptorch.for_loop, poptorch.cond)
        return poptorch.identity_loss(loss, "none")

    plain = torch.nn.Module()
    plain.weight = torch.nn.Parameter(weight.clone())
    loss_of(plain, x, plain_loop, plain_cond).backward()
    gradient = train_weight(forward, x, weight=weight)
    torch.testing.assert_close(gradient, plain.weight.grad, rtol=1e-4, atol=1e-5)
