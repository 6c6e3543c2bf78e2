"""When an executor's weights move between host and device."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.executor.executor_state import COMMON_TURN, ExecutorState, Turn, one_at_a_time
from poptorch_emu.executor.synced_tensors import links_of, memory_of, num_changes
from poptorch_emu.log import logger


class WeightMovement(ExecutorState):
    """The part of `PoplarExecutor` that copies parameters and buffers."""

    @one_at_a_time
    def copyWeightsToHost(self) -> None:
        """Copies parameters and floating-point buffers from the device (exact).

        Raises:
            Error: the model is not compiled.
        """
        self._compiled()
        if self._session is not None:
            self._session.check_idle()
            if self._training:
                self._refresh_weights()
            self._host_is_stale = False
            self._session.download(self._host_tensors())
            self._tell_partners(self._session.executable.variables)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies the weights from the device if they are newer there; returns whether (exact)."""
        if not self._host_is_stale:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    @one_at_a_time
    def copyWeightsToDevice(self) -> None:
        """Copies parameters and floating-point buffers to the device: the host wins (exact)."""
        self._compiled()
        if self._session is not None:
            self._session.check_idle()
        self._host_is_stale = False
        if self._optimizer_link is not None and self._session is not None:
            self._optimizer_link.receive(self._session)
        if self._session is not None:
            self._sync_partners()
            self._session.upload(self._host_tensors())
            self._tell_partners(self._session.executable.variables)

    @one_at_a_time
    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Loads the user model's state and uploads it if a device is attached (exact)."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._session is not None:
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
        return result

    @one_at_a_time
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
            self._sync_partners()
            buffers = dict(self._user_model.named_buffers())
            self._session.upload({name: buffers[name] for name in names})
            self._tell_partners(names)

    def __del__(self) -> None:
        """Leaves what was learnt on the host; the model's memory may be all that is kept of it."""
        if self._host_is_stale and not sys.is_finalizing():
            try:
                self.copyWeightsToHostIfNeeded()
            except Exception as error:
                logger.warning("What a dropped wrapper has learnt since is lost: %s", error)

    def _refresh_weights(self) -> None:
        """Takes over what other training wrappers have learnt since the last call."""
        if self._session is None:
            return
        if self._training:
            self._sync_partners()
            if self._outdated:
                logger.debug("Implicit copyWeightsToDevice()")
                tensors = self._host_tensors()
                self._session.upload({name: tensors[name] for name in self._outdated})
                self._outdated.clear()
        elif self._has_news():
            logger.debug("Implicit copyWeightsToDevice()")
            self._session.upload(self._host_tensors())

    def _sync_partners(self) -> None:
        """Brings what other executors have trained of the same tensors to the host."""
        for partner in tuple(self._partners):
            partner.copyWeightsToHostIfNeeded()

    def _tell_partners(self, names: Iterable[str]) -> None:
        """Notes that the host and this device agree now on the tensors of these names."""
        self._outdated.difference_update(names)
        self._link.version += 1
        partners = tuple(self._partners)
        if not partners:
            return
        mine = self._host_tensors()
        changed = {memory_of(mine[name]) for name in names if name in mine}
        for partner in partners:
            shared = [n for n, value in partner._named_tensors() if memory_of(value) in changed]
            partner._outdated.update(shared)
            partner._link.version += 1

    def _other_trainers(self) -> Iterator[Any]:
        """Yields the executors that train some of the same tensors."""
        for link in links_of(self._user_model):
            trainer = link.trainer
            if trainer is not None and trainer is not self:
                yield trainer

    def _turn_beside_partners(self) -> Turn:
        """Returns a turn of its own, or the common one, which other trainers then have, too."""
        partners = list(self._other_trainers()) if self._training else []
        for partner in partners:
            partner._turn = COMMON_TURN
        return COMMON_TURN if partners else Turn()

    def _meet_trainers(self) -> None:
        """Learns who else trains the tensors that are about to be uploaded."""
        if not self._training:
            self._links_are_of = -1
            self._has_news()
            return
        for trainer in self._other_trainers():
            self._partners.add(trainer)
            trainer._partners.add(self)
            self._turn = trainer._turn = COMMON_TURN

    def _has_news(self) -> bool:
        """Returns whether a trainer changed the weights since this was asked last."""
        if self._links_are_of != num_changes():
            self._links_are_of = num_changes()
            self._links = links_of(self._user_model)
        for link in self._links:
            link.sync()
        versions = {link: link.version for link in self._links}
        is_new = bool(versions.items() - self._seen_versions.items())
        self._seen_versions = versions
        return is_new

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
