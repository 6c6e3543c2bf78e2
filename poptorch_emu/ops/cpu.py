"""Python functions that a model calls on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.text import type_text
from poptorch_emu.structure import as_list
from poptorch_emu.torch_versions import DisableTorchFunction, disable_current_modes
from poptorch_emu.trace.model_state.module_state import on_host
from poptorch_emu.trace.places import blocks
from poptorch_emu.trace.recording import regions

_running: list[str] = []


class CPU:
    """Runs a function or module on the host in the middle of an inference model (exact).

    While a model is traced, the layer runs once on zeros, so that the shapes of its results are
    known. When the model runs, the thread that called the model calls the layer with the tensors of
    every micro-batch. No gradient passes through it. Arguments keep their dtypes.

    Args:
        layer_to_call: function of tensors that returns a tensor, or a list or tuple of tensors. If
            it is a module, its parameters are set not to require gradients.
        ID: name of this layer; layers with the same name run the same function.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.on_host = poptorch.CPU(lambda x: x.flip(0), "flip")
        ...
        ...     def forward(self, x):
        ...         return 10 * self.on_host(x)
        >>> poptorch.inferenceModel(Model())(torch.tensor([1.0, 2.0]))
        tensor([20., 10.])
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer_to_call = layer_to_call
        self._ID = ID
        if isinstance(layer_to_call, torch.nn.Module):
            for parameter in layer_to_call.parameters():
                parameter.requires_grad_(False)

    def __repr__(self) -> str:
        return f"CPU({self._layer_to_call!r}, {self._ID!r})"

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Calls the layer, or records the call in the model that is being traced.

        Returns:
            A tensor, or a list if the layer returned a list or tuple.

        Raises:
            Error: the layer is called within another one, or an argument or a result is not a
                tensor.
        """
        if _running:
            raise compiler_error(
                f"Trying to enter CPU from another CPU op! {self._ID!r} was called while "
                f"{_running[-1]!r} was running; call them one after the other in forward."
            )
        if not blocks.is_tracing():
            return self.execute(*inputs)
        if not inputs or not all(isinstance(value, torch.Tensor) for value in inputs):
            raise compiler_error(
                f"CPU op {self._ID!r} was called with {[type(value) for value in inputs]}; pass "
                "one tensor or more, and pass other values by a closure or an attribute of a "
                "module."
            )
        example = self._example(inputs)
        results = self._flat(example)
        regions.current().host_functions[self._ID] = self._call_flat
        with torch.no_grad():
            outputs = HOST_CALL(self._ID, list(inputs), [type_text(value) for value in results])
        return outputs[0] if isinstance(example, torch.Tensor) else list(outputs)

    def execute(self, *inputs: torch.Tensor) -> Any:
        """Calls the layer on tensors that are on the host."""
        _running.append(self._ID)
        try:
            return self._layer_to_call(*inputs)
        finally:
            _running.pop()

    def _example(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        """Calls the layer on zeros, with tracing paused."""
        with (
            disable_current_modes(),
            DisableTorchFunction(),
            blocks.paused(),
            on_host(self._module()),
        ):
            return self.execute(*(torch.zeros(v.shape, dtype=v.dtype) for v in inputs))

    def _call_flat(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return self._flat(self.execute(*inputs))

    def _flat(self, result: Any) -> list[torch.Tensor]:
        results = as_list(result)
        for value in results:
            if not isinstance(value, torch.Tensor):
                raise compiler_error(
                    f"CPU op {self._ID!r} returned {type(value)}; return a tensor, or a list or "
                    "tuple of tensors."
                )
        return [value.detach() for value in results]

    def _module(self) -> torch.nn.Module | None:
        layer = self._layer_to_call
        return layer if isinstance(layer, torch.nn.Module) else getattr(layer, "__self__", None)
