"""Checks of values in forward: they pass or end the program, so the trace may omit them."""

from __future__ import annotations

import pytest
import torch
from support.wrapped_functions import X, asserted_chain, asserted_number, run, wrapped

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Checks of values in forward", fidelity="accepted")


def asserted(self, x):
    assert (x > 0).all(), "not positive"
    return x + 1


def asserted_within_try(self, x):
    try:
        assert x.sum() > 0
    finally:
        x = x + 1
    return x


def raised(self, x):
    if (x < 0).any():
        raise ValueError(f"negative: {x}")
    return x + 1


def raised_unless(self, x):
    if not torch.allclose(x, x.clone()):
        raise RuntimeError
    return x + 1


def checked(self, x):
    torch._check_tensor_all(x > 0, lambda: "not positive")
    return x + 1


def checked_with(self, x):
    torch._check_tensor_all_with(ValueError, x > 0, lambda: "not positive")
    return x + 1


def asserted_by_torch(self, x):
    torch._assert((x > 0).all(), "not positive")
    return x + 1


def asserted_later(self, x):
    torch._assert_async((x > 0).all(), "not positive")
    return x + 1


def raised_with_a_choice_of_words(self, x):
    if (x < 0).any():
        raise ValueError("a" if self.training else f"b {x}")
    return x + 1


def raised_for_a_number(self, x):
    limit = x.shape[0]
    if limit + 1 != (x > 0).sum().item():
        raise ValueError("another number")
    return x + 1


CHECKS = [
    asserted_number, raised_for_a_number,
    raised_with_a_choice_of_words,
    asserted, asserted_chain, asserted_within_try, raised, raised_unless, checked,
    checked_with, asserted_by_torch, asserted_later,
]  # fmt: skip


@pytest.mark.parametrize("forward", CHECKS, ids=lambda each: each.__name__)
def test_check_of_values_then_left_out_with_one_warning(forward, caplog) -> None:
    executor = wrapped(forward)
    for _ in range(2):
        assert torch.equal(executor(X), X + 1)
    assert "It is left out here: wrong values are not found" in caplog.text


@pytest.mark.parametrize("forward", CHECKS, ids=lambda each: each.__name__)
def test_check_of_values_in_strict_mode_then_error(forward, monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    with pytest.raises(poptorch.Error, match="The check at .*.py:"):
        run(forward, X)


def decided(self, x):
    if (x < 0).any():
        x = -x
    return x


def decided_by_a_check(self, x):
    try:
        if (x < 0).any():
            raise ValueError
    except ValueError:
        x = -x
    return x


def raised_after_a_change(self, x):
    if (x < 0).any():
        self.count = 1
        raise ValueError
    return x


def one_of_two(self, x):
    assert (x < 0).any() or (x > 1).all()
    return x


def number_computed_with(self, x):
    if x.sum().item() + 1 < 0:
        raise ValueError
    return x


def number_that_decides(self, x):
    return x if x.sum().item() > 0 else -x


def number_kept_beside_a_check(self, x):
    if (total := x.sum().item()) < 0:
        raise ValueError
    return x + total


@pytest.mark.parametrize(
    "forward",
    [
        decided, decided_by_a_check, raised_after_a_change, one_of_two,
        number_computed_with, number_that_decides, number_kept_beside_a_check,
    ],
)  # fmt: skip
def test_condition_that_may_decide_something_then_refused(forward) -> None:
    with pytest.raises(poptorch.Error, match="reads a value that only exists when the model runs"):
        run(forward, X)


def test_check_of_a_known_value_that_fails_then_its_error() -> None:
    def forward(self, x):
        assert (torch.arange(3) > 0).all(), "known"
        return x

    with pytest.raises(AssertionError, match="known"):
        run(forward, X)


def test_check_of_a_known_number_that_fails_then_its_error() -> None:
    def forward(self, x):
        if torch.arange(3).max().item() > 1:
            raise ValueError("known")
        return x

    with pytest.raises(ValueError, match="known"):
        run(forward, X)


def test_value_read_in_a_generator_that_a_check_consumes_then_refused() -> None:
    def forward(self, x):
        assert all(bool(row > 0) for row in x)
        return x

    with pytest.raises(poptorch.Error, match="reads a value that only exists when the model runs"):
        run(forward, X)
