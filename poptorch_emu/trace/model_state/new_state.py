"""Parameters, buffers and modules that `forward` itself adds to a model.

A new buffer with a known value becomes a buffer of the model, as in a plain call. A new parameter
is rejected, because the optimiser does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as registration

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.torch_versions import FakeTensor, disable_current_modes
from poptorch_emu.trace.model_state.module_state import HostTensor, note_stand_in
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic

ValueOf = Callable[[torch.Tensor], torch.Tensor | None]
ToFake = Callable[[HostTensor], torch.Tensor]


@contextmanager
def adopted(
    model: torch.nn.Module, fakes: dict[str, torch.Tensor], value_of: ValueOf, to_fake: ToFake
) -> Iterator[NewState]:
    """Adopts buffers and modules that `forward` registers in the context, or raises.

    Args:
        model: model whose parameters and buffers are fake tensors.
        fakes: fake tensors by name. Those of new buffers are added.
        value_of: returns the value of a fake tensor; None if it is unknown.
        to_fake: makes the fake tensor of a parameter or buffer.

    Yields:
        The buffers that `forward` has made or assigned so far.
    """
    state = NewState(model, fakes, value_of, to_fake)
    handles = (
        registration.register_module_buffer_registration_hook(state.take_buffer),
        registration.register_module_parameter_registration_hook(state.take_parameter),
        registration.register_module_module_registration_hook(state.take_module),
    )
    try:
        yield state
    finally:
        for handle in handles:
            handle.remove()
        state.give_back()


class NewState:
    """Buffers that `forward` makes or assigns.

    Attributes:
        made: values of the buffers that `forward` was the first to make, by name.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        fakes: dict[str, torch.Tensor],
        value_of: ValueOf,
        to_fake: ToFake,
    ) -> None:
        self._fakes, self._value_of, self._to_fake = fakes, value_of, to_fake
        self._names = {id(module): name for name, module in model.named_modules()}
        self._new: list[tuple[torch.nn.Module, str, str, torch.Tensor]] = []
        self._assigned: dict[str, list[torch.Tensor]] = {}
        self._held = {
            (id(module), key)
            for module in model.modules()
            for key, value in module._buffers.items()
            if value is not None
        }
        self._before: list[tuple[torch.nn.Module, str, bool]] = []
        self.made: dict[str, torch.Tensor] = {}

    def first_assigned(self, name: str, shape: torch.Size) -> torch.Tensor | None:
        """Returns the first value of a shape that was assigned to a buffer, if it is known."""
        found = (value for value in self._assigned.get(name, ()) if value.shape == shape)
        value = next(found, None)
        known = self._value_of(value) if isinstance(value, FakeTensor) else value
        return None if known is None else known.detach().clone()

    def take_buffer(self, module: torch.nn.Module, key: str, value: Any) -> Any:
        """Returns the fake tensor of a new buffer; None for any other value."""
        # A buffer that `forward` set to None before was there, or was made by this call.
        is_new = (id(module), key) not in self._held and isinstance(value, torch.Tensor)
        if not is_new and id(module) in self._names and isinstance(value, torch.Tensor):
            self._assigned.setdefault(self._name(module, key), []).append(value)
        if id(module) not in self._names or not is_new or self._is_known(value):
            return None
        name = self._name(module, key)
        is_stand_in = isinstance(value, FakeTensor)
        host = self._value_of(value) if is_stand_in else value
        if host is None:
            raise _refused(
                f"Buffer {name}",
                "from values that only exist when the model runs. Register it in __init__, and "
                "write into it in forward with copy_",
            )
        buffer = HostTensor(name, host, is_parameter=False)
        with disable_current_modes():
            self._fakes[name] = fake = self._to_fake(buffer)
        note_stand_in(fake, host)
        self._new.append((module, "_buffers", key, host))
        self._held.add((id(module), key))
        self._before.append((module, key, key in module._buffers))
        self.made[name] = host
        return fake

    def take_parameter(self, module: torch.nn.Module, key: str, value: Any) -> None:
        """Raises for a new parameter. A known parameter may get another name."""
        is_new = module._parameters.get(key) is None and isinstance(value, torch.Tensor)
        if id(module) not in self._names or not is_new:
            return
        if not self._is_known(value):
            raise _refused(f"Parameter {self._name(module, key)}", _NOT_TRAINED)
        host = self._value_of(value)
        assert host is not None, "parameters have values on the host"
        self._new.append((module, "_parameters", key, host))

    def take_module(self, module: torch.nn.Module, key: str, child: Any) -> None:
        """Adds a new module and its contents to the model."""
        if id(module) not in self._names or not isinstance(child, torch.nn.Module):
            return
        for path, inner in child.named_modules():
            if id(inner) in self._names:
                continue
            self._names[id(inner)] = self._name(module, f"{key}.{path}" if path else key)
            for name, parameter in inner._parameters.items():
                if parameter is not None and not self._is_known(parameter):
                    subject = f"Module {self._name(module, key)}, with parameter {name},"
                    raise _refused(subject, _NOT_TRAINED)
            for name, buffer in list(inner._buffers.items()):
                inner._buffers[name] = None
                fake = self.take_buffer(inner, name, buffer)
                inner._buffers[name] = buffer if fake is None else fake

    def undo(self) -> None:
        """Removes the made buffers from the model."""
        for module, key, was_none in self._before:
            if was_none:
                module._buffers[key] = None
            else:
                module._buffers.pop(key, None)

    def give_back(self) -> None:
        """Replaces the new fake tensors in the model by the host's tensors."""
        for module, kind, key, host in self._new:
            if key in getattr(module, kind):
                getattr(module, kind)[key] = host

    def _is_known(self, value: torch.Tensor) -> bool:
        return any(value is fake for fake in self._fakes.values())

    def _name(self, module: torch.nn.Module, key: str) -> str:
        return ".".join(filter(None, (self._names[id(module)], key)))


_NOT_TRAINED = (
    "so the optimizer does not have it, and each micro-batch would create another one. Make it in "
    "__init__ (or call the model once on the CPU before it is wrapped)"
)


def _refused(subject: str, why: str) -> Error:
    return compiler_error(
        f"{subject} is first made in forward, at {user_source()}, {why}; {Topic.REASSIGNED_STATE}"
    )
