"""Maps each random ATen operation to a counter-based operator.

This file knows neither the origin of random operations nor how their numbers are computed. A random
operation that is not in the table has no counter-based form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.arguments import named_arguments
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

Call = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]
Rewrite = Callable[[Sequence[Any], Mapping[str, Any], fx.Node, int], Call]

# Maps an ATen operation's named arguments to those of our operator, after `rng` and `op_id`.
Arguments = Callable[[dict[str, Any]], tuple[Any, ...]]


def _dtype(call: dict[str, Any], default: torch.dtype) -> torch.dtype:
    # The default value in a schema is a number, not a `torch.dtype`.
    dtype = call.get("dtype")
    return dtype if isinstance(dtype, torch.dtype) else default


def _sized(call: dict[str, Any]) -> tuple[list[int], torch.dtype]:
    return list(call["size"]), _dtype(call, torch.get_default_dtype())


def _like(call: dict[str, Any]) -> tuple[list[int], torch.dtype]:
    value = call["self"].meta["val"]
    return list(value.shape), _dtype(call, value.dtype)


def _integers(call: dict[str, Any]) -> tuple[Any, ...]:
    return list(call["size"]), _dtype(call, torch.int64), call.get("low", 0), call["high"]


def _integers_like(call: dict[str, Any]) -> tuple[Any, ...]:
    return *_like(call), call.get("low", 0), call["high"]


def _moments(call: dict[str, Any]) -> tuple[Any, Any]:
    return call["mean"], call["std"]


def _dropout_p(call: dict[str, Any]) -> float:
    p: float = 0.0 if call["train"] is False else call["p"]
    return p


def _full_range(call: dict[str, Any]) -> tuple[Any, ...]:
    size, dtype = _like(call)
    end = call.get("to")
    return size, dtype, call.get("from", 0), _end_of(dtype) if end is None else end


def _end_of(dtype: torch.dtype) -> int:
    """Returns the upper bound, which `random_` never draws for a tensor of `dtype`."""
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps) + 1
    # The largest int64 is never drawn, because no int64 bound lies above it.
    return min(torch.iinfo(dtype).max + 1, torch.iinfo(torch.int64).max)


# Operator of this package and its arguments, for each ATen operation.
_TABLE: dict[OpOverload, tuple[str, Arguments]] = {
    aten.rand.default: ("uniform", lambda call: (*_sized(call), 0.0, 1.0)),
    aten.rand_like.default: ("uniform", lambda call: (*_like(call), 0.0, 1.0)),
    aten.uniform.default: ("uniform", lambda call: (*_like(call), call["from"], call["to"])),
    aten.randn.default: ("normal", lambda call: (*_sized(call), 0.0, 1.0)),
    aten.randn_like.default: ("normal", lambda call: (*_like(call), 0.0, 1.0)),
    aten.normal.float_float: ("normal", lambda call: (*_sized(call), *_moments(call))),
    aten.normal_functional.default: ("normal", lambda call: (*_like(call), *_moments(call))),
    aten.normal.Tensor_Tensor: ("normal.tensor", _moments),
    aten.normal.Tensor_float: ("normal.tensor_float", _moments),
    aten.normal.float_Tensor: ("normal.float_tensor", _moments),
    aten.log_normal.default: ("log_normal", lambda call: (*_like(call), *_moments(call))),
    aten.exponential.default: ("exponential", lambda call: (*_like(call), call["lambd"])),
    aten.cauchy.default: ("cauchy", lambda call: (*_like(call), call["median"], call["sigma"])),
    aten.geometric.default: ("geometric", lambda call: (*_like(call), call["p"])),
    aten.bernoulli.default: ("bernoulli.tensor", lambda call: (*_like(call), call["self"])),
    aten.bernoulli.p: ("bernoulli", lambda call: (*_like(call), call["p"])),
    aten.bernoulli.Tensor: ("bernoulli.tensor", lambda call: (*_like(call), call["p"])),
    aten.native_dropout.default: ("dropout", lambda call: (call["input"], _dropout_p(call))),
    aten.randint.default: ("randint", _integers),
    aten.randint.low: ("randint", _integers),
    aten.randint_like.default: ("randint", _integers_like),
    aten.randint_like.low_dtype: ("randint", _integers_like),
    aten.random.default: ("randint", _full_range),
    aten.random.to: ("randint", _full_range),
    getattr(aten.random, "from"): ("randint", _full_range),
    aten.randperm.default: ("randperm", lambda call: (call["n"], _dtype(call, torch.int64))),
    aten.multinomial.default: (
        "multinomial",
        lambda call: (call["self"], call["num_samples"], call["replacement"]),
    ),
}

# Variants with `generator=None`, which some libraries pass.
_TABLE |= {
    aten.rand.generator: _TABLE[aten.rand.default],
    aten.randn.generator: _TABLE[aten.randn.default],
    aten.randint.generator: _TABLE[aten.randint.default],
    aten.randint.low_generator: _TABLE[aten.randint.low],
    aten.randperm.generator: _TABLE[aten.randperm.default],
}


def _rewrite(
    overload: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rng: fx.Node,
    op_id: int,
) -> Call:
    call = named_arguments(overload, args, kwargs)
    if call.get("generator") is not None:
        raise compiler_error(
            f"{overload} was given a torch.Generator, but the device draws from its own stream. "
            "Leave the generator out and seed the stream with Options.randomSeed()."
        )
    name, arguments = _TABLE[overload]
    return _ours(name), (rng, op_id, *arguments(call)), {}


def _ours(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.poptorch_emu, packet), overload or "default")
    return found


RANDOM_REWRITES: dict[OpOverload, Rewrite] = {
    overload: partial(_rewrite, overload) for overload in _TABLE
}
"""Makes the counter-based call for a random operation from its arguments (constants or nodes), the
node of the generator's state, and the number of the operation in its graph.
"""
