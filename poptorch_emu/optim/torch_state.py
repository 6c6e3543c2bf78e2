"""The state of PyTorch's own optimisers: on the device by PopART's names, on the host as PyTorch's.

An optimiser of PyTorch keeps the state of each parameter in its attribute `state`, of which
`state_dict()`, copies and pickles are made. While it trains on a device, that attribute is a
`SyncedState`: a dictionary that brings the newest values home before it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from poptorch_emu.update.formulas.optimizer_config import OptimizerKind

Parameters = Mapping[str, torch.nn.Parameter]

_STEP = "step"
# PopART's prefixes, and the keys of PyTorch for the same tensors.
_SGD = {"Accl": "momentum_buffer", "Accl1": "momentum_buffer"}
_ADAM = {"Accl1": "exp_avg", "Accl2": "exp_avg_sq", "Step": _STEP}
_RMSPROP = {"Accl1": "square_avg", "Accl2": "grad_avg", "Accl3": "momentum_buffer"}


class SyncedState(defaultdict[Any, dict[str, Any]]):
    """The attribute `state` of an optimiser of which the device may have a newer one."""

    def __init__(self, values: Mapping[Any, dict[str, Any]], bring_home: Callable[[], None]):
        """Starts with values that the device has, too.

        Args:
            values: by parameter, as PyTorch has them.
            bring_home: called before a read; it may call `renew`.
        """
        super().__init__(dict, values)
        self._bring_home = bring_home
        self._seen = list(self._parts())

    def renew(self, values: Mapping[Any, dict[str, Any]], num_updates: int) -> None:
        """Takes the values that the device has after some more updates.

        Other entries of a parameter stay as they are, but for the `step` of RMSprop: its rule, and
        so the device, does without.
        """
        for key, entries in values.items():
            before = dict.get(self, key, {})
            if "square_avg" in entries:
                entries[_STEP] = torch.as_tensor(before.get(_STEP, 0.0)) + num_updates
            dict.__setitem__(self, key, {**before, **entries})
        self._seen = list(self._parts())

    def leave_device(self) -> None:
        """Goes on as a plain dictionary."""
        self._bring_home = lambda: None

    @property
    def is_edited(self) -> bool:
        """Whether somebody changed an entry, or a tensor in place, since device and host agreed."""
        parts = list(self._parts())
        return len(parts) != len(self._seen) or any(
            now[:2] != seen[:2] or now[2] is not seen[2] or now[3] != seen[3]
            for now, seen in zip(parts, self._seen, strict=True)
        )

    def _parts(self) -> Iterator[tuple[int, str, Any, int]]:
        for key, entries in dict.items(self):
            parts = entries if isinstance(entries, dict) else {"": entries}
            for name, value in parts.items():
                yield id(key), name, value, _version(value)

    def __reduce__(self) -> Any:
        """Copies and pickles are plain dictionaries."""
        return defaultdict, (dict,), None, None, iter(self.items())

    def __copy__(self) -> Any:
        return defaultdict(dict, self.items())

    copy = __copy__


def _synced(name: str) -> Callable[..., Any]:
    """Returns the method `name` of a dictionary, which brings the newest values home first."""
    method = getattr(defaultdict, name)

    def call(self: SyncedState, *args: Any, **kwargs: Any) -> Any:
        self._bring_home()
        return method(self, *args, **kwargs)

    return call


for _name in (
    *("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__"),
    *("__ne__", "__or__", "__repr__", "__reversed__", "__ror__", "__setitem__"),
    *("clear", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"),
):
    setattr(SyncedState, _name, _synced(_name))


def entries_of(kind: OptimizerKind) -> Mapping[str, str]:
    """Returns the keys of PyTorch by PopART's prefixes of the same tensors.

    RMSprop has one more, `step`, which its rule does not need.
    """
    if kind.is_sgd:
        return _SGD
    return _RMSPROP if kind.is_rmsprop else _ADAM


def to_torch(
    optimizer: torch.optim.Optimizer,
    kind: OptimizerKind,
    parameters: Parameters,
    states: Mapping[str, torch.Tensor],
) -> dict[Any, dict[str, Any]]:
    """Returns the device's state by parameter, with the keys that PyTorch has.

    Args:
        optimizer: of PyTorch.
        kind: its rule.
        parameters: the model's, by name.
        states: of the device, by name.
    """
    values = {}
    for name, key in _keys(optimizer, parameters):
        entries = {
            entry: states[full].reshape(-1)[0].clone() if entry == _STEP else states[full]
            for prefix, entry in entries_of(kind).items()
            if (full := f"{prefix}___{name}") in states
        }
        if entries:
            values[key] = entries
    return values


def from_torch(
    optimizer: torch.optim.Optimizer,
    kind: OptimizerKind,
    parameters: Parameters,
    states: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Returns what the device gets for `optimizer.state`: zeros where that has nothing.

    Args:
        optimizer: of PyTorch.
        kind: its rule.
        parameters: the model's, by name.
        states: of the device, by name; they tell the shapes.

    Raises:
        ValueError: the state of a parameter has another shape.
    """
    given = dict(optimizer.state.items())
    values = {}
    for name, key in _keys(optimizer, parameters):
        for prefix, entry in entries_of(kind).items():
            like = states.get(f"{prefix}___{name}")
            if like is not None:
                value = given.get(key, {}).get(entry)
                values[f"{prefix}___{name}"] = _fitting(value, like, entry, name)
    return values


def _keys(optimizer: torch.optim.Optimizer, parameters: Parameters) -> Iterator[tuple[str, Any]]:
    """Yields each parameter's name, and its key in `optimizer.state`.

    A parameter in no group, which the device trains with the default values, has its name for key:
    `state_dict()` and `load_state_dict()` pass on what belongs to no parameter.
    """
    grouped = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for name, parameter in parameters.items():
        yield name, parameter if id(parameter) in grouped else name


def _fitting(given: Any, like: torch.Tensor, entry: str, parameter: str) -> torch.Tensor:
    if given is None:
        return torch.zeros_like(like)
    value: torch.Tensor = torch.as_tensor(given).to(like.dtype)
    if entry == _STEP and value.numel() == 1:
        return value.reshape(()).expand_as(like)
    if value.shape != like.shape:
        raise ValueError(
            f"The optimizer's {entry} of parameter {parameter} has the shape {list(value.shape)}, "
            f"but {list(like.shape)} was expected: the state that was loaded is of another model. "
            "Load the state of this one, or make a new optimizer."
        )
    return value


def _version(value: Any) -> int:
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return 0
    return int(value._version)
