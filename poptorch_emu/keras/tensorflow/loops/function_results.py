"""Collects the result of a function, and the values for queues, from its iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.keras.capture.batches import with_leaves
from poptorch_emu.keras.capture.device_values import is_of_device
from poptorch_emu.keras.capture.host_values import as_result, to_host
from poptorch_emu.keras.capture.integers import without_upper_words
from poptorch_emu.keras.tensorflow.loops.function_module import CapturedFunction


class FunctionResults:
    """Receives the outputs of iterations, in order."""

    def __init__(self, module: CapturedFunction, replicas: int, accumulation: int = 1) -> None:
        """Tells the queues the structure of their values.

        Args:
            module: captured function that was traced.
            replicas: number of replicas, each with its own outputs.
            accumulation: number of iterations in each result of the device.
        """
        body = module.discovered.body
        self._result, sent = module.forms
        self._queues = [(queue, form) for (queue, _), form in zip(body.sent, sent, strict=True)]
        self._has_loss = body.update is not None
        leaves = filter(is_of_device, keras.tree.flatten(module.forms))
        are_long = [leaf.dtype is torch.int64 for leaf in leaves]
        self._are_long = [False] * self._has_loss + are_long or [False]
        self._replicas = replicas
        self._accumulation = accumulation
        self._last: list[torch.Tensor] = []
        for queue, form in self._queues:
            queue.expect(form, replicas)

    def take(self, num_results: int, outputs: Sequence[torch.Tensor]) -> None:
        """Passes the values in some results of the device to the queues."""
        remaining = iter(without_upper_words(outputs, self._are_long))
        count = num_results * self._accumulation
        if self._has_loss:
            next(remaining)
        self._last = [leaf[-1] for leaf in self._leaves(count, self._result, remaining)]
        for queue, form in self._queues:
            queue.put(count, self._leaves(count, form, remaining))

    def returned(self) -> Any:
        """Returns the result of one replica's last iteration."""
        values = [to_host(each[0]) for each in self._last]
        return keras.tree.map_structure(as_result, with_leaves(self._result, values, is_of_device))

    def _leaves(self, count: int, form: Any, outputs: Iterator[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the next outputs, with axes (iteration, replica, ...)."""
        rows = count, self._replicas
        found = []
        for leaf in filter(is_of_device, keras.tree.flatten(form)):
            values = next(outputs)
            if values.numel() == leaf.numel():  # A single value, which all iterations share.
                values = values.expand(*rows, *leaf.shape)
            found.append(values.reshape(*rows, *leaf.shape).to(leaf.dtype))
        return found
