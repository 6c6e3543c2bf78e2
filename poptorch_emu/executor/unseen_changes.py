"""Warns once of each kind of change on the host that a compiled model does not see.

PopTorch ignores such changes, so a program continues and trains something else than its author
thinks. The checks compare versions, flags and hyper-parameters, and rarely values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.log import logger
from poptorch_emu.runtime import guards
from poptorch_emu.torch_versions import DisableTorchFunctionSubclass, version_of
from poptorch_emu.troubleshooting import Topic


class UnseenChangeWarnings:
    """Logs each kind of warning once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, kind: str, message: str, *args: object) -> None:
        """Logs a warning, unless one of this kind was logged before."""
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(message, *args)

    def warn_of(
        self, edited: Sequence[str], flags: CompiledFlags | None, values: Sequence[str]
    ) -> None:
        """Warns of changes on the host that a call does not see.

        Args:
            edited: names of changed parameters and buffers.
            flags: flags at the compilation; None if nothing is compiled.
            values: names of changed hyper-parameters of the optimiser.
        """
        if edited:
            self.warn_of_edits(edited)
        if flags is not None and (difference := flags.difference()):
            self.warn_of_flags(difference)
        if values:
            self.warn_of_values(values)

    def warn_of_strides(self, inputs: Sequence[torch.Tensor]) -> None:
        """Warns that inputs are copied at every call, if one is not contiguous."""
        if not all(tensor.is_contiguous() for tensor in inputs):
            self.warn(
                "strides",
                "At least one input tensor is not contiguous: it is copied at every call. Make "
                "inputs contiguous to avoid that.",
            )

    def warn_of_edits(self, names: Sequence[str]) -> None:
        """Warns that these parameters or buffers were changed on the host."""
        self.warn(
            "edited",
            "%s was changed on the host after the weights went to the device, so the device does "
            "not have the change. Call copyWeightsToDevice() after changing parameters or "
            "buffers; %s",
            names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)",
            Topic.EDITED_WEIGHTS,
        )

    def warn_of_flags(self, difference: str) -> None:
        """Warns that flags of the model differ from those at its compilation."""
        self.warn(
            "flags",
            "%s, but this call runs the model as it was compiled. Call destroy() to compile "
            "again, or set it back before the call; %s",
            difference,
            Topic.CHANGED_FLAGS,
        )

    def warn_of_values(self, names: Sequence[str]) -> None:
        """Warns that these hyper-parameters of the optimiser have changed."""
        self.warn(
            "values",
            "The optimizer's %s changed, but the device has the values of the last setOptimizer(). "
            "Call setOptimizer(optimizer) after every change; %s",
            ", ".join(names),
            Topic.OPTIMIZER_VALUES,
        )


class HostVersions:
    """Versions of the host's tensors at the last time when host and device agreed.

    The memory address counts too, because `tensor.data = value` changes only that.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, tuple[torch.Tensor, tuple[int, int]]] = {}
        self._columns: tuple[list[torch.Tensor], list[int], list[int]] | None = None

    def note(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Records that the device has these values."""
        self._tensors.update((name, (value, _state(value))) for name, value in tensors.items())
        self._columns = None

    def forget(self) -> None:
        """Records that no device has values."""
        self._tensors.clear()
        self._columns = None

    def edited(self) -> list[str]:
        """Returns the names of tensors that the host has changed since."""
        if self._columns is None:
            seen = self._tensors.values()
            self._columns = (
                [value for value, _ in seen],
                [version for _, (version, _) in seen],
                [place for _, (_, place) in seen],
            )
        if guards.have_states(*self._columns):
            return []
        return [name for name, (value, seen) in self._tensors.items() if _state(value) != seen]


class CompiledFlags:
    """The flags of `train`, `eval` and `requires_grad_` when a model was compiled."""

    def __init__(self, model: torch.nn.Module, executable: Executable | None = None) -> None:
        """Stores the flags of `model`, and the buffers that are constants of `executable`."""
        changing = {*executable.variables, *executable.batch_counts} if executable else ()
        modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
        self._modes = [(name, each, _is_training(each)) for name, each in modules.items()]
        self._gradients = [(name, each, _requires_grad(each)) for name, each in parameters.items()]
        self._places = list(_places(model))
        # The same flags as separate lists, because `guards` compares whole lists quickly.
        self._parameters: list[torch.Tensor] = list(parameters.values())
        self._trained = [was_trained for _, _, was_trained in self._gradients]
        self._holders: list[Mapping[str, object]] = [vars(each) for each in modules.values()]
        self._holders += [holder for _, holder, _, _ in self._places]
        self._keys = ["training"] * len(modules) + [key for _, _, key, _ in self._places]
        self._held: list[object] = [was_training for _, _, was_training in self._modes]
        self._held += [value for _, _, _, value in self._places]
        self._constants = [
            _Constant(name, each)
            for name, each in model.named_buffers()
            if not _is_floating(each) and name not in changing
        ]

    def difference(self) -> str:
        """Returns a text about the first flag that has changed, or ""."""
        if self._are_as_they_were():
            return ""
        for name, module, was_training in self._modes:
            if _is_training(module) is not was_training:
                before, now = ("train", "eval") if was_training else ("eval", "train")
                return f"{name or 'the model'} was compiled after {before}() and is in {now}() now"
        for name, was_trained in self._other_gradients():
            return f"requires_grad of {name} was {was_trained} when it was compiled"
        for name, holder, key, value in self._places:
            if key not in holder or holder[key] is not value:
                return f"{name} is another object than when the model was compiled"
        for constant in self._constants:
            if constant.is_changed:
                return f"{constant.name} was changed, which is a constant in the compiled model"
        return ""

    def _are_as_they_were(self) -> bool:
        return (
            guards.have_flags(self._parameters, self._trained)
            and guards.are_held(self._holders, self._keys, self._held)
            and not (self._constants and any(each.is_changed for each in self._constants))
        )

    def _other_gradients(self) -> list[tuple[str, bool]]:
        """Returns the parameters whose `requires_grad` has changed, with the old value."""
        return [
            (name, was_trained)
            for name, parameter, was_trained in self._gradients
            if _requires_grad(parameter) is not was_trained
        ]


class _Constant:
    """A buffer of integers, with its value when a model was compiled."""

    def __init__(self, name: str, buffer: torch.Tensor) -> None:
        self.name = name
        self._buffer = buffer
        self._version = _version(buffer)
        self._value = _copy(buffer)

    @property
    def is_changed(self) -> bool:
        """Whether the value differs now."""
        version = _version(self._buffer)
        if version == self._version:
            return False
        if not torch.equal(_copy(self._buffer), self._value):
            return True
        self._version = version  # For example, it was loaded again.
        return False


def _places(
    model: torch.nn.Module,
) -> Iterator[tuple[str, Mapping[str, object], str, object]]:
    """Yields name, holder, key and value of each parameter, buffer and module."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # TorchScript fixes its members.
        for kind in ("_parameters", "_buffers", "_modules"):
            held = vars(module)[kind]
            yield from ((f"{path}.{k}" if path else k, held, k, v) for k, v in held.items())


def _is_training(module: torch.nn.Module) -> bool:
    """Returns the mode of a module; False for a frozen one of TorchScript, which has none."""
    return bool(getattr(module, "training", False))


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    with DisableTorchFunctionSubclass():
        return _number(tensor), torch.Tensor.data_ptr(tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor).clone()


def _is_floating(tensor: torch.Tensor) -> bool:
    with DisableTorchFunctionSubclass():
        return torch.Tensor.is_floating_point(tensor)


# These getters avoid the copy of weights that an ordinary read of a wrapped tensor causes.
_VERSION = version_of
_REQUIRES_GRAD = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


def _number(tensor: torch.Tensor) -> int:
    return 0 if torch.Tensor.is_inference(tensor) else _VERSION(tensor)


def _version(tensor: torch.Tensor) -> int:
    with DisableTorchFunctionSubclass():
        return _number(tensor)


def _requires_grad(tensor: torch.Tensor) -> bool:
    with DisableTorchFunctionSubclass():
        is_trained: bool = _REQUIRES_GRAD(tensor)
        return is_trained
