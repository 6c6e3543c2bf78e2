"""A wrapped model on virtual IPUs: the order of events for its program, weights and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from poptorch_emu.compile.compiler import MakeExecutable, Request, compile_model
from poptorch_emu.enums import ConnectionType
from poptorch_emu.errors import make_error, require
from poptorch_emu.executor.anomaly_mode import hunt_of
from poptorch_emu.executor.args_parser import Call
from poptorch_emu.executor.attached_device import AttachedDevice
from poptorch_emu.executor.captures import check_not_captured
from poptorch_emu.executor.compilation import Compilation
from poptorch_emu.executor.device_lock import one_at_a_time
from poptorch_emu.executor.guarded_programs import GuardedProgram
from poptorch_emu.executor.measurement import Measurement
from poptorch_emu.executor.random_state import RandomState
from poptorch_emu.executor.saving import (
    ExportedModel,
    open_executable,
    path_to_save,
    save_executable,
)
from poptorch_emu.executor.synced_tensors import Trainer
from poptorch_emu.executor.unseen_changes import CompiledFlags, UnseenChangeWarnings
from poptorch_emu.executor.weights import Weights, owner_of_names
from poptorch_emu.log import logger
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.options import Options, PipelinedExecution
from poptorch_emu.options.optimizer_settings import with_running_mean
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.runtime.arguments import Arguments, check_values
from poptorch_emu.runtime.same_arguments import check_same
from poptorch_emu.runtime.session import Session
from poptorch_emu.runtime.stream import ResultStream

if TYPE_CHECKING:
    from poptorch_emu.plan.time.time_plan import TimePlan

# Returns the bound arguments of a call; errors in them are raised late.
Bind = Callable[[], Arguments]


class DeviceModel:
    """The parts of an executor beside the user's model, and the order of their use.

    Attributes:
        device: the attached device with its session; empty while none is attached.
        weights: parameters and buffers of the model, on the host and on the device.
        device_lock: lock of the weights, which the thread that uses the device holds.
        random_state: random state of the attached device, or of the last one.
        measurement: times of the last call.
        optimizer_link: link to the optimiser; None in inference.
        compilation: the program, if the model is compiled.
        anchored: values of the anchored tensors in the last call, by name.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        user_model: torch.nn.Module,
        options: Options,
        trainer: Trainer,
        optimizer_link: OptimizerLink | None,
    ) -> None:
        """Starts without a program and a device.

        Args:
            model: the module that is traced.
            user_model: the user's module, which owns the weights.
            options: frozen options.
            trainer: the executor; only a weak reference to it is stored.
            optimizer_link: link to the optimiser; None in inference.
        """
        self._user_model = user_model
        self._options = options
        self._warnings = UnseenChangeWarnings()
        self._flags: CompiledFlags | None = None
        self.optimizer_link = optimizer_link
        self.device = AttachedDevice()
        is_training = optimizer_link is not None
        self._named_model = owner = owner_of_names(model, user_model)
        self.weights = Weights(owner, trainer, self.device, is_training=is_training)
        self.device_lock = self.weights.device_lock
        self.random_state = RandomState(self.device)
        self.measurement = Measurement(self.device)
        self.compilation = Compilation(model, owner, optimizer_link)
        self.anchored: dict[str, torch.Tensor] = {}
        self._follow_optimizer()
        self.weights.wrap()

    @property
    def options(self) -> Options:
        """The executor's own options, frozen."""
        return self._options

    @property
    def is_attached(self) -> bool:
        """Whether a program runs on a device."""
        return self.device.session is not None

    @property
    def counts_as_attached(self) -> bool:
        """Whether a program runs on a device, or the program needs no device."""
        executable = self.compilation.executable
        return executable is not None and (self.is_attached or not executable.has_device_work)

    @one_at_a_time
    def run(self, call: Call) -> Any:
        """Runs a call after all preparations, and returns the outputs of `forward`."""
        tensors, session = self._ready(call)
        hunt = hunt_of(self._user_model, session, tensors, self.device_lock)
        self.weights.note_run()  # Also if the run fails after an update.
        outputs = session.run(tensors)
        self.weights.note_end()
        self.anchored = session.anchored
        if hunt is not None:
            hunt.check(self.compilation, self._options)
        return outputs

    @one_at_a_time
    def stream(self, call: Call, max_unread: int, *, are_kept: bool = False) -> ResultStream:
        """Begins a call whose results are read while it runs; see `Session.stream`."""
        tensors, session = self._ready(call)
        hunt = hunt_of(self._user_model, session, tensors, self.device_lock)
        self.weights.note_run()
        self.anchored = session.anchored
        at_end = None if hunt is None else partial(hunt.check, self.compilation, self._options)
        return session.stream(tensors, max_unread, are_kept=are_kept, at_end=at_end)

    @one_at_a_time
    def compile(self, call: Call) -> None:
        """Compiles and attaches, unless the model is compiled already."""
        check_not_captured()
        arguments = self._bound(call)
        if self.compilation.executable is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(arguments)

    @one_at_a_time
    def plan(
        self, bind: Bind | None = None, *, ignores_schedule: bool = False
    ) -> tuple[Request, Inventory]:
        """Returns the request for a compilation, and its inventory.

        Args:
            bind: returns the arguments; None for those of the program.
            ignores_schedule: whether to ignore the schedule, as in `plan_model`.

        Raises:
            Error: the model has no arguments yet, or cannot be captured.
        """
        arguments = self.compilation.bound(bind)
        return self.compilation.plan(arguments, self._options, ignores_schedule=ignores_schedule)

    @one_at_a_time
    def place(self, strategy: PipelinedExecution) -> None:
        """Sets another strategy for the next compilation, with the schedule of the current one."""
        options = self._options.clone()
        present = options._execution_strategy
        if isinstance(present, PipelinedExecution):
            strategy.set_order(present.order)
        options.setExecutionStrategy(strategy)
        options._freeze()
        self._options = options

    @one_at_a_time
    def times(self) -> TimePlan:
        """Returns the plan of time of a call on the virtual system."""
        return self.compilation.times(self._options)

    @one_at_a_time
    def save(self, filename: str | Path, export_model: bool, save_rng_state: bool) -> None:
        """Writes the executable to a file, on request with the model and the random state."""
        executable = self.compilation.checked()
        path = path_to_save(filename)
        has_rng_state = save_rng_state and self.random_state.is_known
        save_executable(
            path,
            executable,
            self.compilation.arguments,
            self._options,
            self._exported() if export_model else None,
            self.random_state.read() if has_rng_state else None,
        )

    @one_at_a_time
    def load(self, filename: str | Path) -> None:
        """Loads the program in a file, and attaches."""
        if self.compilation.executable is not None:
            raise make_error(
                f"{filename} cannot be loaded: the model is compiled already. Call destroy() first."
            )
        self._compile(*open_executable(filename))

    @one_at_a_time
    def destroy(self) -> None:
        """Detaches, drops the program and unwraps the model."""
        if self.compilation.executable is not None:
            self._detach()
            self.compilation.forget()
            self.measurement.forget()
            self.random_state.forget()
            if self.optimizer_link is not None:
                self.optimizer_link.forget()
        self.weights.unwrap()

    @one_at_a_time
    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Continues with `optimizer`, which may be the same object with other values."""
        if self.optimizer_link is None:
            raise AttributeError(
                "setOptimizer was called on an inference model, which has no optimizer."
            )
        self.optimizer_link.replace(optimizer, self.device.session)
        self._follow_optimizer()

    @one_at_a_time
    def attach(self) -> None:
        """Acquires a device for the compiled program."""
        self.compilation.checked()
        require(
            not self._is_offline,
            "Trying to attach to an offline device (ConnectionType.Never). Choose another "
            "connection type to run the model.",
        )
        if self.counts_as_attached:
            raise make_error("Device is already attached. Call detachFromDevice() first.")
        self._attach()

    @one_at_a_time
    def detach(self) -> None:
        """Releases the device."""
        self.compilation.checked()
        if not self.is_attached:
            raise make_error("Device is not attached. Call attachToDevice(), or run the model.")
        self._detach()

    @one_at_a_time
    def download(self) -> None:
        """Copies the weights to the host."""
        self.compilation.checked()
        self.weights.download()

    @one_at_a_time
    def upload(self) -> None:
        """Copies the weights to the device, after copying the optimiser's state back."""
        self.compilation.checked()
        session = self.device.session
        if session is not None:
            session.check_idle()
        self.weights.give_up()  # Otherwise reads would sync first.
        if self.optimizer_link is not None and session is not None:
            self.optimizer_link.receive(session)
        self.weights.upload()

    @one_at_a_time
    def upload_named_buffers(self) -> None:
        """Copies the buffers that the options name to the device."""
        names = self.compilation.checked().config.updatable_buffers
        if not names:
            raise make_error(
                "No named buffers marked as updatable via updatableNamedBuffers option. Call "
                "poptorch.Options().updatableNamedBuffers([...]) before the model is wrapped."
            )
        self.weights.upload(names)

    @one_at_a_time
    def load_state_dict(self, state_dict: Any, strict: bool) -> Any:
        """Loads the user model's state, and uploads it if a device is attached."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self.is_attached:
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.upload()
        return result

    @one_at_a_time
    def read_rng_state(self) -> list[int]:
        """Returns the random state of a compiled model."""
        self.compilation.checked()
        return self.random_state.read()

    @one_at_a_time
    def write_rng_state(self, state: list[int]) -> None:
        """Replaces the random state of a compiled model."""
        self.compilation.checked()
        self.random_state.write(state)

    @property
    def _is_offline(self) -> bool:
        return bool(self._options.connection_type == ConnectionType.Never)

    def _ready(self, call: Call) -> tuple[Sequence[torch.Tensor], Session]:
        """Prepares a run of the engine, and returns the tensors of the call."""
        check_not_captured()
        assert self.device.session or not self._is_offline, (
            "Trying to run a model on an offline device (ConnectionType.Never): only "
            "`model.compile(inputs)` is possible. Choose another connection type to run."
        )
        compiled_for = self.compilation.arguments
        is_new = compiled_for is None
        tensors = None if compiled_for is None else call.tensors_like(compiled_for)
        if tensors is None:
            arguments = self._bound(call)
            if self.compilation.executable is None:
                self._compile(arguments)
            compiled_for = self.compilation.bound(None)
            check_same(compiled_for, arguments)
            tensors = arguments.tensors(compiled_for)
        session = self.device.session or self._attach()
        self.weights.refresh()
        if not self.compilation.holds_for(tensors, session):
            change_to = None if is_new else self._change_to
            self.compilation.change(partial(self._bound, call), tensors, session, change_to)
            session = self.device.session or self._attach()
        if self.optimizer_link is not None:
            self.optimizer_link.send_if_dirty(session)
        values = [] if self.optimizer_link is None else self.optimizer_link.changed_values()
        self._warnings.warn_of(self.weights.edited(), self._flags, values)
        return tensors, session

    def _bound(self, call: Call) -> Arguments:
        arguments = call.bound()
        check_values(arguments)
        self._warnings.warn_of_strides(arguments.tensors())
        return arguments

    def _compile(self, arguments: Arguments, make: MakeExecutable = compile_model) -> None:
        """Compiles and attaches. After a failure of either, the model is not compiled."""
        self.weights.wrap()
        if arguments.has_dict():
            logger.warning(
                "Dicts as inputs only have partial support: looking up a literal key works, other "
                "uses of a dict may not. A tuple is the better choice."
            )
        self._follow_optimizer()
        self.compilation.run(arguments, self._options, make, self._load)

    def _change_to(self, arguments: Arguments, stored: GuardedProgram | None) -> None:
        """Detaches, and continues with a stored program or with a new one."""
        self._detach()
        if stored is None:
            self._compile(arguments)
        else:
            self.compilation.take(stored)

    def _load(self) -> None:
        """Loads the program on a device, unless the model is offline."""
        self.weights.wrap()  # Wraps buffers that forward made.
        self._flags = CompiledFlags(self._named_model, self.compilation.executable)
        if not self._is_offline:
            self._attach()

    def _follow_optimizer(self) -> None:
        """Updates the options if the optimiser needs a running mean of gradients."""
        link = self.optimizer_link
        if link is not None and self.compilation.executable is None and link.needs_running_mean:
            self._options = with_running_mean(self._options)

    def _attach(self) -> Session:
        session = self.device.take(self.compilation.checked())
        try:
            self.weights.enter(session)
            if self.optimizer_link is not None:
                self.optimizer_link.send(session)
            self.random_state.send(session)
            self.measurement.start(session, self.compilation.viewer(self._options))
        except BaseException:
            self.device.release()
            raise
        return session

    def _detach(self) -> None:
        """Copies the device's state back and releases the device, if one is attached."""
        session = self.device.session
        if session is not None and session.is_lost:
            self.weights.give_up()
        elif session is not None:
            self.weights.bring_home()
            if self.optimizer_link is not None:
                self.optimizer_link.receive(session)
            self.measurement.end(session)
            self.random_state.keep(session)
        self.device.release()

    def _exported(self) -> ExportedModel:
        """Returns the objects that `poptorch.load` needs, with the newest weights."""
        self.weights.bring_home()
        link = self.optimizer_link
        return ExportedModel(
            training=link is not None,
            model=self._user_model,
            optimizer=None if link is None else link.optimizer,
            optimizer_state=None if link is None else link.saved_state(self.device.session),
        )
