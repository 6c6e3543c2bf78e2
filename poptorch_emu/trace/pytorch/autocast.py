"""Autocast regions of `forward`, where operations choose their data types.

The public names are in `options/old_autocast.py`, because they belong to older releases. Casts are
recorded above autograd, so a gradient has the type of the uncast tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from poptorch_emu.config import CastRule
from poptorch_emu.torch_versions import pytree

is_open: ContextVar[bool] = ContextVar("autocast", default=False)

_FLOATS = (torch.float16, torch.float32)
_DTYPE_OF_RULE = {CastRule.FP16: torch.float16, CastRule.FP32: torch.float32}
# Functions that read an attribute, assign or convert, which autocast must leave alone.
_NEVER_CAST = frozenset(
    {"__get__", "__set__", "__setitem__", "__getitem__", "to", "half", "float", "type", "detach"}
)
# Functions that cast only their input: they write the next arguments, or convert them themselves.
_CAST_FIRST_ONLY = frozenset({"batch_norm", "instance_norm"})
_OPERATORS = {"truediv": "div", "rtruediv": "div", "rdiv": "div", "rpow": "pow"}
_OPERATORS |= {"radd": "add", "rsub": "sub", "rmul": "mul", "rmatmul": "matmul"}

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Autocast:
    """The automatic casts of one trace."""

    def __init__(
        self,
        rules: Mapping[str, CastRule],
        model: torch.nn.Module,
        open_modules: Sequence[str],
    ) -> None:
        """Looks up rules by the classes of the running modules, innermost first, and by function.

        Args:
            rules: rule of each function or class of modules, by bare name.
            model: model that is being traced.
            open_modules: names of the modules whose forward is running, the innermost last.
        """
        self._rules = rules
        self._model = model
        self._open_modules = open_modules

    def cast(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        """Returns the arguments of a call, cast by the rule for `func`."""
        if not is_open.get() or kwargs.get("inplace") or kwargs.get("out") is not None:
            return args, kwargs
        name = getattr(func, "__name__", "")
        rule = None if _is_left_alone(name) else self._rule(name)
        if rule is None:
            return args, kwargs
        if _bare(name) in _CAST_FIRST_ONLY and args:
            first, _ = _cast((args[0],), {}, rule)
            return (*first, *args[1:]), kwargs
        return _cast(args, kwargs, rule)

    def _rule(self, name: str) -> CastRule | None:
        for module_name in reversed(self._open_modules):
            for cls in type(self._model.get_submodule(module_name)).__mro__:
                if cls is not torch.nn.Module and cls.__name__ in self._rules:
                    return self._rules[cls.__name__]
        return self._rules.get(_bare(name))


def _is_left_alone(name: str) -> bool:
    """Returns whether no rule may cast the arguments of a function."""
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name in _NEVER_CAST or name.startswith("__i")


def _bare(name: str) -> str:
    bare = name.removeprefix("__").removesuffix("__") if name.startswith("__") else name
    return _OPERATORS.get(bare, bare)


def _cast(args: tuple[Any, ...], kwargs: dict[str, Any], rule: CastRule) -> Arguments:
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_float(leaf)]
    dtype = _DTYPE_OF_RULE.get(rule)
    if dtype is None and tensors:
        wants_wide = rule is CastRule.PROMOTE
        has_wide = any(tensor.dtype is torch.float32 for tensor in tensors)
        has_narrow = any(tensor.dtype is torch.float16 for tensor in tensors)
        if not (has_wide and has_narrow):
            return args, kwargs
        dtype = torch.float32 if wants_wide else torch.float16
    cast: Arguments = pytree.tree_map(
        lambda leaf: leaf.to(dtype) if _is_float(leaf) else leaf, (args, kwargs)
    )
    return cast


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "ipu" and leaf.dtype in _FLOATS
