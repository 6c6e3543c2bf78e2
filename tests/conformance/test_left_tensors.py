"""Tensors that forward keeps outside, as plain PyTorch leaves them (semantics.md 12.1)."""

from __future__ import annotations

import collections
import copy
import functools
import io
import logging
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import poptorch_emu as poptorch
from poptorch_emu.trace.recording import left_tensors

pytestmark = pytest.mark.feature("Tensors kept by forward", fidelity="exact")

X = torch.randn(3, 4)
# Variables outside of the models below, in which some models keep tensors.
_table: torch.Tensor | None = None
_tables: dict[int, torch.Tensor] = {}


class Model(nn.Module):
    """Computes with the result of `keep`, which keeps tensors in `kept`."""

    made: torch.Tensor | None = None

    def __init__(self, keep: Callable, kept: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = nn.Module()  # The wrapper traces a shallow copy of the outermost module.
        self.inner.kept = kept
        self.keep = keep

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.linear(x) * self.keep(self.inner, x)
        return x, F.mse_loss(x, torch.zeros_like(x))


def table(x: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that depends only on the shape of the input."""
    return torch.arange(float(x.shape[-1]), device=x.device) / 3


class Pair(NamedTuple):
    table: torch.Tensor
    number: int


@dataclass(frozen=True)
class Frozen:
    table: torch.Tensor


class Slots:
    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: torch.Tensor | None = None


@functools.cache
def cached_without_end(count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(float(count), device=device) / 3


@functools.lru_cache(maxsize=2)
def cached(count: int) -> torch.Tensor:
    return torch.arange(float(count)) / 3


class WithProperty:
    @functools.cached_property
    def table(self) -> torch.Tensor:
        return torch.arange(4.0) / 3


def in_attribute(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None:
        inner.kept = table(x)
    return inner.kept


def in_new_attribute(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "table"):
        inner.table = table(x).view(1, 4)[0]
    return inner.table


def in_container(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not inner.kept:
        if isinstance(inner.kept, dict):
            inner.kept[x.shape[-1], x.device] = [{"table": (table(x), 1)}]
        else:
            inner.kept.append([{"table": (table(x), 1)}])
    (entry,) = inner.kept.values() if isinstance(inner.kept, dict) else inner.kept
    return entry[0]["table"][0]


def in_set(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not inner.kept:
        inner.kept.add(table(x))
    return next(iter(inner.kept))


def in_object(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept.table is None:
        inner.kept.table = table(x)
    return inner.kept.table


def as_pair(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None:
        inner.kept = Pair(table(x), 1)
    return inner.kept.table


def as_frozen(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None:
        inner.kept = Frozen(table(x))
    return inner.kept.table


def in_global(inner: Any, x: torch.Tensor) -> torch.Tensor:
    global _table
    if _table is None:
        _table = table(x)
    return _table


def in_global_dict(inner: Any, x: torch.Tensor) -> torch.Tensor:
    return _tables.setdefault(4, table(x))


def in_class(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if Model.made is None:
        Model.made = table(x)
    return Model.made


def in_default(inner: Any, x: torch.Tensor, kept: dict = {}) -> torch.Tensor:  # noqa: B006
    return kept.setdefault(4, table(x))


def on_function(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(on_function, "table"):
        on_function.table = table(x)
    return on_function.table


def in_module_of_list(inner: Any, x: torch.Tensor) -> torch.Tensor:
    return in_attribute(inner.kept[0], x)


def unregistered() -> list[nn.Module]:
    module = nn.Module()
    module.kept = None
    return [module]


def moved(inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.kept = inner.kept.to(x.device)
    return inner.kept


def changed_in_place(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None:
        inner.kept = torch.zeros(4, device=x.device)
        inner.kept[1:3] = 2.0
        inner.kept += 1
    return inner.kept


def growing(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None or len(inner.kept) < x.shape[-1]:
        inner.kept = torch.arange(2.0 * x.shape[-1], device=x.device)
    return inner.kept[: x.shape[-1]]


def device_and_mask(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None:
        inner.kept, inner.mask = x.device, table(x) > 0.5
    return torch.ones(4, device=inner.kept).masked_fill(inner.mask, 2.0)


KNOWN: dict[str, Callable[[], Model]] = {
    "attribute": lambda: Model(in_attribute),
    "new attribute": lambda: Model(in_new_attribute),
    "dict": lambda: Model(in_container, {}),
    "list": lambda: Model(in_container, []),
    "deque": lambda: Model(in_container, collections.deque(maxlen=2)),
    "ordered dict": lambda: Model(in_container, collections.OrderedDict()),
    "set": lambda: Model(in_set, set()),
    "namespace": lambda: Model(in_object, types.SimpleNamespace(table=None)),
    "slots": lambda: Model(in_object, Slots()),
    "named tuple": lambda: Model(as_pair),
    "frozen dataclass": lambda: Model(as_frozen),
    "global": lambda: Model(in_global),
    "global dict": lambda: Model(in_global_dict),
    "class": lambda: Model(in_class),
    "default": lambda: Model(in_default),
    "function": lambda: Model(on_function),
    "unregistered module": lambda: Model(in_module_of_list, unregistered()),
    "cache": lambda: Model(lambda _, x: cached_without_end(4, x.device)),
    "bounded cache": lambda: Model(lambda _, x: cached(4).to(x.device)),
    "cached property": lambda: Model(lambda i, x: i.kept.table.to(x.device), WithProperty()),
    "moved": lambda: Model(moved, torch.tensor([1.0, 0.0, 1.0, 0.0])),
    "moved integers": lambda: Model(moved, torch.tensor([1, 0, 1, 0])),
    "changed in place": lambda: Model(changed_in_place),
    "growing": lambda: Model(growing),
    "device": lambda: Model(device_and_mask),
}


def input_in_attribute(inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.kept = x * 2
    return torch.ones_like(x)


def input_in_list(inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.kept.extend([x * 2, 3, x, (x * 1,)])
    return torch.ones_like(x)


def input_in_dict(inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.kept["map"] = x.softmax(-1)
    return inner.kept["map"]


def random_in_attribute(inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.kept = torch.rand(4, device=x.device)
    return torch.ones_like(x)


def beside_a_draw_of_the_host(inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.kept = x * 2
    drawn = np.random.permutation(64)
    inner.rows = x[drawn[:2] % 2]
    return torch.ones_like(x)


def body_in_attribute(inner: Any, x: torch.Tensor) -> torch.Tensor:
    def body(y: torch.Tensor) -> torch.Tensor:
        inner.kept = y
        return y + 1

    return poptorch.for_loop(2, body, [x])[0] if poptorch.isRunningOnIpu() else x + 2


# For each case: the model, the kept value after the trace, and the name in the warning.
UNKNOWN: dict[str, tuple[Callable[[], Model], Any, str]] = {
    "attribute": (lambda: Model(input_in_attribute), None, "inner.kept"),
    "list": (lambda: Model(input_in_list, [7]), [7, 3], "inner.kept[1]"),
    "dict": (lambda: Model(input_in_dict, {"a": 1}), {"a": 1}, "inner.kept['map']"),
    "random": (lambda: Model(random_in_attribute), None, "inner.kept"),
    "draw": (lambda: Model(beside_a_draw_of_the_host), None, "inner.kept"),
    "body": (lambda: Model(body_in_attribute), None, "inner.kept"),
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Clears all tensors that models keep outside, before and after a test."""
    forget()
    yield
    forget()


def forget() -> None:
    global _table
    _table = Model.made = None
    _tables.clear()
    in_default.__defaults__[0].clear()
    vars(on_function).clear()
    cached.cache_clear()
    cached_without_end.cache_clear()


def trained(model: Model) -> None:
    """Runs one training step on the IPU."""
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    training(X)
    training.destroy()


def evaluated(model: Model) -> None:
    poptorch.inferenceModel(model, options())(X)


@pytest.mark.parametrize("use", [trained, evaluated], ids=["trained", "evaluated"])
@pytest.mark.parametrize("name", [*KNOWN, *(f"unknown {name}" for name in UNKNOWN)])
def test_tensor_kept_by_forward_when_traced_then_the_model_is_as_after_a_plain_call(
    name: str, use: Callable, logged: pytest.LogCaptureFixture
) -> None:
    unknown = UNKNOWN.get(name.removeprefix("unknown "))
    make = unknown[0] if unknown else KNOWN[name]
    torch.manual_seed(3)
    model = make()
    with logged.at_level(logging.WARNING):
        use(model)
    messages = [r.getMessage() for r in logged.records if "forward leaves" in r.getMessage()]
    if unknown:
        (message,) = messages
        assert unknown[2] in message
        assert model.inner.kept == unknown[1]
    else:
        assert not messages
    logged.clear()
    second = poptorch.inferenceModel(model, options())(X)
    # Tensors that forward creates on a kept device are on the host now.
    assert name == "device" or "Expected an IPU tensor" not in logged.text
    plain = make()
    forget()
    plain.load_state_dict(model.state_dict())
    expected = plain(X)
    for result in (second, model(X), copy.deepcopy(model)(X), saved_and_loaded(model)(X)):
        torch.testing.assert_close(result, expected)


def saved_and_loaded(model: Model) -> nn.Module:
    """Returns the model from a file, which leaves out local functions of the tests."""
    keep, model.keep = model.keep, None
    file = io.BytesIO()
    torch.save(model, file)
    model.keep = keep
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    loaded.keep = keep
    return loaded


def test_values_when_known_then_equal_those_of_a_plain_call() -> None:
    def keep(inner: Any, x: torch.Tensor) -> torch.Tensor:
        inner.table, inner.mask = table(x), table(x) > 0.5
        inner.places = torch.arange(4, device=x.device)
        inner.of_weight = inner.scale * 2
        inner.kept = [(inner.table + 1, inner.scale)]
        return inner.table

    model = Model(keep)
    model.inner.register_buffer("scale", torch.randn(4))
    plain = copy.deepcopy(model)
    evaluated(model)
    plain(X)
    for name in ("table", "mask", "places", "of_weight"):
        ours, theirs = getattr(model.inner, name), getattr(plain.inner, name)
        assert type(ours) is torch.Tensor
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(model.inner.kept[0][0], plain.inner.kept[0][0])
    assert model.inner.kept[0][1] is model.inner.scale


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated", "ignore:.*spectral_norm")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weight_of_a_norm_when_trained_then_the_plain_model_has_it(norm: Callable) -> None:
    model = Model(lambda _, x: torch.ones_like(x))
    norm(model.linear)
    trained(model)
    expected = copy.deepcopy(model.state_dict())
    assert not isinstance(model.linear.weight, FakeTensor)
    result = poptorch.inferenceModel(model.eval(), options())(X)
    torch.testing.assert_close(result, model(X))
    assert model.state_dict().keys() == expected.keys()


def test_outputs_when_kept_and_returned_then_are_returned_in_each_call() -> None:
    def keep(inner: Any, x: torch.Tensor) -> torch.Tensor:
        inner.kept = {"x": x * 2}
        return inner.kept["x"]

    model = Model(keep)
    model.forward = lambda x: (model.keep(model.inner, x), model.inner.kept)[1]
    inference = poptorch.inferenceModel(model, options())
    for factor in (1, 2):
        torch.testing.assert_close(inference(X * factor), {"x": X * factor * 2})
    assert model.inner.kept in (None, {})


def cached_output(inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.kept is None:
        inner.kept = x * 2
    return inner.kept


def cached_in_dict(inner: Any, x: torch.Tensor) -> torch.Tensor:
    return inner.kept.setdefault("first", (x.softmax(-1), 3))[0]


def last_input(inner: Any, x: torch.Tensor) -> torch.Tensor:
    last, inner.kept = inner.kept, x.detach()
    return last


def other_after_the_first(inner: Any, x: torch.Tensor) -> torch.Tensor:
    is_first, inner.kept = inner.kept is None, x * 1
    return x if is_first else -x


def table_after_the_first(inner: Any, x: torch.Tensor) -> torch.Tensor:
    is_first, inner.kept = inner.kept is None, table(x)
    return torch.ones_like(x) if is_first else inner.kept


@pytest.mark.parametrize("use", [trained, evaluated], ids=["trained", "evaluated"])
@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (cached_output, None),
        (cached_in_dict, {}),
        (last_input, torch.zeros(3, 4)),
        (other_after_the_first, None),
        (table_after_the_first, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tensor_of_an_input_when_a_second_call_uses_it_then_refused(
    keep: Callable, kept: Any, use: Callable
) -> None:
    model = Model(keep, copy.copy(kept))
    with pytest.raises(poptorch.Error, match=r"inner.kept.*:\d+\), and a second call computes"):
        use(model)
    if keep is not table_after_the_first:
        assert type(model.inner.kept) is type(kept)


def test_tensor_of_an_input_when_kept_before_the_model_is_wrapped_then_a_constant() -> None:
    model = Model(cached_output)
    model(X)
    expected = model(X * 3)
    torch.testing.assert_close(poptorch.inferenceModel(model, options())(X * 3), expected)


def test_forward_when_it_fails_then_what_it_kept_has_values() -> None:
    def keep(inner: Any, x: torch.Tensor) -> torch.Tensor:
        inner.kept = table(x)
        raise ValueError("unlucky")

    model = Model(keep)
    with pytest.raises(ValueError, match="unlucky"):
        evaluated(model)
    torch.testing.assert_close(model.inner.kept, table(X))


def test_backward_of_the_user_when_it_reads_what_forward_kept_then_finds_it() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, inner: Any) -> torch.Tensor:
            inner.kept, ctx.inner = x, inner
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
            return gradient * 2 * ctx.inner.kept, None

    model = Model(lambda _, x: torch.ones_like(x))
    model.forward = lambda x: F.mse_loss(
        Doubled.apply(model.linear(x), model.inner), torch.zeros_like(x)
    )
    plain = copy.deepcopy(model.linear)
    F.mse_loss(plain(X) ** 2, torch.zeros_like(X)).backward()
    before = model.linear.weight.detach().clone()
    trained(model)
    torch.testing.assert_close(model.linear.weight, before - 0.1 * plain.weight.grad)
    assert model.inner.kept is None


def test_search_when_forward_keeps_nothing_then_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(left_tensors, "Search", refuse)
    model = Model(lambda _, x: F.dropout(x).sort()[0].split(2, -1)[0].repeat(1, 2))
    trained(model)
    evaluated(model)
