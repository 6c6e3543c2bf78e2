"""Moves a module's parameters and buffers to the fake IPU during a trace.

Only the thread of the trace sees that, but for modules of TorchScript. Everything is put back
afterwards, whatever happens. What the trace must not do to a module
(reassigning or deleting a parameter or buffer) is found here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import (
    BatchNorm,
    DisableTorchFunctionSubclass,
    disable_current_modes,
)
from poptorch_emu.trace.pytorch.slots import private_slots
from poptorch_emu.trace.values.host_backed import HostBacked
from poptorch_emu.troubleshooting import Topic

Slot = tuple[torch.nn.Module, str, str]  # module, "_parameters" or "_buffers", name


@dataclass(frozen=True)
class HostTensor:
    """A parameter or buffer of the user's module. A tied one appears once, with its first name."""

    name: str
    value: torch.Tensor
    is_parameter: bool


def fault_of(tensor: torch.Tensor) -> str:
    """Returns why a tensor cannot be copied to a device, with an alternative, or ""."""
    if tensor.is_nested:
        return "is a nested tensor. Pass a padded one: tensor.to_padded_tensor(0.0)."
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}, but the device has dense tensors only: to_dense()."
    if tensor.device.type not in ("cpu", "ipu", "meta"):
        return f"is on {tensor.device}. Move it to the CPU first: tensor.cpu()."
    return ""


def lack_of(tensor: torch.Tensor) -> str:
    """Returns why a tensor has no values, with an alternative, or "".

    Uses that only need the shape, such as an estimate, ignore this.
    """
    if tensor.device.type == "meta":
        return "is on the meta device: it has a shape and no values. Make it on the CPU."
    return ""


def check_values(model: torch.nn.Module) -> None:
    """Checks that all parameters and buffers have values.

    Raises:
        Error: a parameter or buffer is on the meta device.
    """
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if lack := lack_of(value):
            hint = f"{lack.removesuffix('.')}; {Topic.WEIGHTS_NOT_ON_HOST}"
            raise make_error(f"Invalid model: {name} {hint}")


def check_initialised(model: torch.nn.Module) -> None:
    """Checks that the host has the values of all parameters and buffers.

    Raises:
        Error: a lazy module waits for its first input, the user has moved the model to the IPU, or
            a tensor is not dense or not on the CPU.
    """
    # Questions about a parameter's form need no newer values from its device.
    with DisableTorchFunctionSubclass():
        for name, module, kind, key in _slots(model):
            value = getattr(module, kind)[key]
            if isinstance(value, HostBacked):
                raise make_error(
                    f"{name} is on the IPU already. Leave the model on the CPU: the wrapper moves "
                    "it."
                )
            if torch.nn.parameter.is_lazy(value):
                raise make_error(
                    f"{name} is not initialised yet: a lazy module learns the shape of its "
                    "parameters from its first input. Call the model once on the CPU before it is "
                    f"wrapped; {Topic.WEIGHTS_NOT_ON_HOST}"
                )
            if fault := fault_of(value):
                raise make_error(f"Invalid model: {name} {fault}")


def host_tensors(model: torch.nn.Module) -> list[HostTensor]:
    """Returns each parameter and buffer of `model` once."""
    check_initialised(model)
    seen: dict[int, HostTensor] = {}
    for name, module, kind, key in _slots(model):
        value = getattr(module, kind)[key]
        seen.setdefault(id(value), HostTensor(name, value, kind == "_parameters"))
    return list(seen.values())


def warn_of_shared_memory(model: torch.nn.Module) -> None:
    """Warns of trained parameters that share memory, because on the device they do not.

    One tensor under several names is allowed, because it stays one tensor. A tensor on the meta
    device has no memory.
    """
    tensors = (tensor for tensor in host_tensors(model) if not tensor.value.is_meta)
    extents = sorted(map(_extent, tensors), key=lambda extent: extent[:2])
    end, before = 0, None
    for start, stop, tensor in extents:
        if before is not None and start < end and (_is_trained(before) or _is_trained(tensor)):
            logger.warning(
                "%s and %s share memory on the host, but each has memory of its own on the device: "
                "training one does not change the other. Use one parameter in both places.",
                before.name,
                tensor.name,
            )
        if stop > end:
            end, before = stop, tensor


def _extent(tensor: HostTensor) -> tuple[int, int, HostTensor]:
    """Returns the first and the end address of a tensor's memory, and the tensor."""
    value = tensor.value.detach()
    last = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    start = value.data_ptr()
    return start, start + (last + 1) * value.element_size() if value.numel() else start, tensor


def _is_trained(tensor: HostTensor) -> bool:
    return tensor.is_parameter and tensor.value.requires_grad


# Host tensors of the traced module, by the id of their fake tensors.
_host_values: dict[int, torch.Tensor] = {}


def note_stand_in(fake: torch.Tensor, value: torch.Tensor) -> None:
    """Stores the host tensor of a new fake tensor; to be called within a trace."""
    _host_values[id(fake)] = value


def resize_host(fake: torch.Tensor, size: int, fill: float | None = None) -> torch.Tensor:
    """Resizes the host tensor of a buffer within a trace, and returns it.

    Args:
        fake: fake tensor of the buffer, which has one dimension.
        size: new number of elements.
        fill: new value of all elements; by default the first old value, or zero if there is none.
    """
    value = _host_values[id(fake)]
    with DisableTorchFunctionSubclass(), disable_current_modes(), torch.no_grad():
        if fill is None:
            fill = value[0].item() if value.numel() else 0
        return value.resize_(size).fill_(fill)


@contextmanager
def on_host(module: object) -> Iterator[None]:
    """Restores the module's own tensors for a while, within a trace."""
    slots = list(_slots(module)) if isinstance(module, torch.nn.Module) else []
    fakes = [(owner, kind, key, getattr(owner, kind)[key]) for _, owner, kind, key in slots]
    for owner, kind, key, fake in fakes:
        getattr(owner, kind)[key] = _host_values.get(id(fake), fake)
    try:
        yield
    finally:
        for owner, kind, key, fake in fakes:
            getattr(owner, kind)[key] = fake


@contextmanager
def on_ipu(
    model: torch.nn.Module, to_fake: Callable[[HostTensor], torch.Tensor]
) -> Iterator[dict[str, torch.Tensor]]:
    """Replaces every parameter and buffer by `to_fake` of it for this thread, until the end.

    Yields:
        The fake tensors by name.

    Raises:
        Error: the body has reassigned or removed a parameter or buffer.
    """
    tensors = host_tensors(model)
    fakes = {tensor.name: to_fake(tensor) for tensor in tensors}
    _host_values.update((id(fakes[tensor.name]), tensor.value) for tensor in tensors)
    name_of = {id(tensor.value): tensor.name for tensor in tensors}
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    original: list[tuple[str, torch.nn.Module, str, str, torch.Tensor]] = []
    private = ExitStack()
    private.enter_context(private_slots(model))
    for name, module, kind, key in list(_slots(model)):
        value = getattr(module, kind)[key]
        original.append((name, module, kind, key, value))
        getattr(module, kind)[key] = fakes[name_of[id(value)]]
    lists = list(_scripted_lists(model))
    for module, values in lists:
        module._flat_weights = [fakes[name_of[id(value)]] for value in values]
    try:
        yield fakes
        faults = [
            fault
            for name, module, kind, key, value in original
            if (fault := _fault(name, module, kind, key, fakes[name_of[id(value)]]))
        ]
    except BaseException:
        # Restores plain attributes that a rejected parameter or buffer has replaced.
        for module, held in attributes:
            for key in held.keys() - vars(module).keys() - set(module._buffers.keys()):
                vars(module)[key] = held[key]
        raise
    finally:
        _host_values.clear()
        private.close()
        for _, module, kind, key, value in original:
            if isinstance(module, torch.jit.ScriptModule):
                getattr(module, kind)[key] = value
            module.__dict__.pop(key, None)
        for module, values in lists:
            module._flat_weights = values
    if faults:
        raise make_error(faults[0])


def reassigned_buffers(
    model: torch.nn.Module, fakes: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the values that `forward` assigned to buffers and the device keeps, by name.

    Args:
        model: module within `on_ipu`.
        fakes: fake tensors that `on_ipu` yielded.
    """
    return {
        name: value
        for name, module, kind, key in _slots(model)
        if kind == "_buffers" and name in fakes
        for value in [module._buffers[key]]
        if value is not None and value is not fakes[name] and _is_kept(module, value, fakes[name])
    }


def replace_buffer(model: torch.nn.Module, name: str, value: torch.Tensor | None) -> None:
    """Replaces a buffer of the host's model, under each of its names."""
    path, _, key = name.rpartition(".")
    buffers = model.get_submodule(path)._buffers
    old = buffers[key]
    for _, module, kind, other in list(_slots(model)):
        if kind == "_buffers" and module._buffers[other] is old:
            module._buffers[other] = value


def _is_kept(module: torch.nn.Module, value: torch.Tensor, fake: torch.Tensor) -> bool:
    """Returns whether the device keeps a value that was assigned to a buffer."""
    if isinstance(module, BatchNorm):
        return value.shape == fake.shape
    return value.dtype == fake.dtype


def keep_hooks(tensor: HostTensor, fake: torch.Tensor) -> None:
    """Copies the gradient hooks of a parameter to its fake tensor.

    Raises:
        Error: a hook waits for accumulated gradients, which never arrive on the host.
    """
    if not fake.requires_grad:
        return
    if tensor.value._post_accumulate_grad_hooks:
        raise make_error(
            f"Parameter {tensor.name} has a hook for its accumulated gradient "
            "(register_post_accumulate_grad_hook), but gradients are accumulated on the device. "
            "Change the gradient of each micro-batch with register_hook, or remove the hook."
        )
    for hook in (tensor.value._backward_hooks or {}).values():
        fake.register_hook(hook)  # type: ignore[no-untyped-call]


@contextmanager
def named_modules(model: torch.nn.Module, stack: list[str]) -> Iterator[None]:
    """Keeps on `stack` the dotted names of the modules whose forward is running."""
    names = {id(module): name for name, module in model.named_modules()}
    thread = threading.get_ident()

    def enter(module: torch.nn.Module, _: Any) -> None:
        if threading.get_ident() == thread:
            stack.append(names.get(id(module), stack[-1] if stack else ""))

    def leave(module: torch.nn.Module, _: Any, __: Any) -> None:
        if threading.get_ident() == thread:
            stack.pop()

    before = torch.nn.modules.module.register_module_forward_pre_hook(enter)
    after = torch.nn.modules.module.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
        stack.clear()


def _slots(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, str]]:
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            for key, value in getattr(module, kind).items():
                if value is not None:
                    yield f"{prefix}.{key}" if prefix else key, module, kind, key


def _scripted_lists(
    model: torch.nn.Module,
) -> Iterator[tuple[torch.jit.ScriptModule, list[torch.Tensor]]]:
    """Yields TorchScript's recurrent layers with their additional list of weights."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            with suppress(AttributeError):
                yield module, module._flat_weights


def _fault(name: str, module: torch.nn.Module, kind: str, key: str, fake: torch.Tensor) -> str:
    noun = "Parameter" if kind == "_parameters" else "Buffer"
    if key not in getattr(module, kind):
        return (
            f"{noun} {name} is removed from the model when calling the forward method. Leave it "
            f"there, and delete it after the call; {Topic.REASSIGNED_STATE}"
        )
    value = getattr(module, kind)[key]
    is_written_back = noun == "Buffer" and value is not None and _is_kept(module, value, fake)
    if value is fake or is_written_back:
        return ""
    return reassigned(noun, name)


def reassigned(noun: str, name: str) -> str:
    """Returns PopTorch's message for a parameter or buffer that `forward` assigned."""
    return (
        f"{noun} {name} is reassigned within the model when calling the forward method. Change it "
        f'in place instead: "self.{name.rpartition(".")[2]}.copy_(src)", where src is the tensor '
        f"with the new values; {Topic.REASSIGNED_STATE}"
    )
