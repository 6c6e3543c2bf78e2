"""State of PyTorch's own optimisers: under PopART's names on the device, PyTorch's on the host.

A PyTorch optimiser keeps the state of each parameter in its attribute `state`, from which
`state_dict()`, copies and pickles are created. While it trains on a device, that attribute is a
`SyncedState`: a dictionary that fetches the newest values before it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from poptorch_emu.update.formulas.optimizer_config import OptimizerKind

Parameters = Mapping[str, torch.nn.Parameter]

_STEP = "step"
# PopART's prefixes, and PyTorch's keys for the same tensors.
_SGD = {"Accl": "momentum_buffer", "Accl1": "momentum_buffer"}
_ADAM = {"Accl1": "exp_avg", "Accl2": "exp_avg_sq", "Step": _STEP}
_RMSPROP = {"Accl1": "square_avg", "Accl2": "grad_avg", "Accl3": "momentum_buffer"}


class SyncedState(defaultdict[Any, dict[str, Any]]):
    """The attribute `state` of an optimiser whose state on the device may be newer."""

    def __init__(self, values: Mapping[Any, dict[str, Any]], bring_home: Callable[[], None]):
        """Stores values that are equal to those of the device.

        Args:
            values: PyTorch's entries by parameter.
            bring_home: function that is called before a read; it may call `renew`.
        """
        super().__init__(dict, values)
        self._bring_home = bring_home
        self._seen = list(self._parts())

    def renew(self, values: Mapping[Any, dict[str, Any]], num_updates: int) -> None:
        """Stores the values that the device has after `num_updates` more updates.

        Other entries of a parameter stay unchanged, except `step` of RMSprop. The device does not
        store it, because the rule does not use it, so it is counted here.
        """
        for key, entries in values.items():
            before = dict.get(self, key, {})
            if "square_avg" in entries:
                entries[_STEP] = torch.as_tensor(before.get(_STEP, 0.0)) + num_updates
            dict.__setitem__(self, key, {**before, **entries})
        self._seen = list(self._parts())

    def leave_device(self) -> None:
        """Makes this object behave as a plain dictionary."""
        self._bring_home = lambda: None

    @property
    def is_edited(self) -> bool:
        """Whether an entry, or a tensor in place, changed since device and host agreed."""
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
        """Makes copies and pickles plain dictionaries."""
        return defaultdict, (dict,), None, None, iter(self.items())

    def __copy__(self) -> Any:
        return defaultdict(dict, self.items())

    copy = __copy__


def _synced(name: str) -> Callable[..., Any]:
    """Returns a dictionary's method `name` that first fetches the newest values."""
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
    """Returns PyTorch's keys by PopART's prefixes of the same tensors.

    RMSprop has one more key, `step`, which its rule does not use.
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
    """Returns the device's state by parameter, with PyTorch's keys.

    Args:
        optimizer: optimiser of PyTorch.
        kind: rule of the optimiser.
        parameters: parameters of the model by name.
        states: state tensors of the device by name.
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
    """Returns `optimizer.state` in the device's form, with zeros for missing entries.

    Args:
        optimizer: optimiser of PyTorch.
        kind: rule of the optimiser.
        parameters: parameters of the model by name.
        states: state tensors of the device by name, which define the shapes.

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

    The key of a parameter in no group, which the device trains with default values, is its name,
    because `state_dict()` and `load_state_dict()` keep entries that belong to no parameter.
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
