"""Moves the weights of an executor's model between host and device.

A tensor may have several trainers, each an executor with its own `Weights`. At most one of them is
*ahead* of the host. Before a call and before weights move, the others copy theirs to the host.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping

import torch

from poptorch_emu.executor import wrapping
from poptorch_emu.executor.attached_device import AttachedDevice
from poptorch_emu.executor.batch_counts import count_batches
from poptorch_emu.executor.captures import outside_of_captures
from poptorch_emu.executor.device_lock import HOST_TENSORS, DeviceLock, one_at_a_time
from poptorch_emu.executor.synced_tensors import (
    Link,
    Trainer,
    links_of,
    memory_of,
    num_changes,
    settled,
)
from poptorch_emu.executor.unseen_changes import HostVersions
from poptorch_emu.log import logger
from poptorch_emu.runtime.session import Session
from poptorch_emu.troubleshooting import Topic


class Weights:
    """Parameters and buffers of one executor's model, on the host and on its device.

    Attributes:
        link: leads the tensors that the executor trains back to it.
        is_ahead: whether the device has newer values than the host.
        device_lock: held by the thread that uses the device.
    """

    def __init__(
        self, model: torch.nn.Module, trainer: Trainer, device: AttachedDevice, *, is_training: bool
    ) -> None:
        """Finds the other trainers of the tensors.

        Args:
            model: the user's model.
            trainer: the executor; only a weak reference to it is stored.
            device: the attached device; empty while none is attached.
            is_training: whether the executor trains.
        """
        self.is_ahead = False
        self._num_uncounted = 0  # Calls that the counters of batches do not know yet.
        self._model = model
        self._device = device
        self._is_training = is_training
        self.link = Link(trainer, self)
        self._has_scripts = any(isinstance(m, torch.jit.ScriptModule) for m in model.modules())
        self.device_lock = DeviceLock()
        self._partners: weakref.WeakSet[Weights] = weakref.WeakSet()
        self._had_partners = False
        self._outdated: set[str] = set()
        self._news = _News(model)
        self._host_versions = HostVersions()
        for other in self._other_trainers():
            self._take_turns_with(other)

    def wrap(self) -> None:
        """Makes reads of a trained model copy the weights back, at first and after `unwrap`.

        Raises:
            RuntimeError: another executor has wrapped the model.
        """
        if not self._is_training:
            return
        if wrapping.link_of(self._model) not in (None, self.link):
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() "
                f"on the other wrapper before this one is compiled again; {Topic.ALREADY_WRAPPED}"
            )
        wrapping.wrap(self._model, self.link)

    def unwrap(self) -> None:
        """Restores the class of a trained model."""
        if self._is_training:
            wrapping.unwrap(self._model, self.link)

    def enter(self, session: Session) -> None:
        """Copies the weights to a newly attached device."""
        self._meet_trainers()
        self._host_versions.forget()
        self._send_all(session)
        self._tell_partners(session.executable.variables)

    def note_run(self) -> None:
        """Notes that the device runs: if it trains, it gets ahead of the host."""
        self._num_uncounted += 1
        if self._is_training:
            self.is_ahead = True
            self.link.note_training()

    @one_at_a_time
    def download(self) -> None:
        """Copies the weights to the host, if a device is attached."""
        session = self._device.session
        if session is None:
            return
        session.check_idle()
        if self._is_training:
            self.refresh()
        with HOST_TENSORS, self.link.quiet(), outside_of_captures():
            self.is_ahead = False
            tensors = self._host_tensors()
            session.download(tensors)
            count_batches(self._model, session.executable, self._num_uncounted)
            self._num_uncounted = 0
            self._note_agreement(session, tensors)
            self._tell_partners(session.executable.variables)

    def bring_home(self) -> bool:
        """Copies the weights to the host if they are newer on the device; returns whether.

        A thread that holds the lock of the host's tensors waits for no device. Where another
        thread is in a call, it goes on with the weights that the host has.
        """
        if not self.is_ahead:
            return False
        if not HOST_TENSORS.is_mine:
            self._implicit_download()
            return True
        if not self.device_lock.try_enter():
            return False
        try:
            self._implicit_download()
        finally:
            self.device_lock.leave()
        return True

    def _implicit_download(self) -> None:
        logger.debug("Implicit copyWeightsToHost()")
        self.download()

    def note_end(self) -> None:
        """Copies the weights to the host if TorchScript may read them without Python."""
        if self._has_scripts:
            self.bring_home()

    def give_up(self) -> None:
        """Gives up what the device has learnt since the last download: the host is right."""
        self.is_ahead = False
        self._num_uncounted = 0

    def upload(self, names: Iterable[str] | None = None) -> None:
        """Copies the host's tensors to an attached device: all of them, or those in `names`."""
        self.give_up()
        session = self._device.session
        if session is not None:
            self._sync_partners()
            with settled(self._model):
                tensors = self._host_tensors()
                self._send(
                    session, tensors if names is None else {name: tensors[name] for name in names}
                )
                self._tell_partners(session.executable.variables if names is None else names)

    def refresh(self) -> None:
        """Copies newer weights of other executors to the device."""
        session = self._device.session
        if session is None:
            return
        if self._is_training:
            self._sync_partners()
            if self._outdated:
                logger.debug("Implicit copyWeightsToDevice()")
                with settled(self._model):
                    tensors = self._host_tensors()
                    self._send(session, {name: tensors[name] for name in self._outdated})
                    self._outdated.clear()
        elif self._news.have_come():
            logger.debug("Implicit copyWeightsToDevice()")
            self._send_all(session)

    def edited(self) -> list[str]:
        """Returns the names of tensors that changed on the host but not on the device."""
        return [name for name in self._host_versions.edited() if name not in self._outdated]

    def _send_all(self, session: Session) -> None:
        """Copies all tensors of the host to the device, and discards its training."""
        self._num_uncounted = 0
        with settled(self._model):
            self._send(session, self._host_tensors())

    def _send(self, session: Session, tensors: Mapping[str, torch.Tensor]) -> None:
        session.upload(tensors)
        self._note_agreement(session, tensors)

    def _note_agreement(self, session: Session, tensors: Mapping[str, torch.Tensor]) -> None:
        known = session.executable.variables
        self._host_versions.note({n: value for n, value in tensors.items() if n in known})

    def note_changed(self, memory: set[int]) -> None:
        """Records that a partner changed the host's tensors at these addresses."""
        self._outdated.update(
            name for name, value in self._named_tensors() if memory_of(value) in memory
        )
        self.link.count_change()

    def meet(self, partner: Weights) -> None:
        """Records that `partner` trains some of the same tensors."""
        self._partners.add(partner)
        self._had_partners = True

    def __del__(self) -> None:
        """Leaves what was learnt on the host; the model's memory may be all that is kept of it."""
        if self.is_ahead and not sys.is_finalizing():
            try:
                self.bring_home()
            except Exception as error:
                logger.warning(
                    "A wrapped model was deleted, and its trained weights could not be copied to "
                    "the host: %s",
                    error,
                )

    def _sync_partners(self) -> None:
        """Copies the weights that other executors have trained to the host."""
        if self._had_partners:  # Rare, and checked in each call.
            for partner in tuple(self._partners):
                partner.bring_home()

    def _tell_partners(self, names: Iterable[str]) -> None:
        """Records that host and device agree on these tensors, and tells the partners."""
        self._outdated.difference_update(names)
        self.link.count_change()
        partners = tuple(self._partners)
        if not partners:
            return
        mine = self._host_tensors()
        changed = {memory_of(mine[name]) for name in names if name in mine}
        for partner in partners:
            partner.note_changed(changed)

    def _other_trainers(self) -> Iterator[Weights]:
        """Yields the weights of other executors that train some of the same tensors."""
        for link in links_of(self._model) if self._is_training else ():
            weights: Weights | None = link.weights
            if weights is not None and weights is not self:
                yield weights

    def _take_turns_with(self, other: Weights) -> None:
        self.device_lock.join(other.device_lock)

    def _meet_trainers(self) -> None:
        """Finds the other trainers of the tensors before an upload."""
        if not self._is_training:
            self._news.start_again()
        for other in self._other_trainers():
            self.meet(other)
            other.meet(self)
            self._take_turns_with(other)

    def _host_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._named_tensors())

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._model.named_parameters()
        yield from self._model.named_buffers()


class _News:
    """Detects changes by a model's trainers since its inference executor last asked."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._links: list[Link] = []
        # Value of `num_changes` when `_links` was computed.
        self._links_are_of = -1
        self._seen_versions: dict[Link, int] = {}

    def have_come(self) -> bool:
        """Copies the trainers' weights to the host, and returns whether any changed."""
        if self._links_are_of != num_changes():
            self._links_are_of = num_changes()
            self._links = links_of(self._model)
        for link in self._links:
            link.sync()
        versions = {link: link.version for link in self._links}
        is_new = bool(versions.items() - self._seen_versions.items())
        self._seen_versions = versions
        return is_new

    def start_again(self) -> None:
        """Marks all current changes of the trainers as seen."""
        self._links_are_of = -1
        self.have_come()


def owner_of_names(model: torch.nn.Module, user_model: torch.nn.Module) -> torch.nn.Module:
    """Returns the module whose names for the weights a program uses.

    A subclass of the executor may trace a module around the user's, with other names for the same
    tensors, or a copy, with other tensors.

    Args:
        model: the module that is traced.
        user_model: the user's module.
    """
    named = dict(user_model.named_parameters())
    is_same = all(named.get(name) is each for name, each in model.named_parameters())
    return user_model if is_same else model
