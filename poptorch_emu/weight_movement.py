"""When an executor's weights move between host and device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from poptorch_emu import wrapping
from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.executor_state import ExecutorState
from poptorch_emu.log import logger


class WeightMovement(ExecutorState):
    """The part of `PoplarExecutor` that copies parameters and buffers."""

    def copyWeightsToHost(self) -> None:
        """Copies parameters and floating-point buffers from the device (exact).

        Raises:
            Error: the model is not compiled.
        """
        self._compiled()
        if self._session is not None:
            self._session.check_idle()
            self._host_is_stale = False
            self._session.download(self._host_tensors())
            self._weights_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies the weights from the device if they are newer there; returns whether (exact)."""
        if not self._host_is_stale:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copies parameters and floating-point buffers to the device: the host wins (exact)."""
        self._compiled()
        if self._session is not None:
            self._session.check_idle()
        self._host_is_stale = False
        if self._optimizer_link is not None and self._session is not None:
            self._optimizer_link.receive(self._session)
        if self._session is not None:
            self._session.upload(self._host_tensors())
            self._weights_version += 1

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Loads the user model's state and uploads it if a device is attached (exact)."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._session is not None:
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
        return result

    def copyNamedBuffersToDevice(self) -> None:
        """Copies the buffers of `Options.updatableNamedBuffers` to the device (exact).

        Like `copyWeightsToDevice`, it gives up what the device has learnt since the last download.

        Raises:
            Error: the model is not compiled, or no buffers are named.
        """
        executable = self._compiled()
        names = executable.config.updatable_buffers
        if not names:
            raise make_error(
                "No named buffers marked as updatable via updatableNamedBuffers option. Call "
                "poptorch.Options().updatableNamedBuffers([...]) before the model is wrapped."
            )
        self._host_is_stale = False
        if self._session is not None:
            buffers = dict(self._user_model.named_buffers())
            self._session.upload({name: buffers[name] for name in names})

    def _refresh_weights(self) -> None:
        """Takes over what a training wrapper of the same model has learnt since the last call."""
        owner = wrapping.owner_of(self._user_model)
        if owner is None or owner is self or self._session is None:
            return
        owner.copyWeightsToHostIfNeeded()
        if owner._weights_version != self._seen_version:
            logger.debug("Implicit copyWeightsToDevice()")
            self._session.upload(self._host_tensors())
            self._seen_version = owner._weights_version

    def _check_updatable_buffers(self) -> None:
        known = dict(self._user_model.named_buffers())
        for name in self._options._Popart.options.get("updatableNamedBuffers", ()):
            if name not in known:
                raise compiler_error(
                    f"Options.updatableNamedBuffers names '{name}', which is no buffer of the "
                    f"model. Its buffers are: {', '.join(known) or 'none'}."
                )

    def _host_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._named_tensors())

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._user_model.named_parameters()
        yield from self._user_model.named_buffers()
