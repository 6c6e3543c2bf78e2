"""The program of a wrapped model, and its compilation."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from poptorch_emu.compile.compiler import (
    LOAD,
    NO_HOOKS,
    STEPS,
    MakeExecutable,
    Observe,
    Request,
    compile_observed,
    plan_model,
)
from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.limits import check_batches
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.executor.guarded_programs import (
    GuardedProgram,
    GuardedPrograms,
    check_same_states,
    disagreement,
)
from poptorch_emu.executor.hooks import run_post_compile_hooks, run_pre_compile_hooks
from poptorch_emu.executor.measurement import profile_folder
from poptorch_emu.executor.replica_grouping import ReplicaGroupings
from poptorch_emu.executor.synced_tensors import settled
from poptorch_emu.log import logger, start_repeats
from poptorch_emu.machine.system import current_system
from poptorch_emu.module_loading import LateModule
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.optim.optimizer_warnings import warn_of_defaults
from poptorch_emu.options import Options
from poptorch_emu.options.forced import warn_about_forced
from poptorch_emu.options.freeze import freeze
from poptorch_emu.options.optimizer_settings import has_running_mean
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.report.latency import Spans
from poptorch_emu.report.out_of_memory import check_memory
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.runtime.progress import progress_bar
from poptorch_emu.runtime.session import Session
from poptorch_emu.trace.capture.hidden_tensors import check_inputs
from poptorch_emu.trace.model_state.module_state import check_values
from poptorch_emu.trace.refusals.leniency import tolerate
from poptorch_emu.troubleshooting import Topic

if TYPE_CHECKING:
    from poptorch_emu.compile import planner, timing
    from poptorch_emu.plan.time.time_plan import TimePlan
    from poptorch_emu.report import modelled_latency
    from poptorch_emu.report.page import model_content, view_model
else:
    timing = LateModule("poptorch_emu.compile.timing")
    modelled_latency = LateModule("poptorch_emu.report.modelled_latency")
    planner = LateModule("poptorch_emu.compile.planner")
    model_content = LateModule("poptorch_emu.report.page.model_content")
    view_model = LateModule("poptorch_emu.report.page.view_model")


class Compilation:
    """The program of a wrapped model, and its alternatives for other values.

    Attributes:
        executable: program with its plans and names; None if nothing is compiled.
        arguments: arguments of the call that the program was compiled for.
        groupings: groups of replicas for the next compilation, from `replicaGrouping`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        user_model: torch.nn.Module,
        optimizer_link: OptimizerLink | None,
    ) -> None:
        """Starts without a program.

        Args:
            model: the module that is traced.
            user_model: the user's module, which owns the weights.
            optimizer_link: link to the optimiser; None in inference.
        """
        self._model = model
        self._user_model = user_model
        self._optimizer_link = optimizer_link
        self.executable: Executable | None = None
        self.arguments: Arguments | None = None
        self._time: datetime.timedelta | None = None
        self._timed: tuple[TimePlan, Inventory] | None = None
        self._num_made = 0
        self.groupings = ReplicaGroupings()
        self._programs = GuardedPrograms()

    def checked(self) -> Executable:
        """Returns the program.

        Raises:
            Error: nothing is compiled.
        """
        if self.executable is None:
            raise make_error(
                "Model has not been compiled or has been destroyed. Call it, or compile() it, "
                f"first; {Topic.NOT_COMPILED}"
            )
        return self.executable

    def time(self) -> datetime.timedelta:
        """Returns the duration of the compilation.

        Raises:
            Error: nothing is compiled; or no progress bar was shown and strict mode is on.
        """
        if self.executable is None or self._time is None:
            raise make_error("Please compile the model before obtaining compilation time.")
        if not self.executable.config.shows_progress_bar:
            tolerate(
                "compilationTime",
                make_error(
                    "Please set showCompilationProgressBar option to obtain compilation time."
                ),
                "PopTorch measures the time only with the progress bar; poptorch_emu always "
                "measures it.",
            )
        return self._time

    def run(
        self,
        arguments: Arguments,
        options: Options,
        make: MakeExecutable,
        load: Callable[[], None],
    ) -> None:
        """Compiles the program for calls with such arguments, and loads it.

        Args:
            arguments: arguments of one call.
            options: frozen options.
            make: compiles a request, or finds its program in a file.
            load: loads the program on a device, as the last step.

        Raises:
            Error: the options, the optimiser, the arguments or the model are not valid.
        """
        check_values(self._user_model)
        start = time.perf_counter()
        self._num_made += 1
        logger.info(
            "Compilation %d of %s, for %s",
            self._num_made,
            type(self._user_model).__name__,
            arguments.describe(),
        )
        parameters = dict(self._user_model.named_parameters())
        request = self._request(arguments, options, parameters)
        kept = arguments.kept()  # forward may change its arguments.
        start_repeats(request.config.max_repeat_logs)
        with progress_bar(STEPS, request.config.shows_progress_bar) as on_step:
            with settled(self._user_model):
                executable = make(request, on_step)
            check_memory(executable, profile_folder(request.config))
            if self.executable is not None:
                check_same_states(self.executable, executable)
            self.executable = executable
            warn_about_forced(options, executable)
            if request.optimizer is not None:
                warn_of_defaults(request.optimizer, parameters, executable)
            if self._optimizer_link is not None:
                self._optimizer_link.limits = executable.scaling_limits
            self.arguments = self._programs.add(executable, kept)
            self._timed = None
            on_step(LOAD)
            try:
                load()
            except BaseException:
                self.forget()
                raise
        self._time = datetime.timedelta(seconds=time.perf_counter() - start)

    def holds_for(self, tensors: Sequence[torch.Tensor], session: Session) -> bool:
        """Returns whether the program is valid for the values of a call."""
        guards = self.checked().guards
        return not guards.reads or guards.mismatch(tensors, session.read_variable) is None

    def change(
        self,
        bound: Callable[[], Arguments],
        tensors: Sequence[torch.Tensor],
        session: Session,
        change_to: Callable[[Arguments, GuardedProgram | None], None] | None,
    ) -> None:
        """Changes to a program that is valid for the values of a call.

        Args:
            bound: returns the arguments of the call.
            tensors: tensors of these arguments.
            session: session with the current program and weights.
            change_to: switches to a stored program, or captures a new one if it is None. None in
                place of the function means that the current program was captured from this call.

        Raises:
            Error: the limit of stored programs is reached, or the micro-batches disagree.
        """
        read, arguments = session.read_variable, bound()
        mismatch = self.checked().guards.mismatch(tensors, read)
        if mismatch is not None and change_to is not None:
            change_to(arguments, self._programs.find(mismatch, arguments, tensors, read))
            mismatch = self.checked().guards.mismatch(tensors, read)
        if mismatch is not None:
            raise disagreement(mismatch, arguments)

    def take(self, program: GuardedProgram) -> None:
        """Continues with a stored program."""
        self.executable, self.arguments = program.executable, program.arguments
        self._timed = None

    def plan(
        self, arguments: Arguments, options: Options, *, ignores_schedule: bool = False
    ) -> tuple[Request, Inventory]:
        """Returns the request for a compilation, and its inventory, without changing anything.

        Args:
            arguments: arguments of one call, possibly on the meta device.
            options: frozen options.
            ignores_schedule: whether to ignore the schedule, as in `plan_model`.
        """
        request = self.request(arguments, options)
        with settled(self._user_model):
            inventory = plan_model(request, ignores_schedule=ignores_schedule)
            return request, inventory

    def bound(self, bind: Callable[[], Arguments] | None) -> Arguments:
        """Returns the arguments from `bind`, or without it those of the program.

        Raises:
            Error: `bind` is None, and the model is not compiled.
        """
        arguments = self.arguments if bind is None else bind()
        if arguments is None:
            raise make_error(
                "The model is not compiled, so the shapes of its inputs are not known. Pass inputs "
                "as for a call; they may be on the meta device."
            )
        return arguments

    def request(self, arguments: Arguments, options: Options) -> Request:
        """Returns the request for a compilation, without changing anything."""
        parameters = dict(self._user_model.named_parameters())
        request = replace(self._request(arguments, options, parameters), hooks=NO_HOOKS)
        if self._optimizer_link is not None and self.executable is None:
            self._optimizer_link.forget()
        return request

    def observed(self, request: Request, observe: Observe) -> Executable:
        """Returns a program of its own that calls the host as `observe` wants it."""
        with settled(self._user_model):
            return compile_observed(request, observe)

    def viewer(self, options: Options) -> Callable[[], Mapping[str, Any]]:
        """Returns a function that returns a report about the model before it runs."""

        def view() -> Mapping[str, Any]:
            assert self.arguments is not None, "a program was made for some arguments"
            request, inventory = self.plan(self.arguments, options)
            plans = planner.Planner(request, inventory, current_system())
            content = model_content.content_of_model(plans)
            return view_model.view_model(content)

        return view

    def times(self, options: Options) -> TimePlan:
        """Returns the plan of time of a call on the virtual system.

        Raises:
            Error: nothing is compiled.
        """
        return self._times(options)[0]

    def modelled_spans(
        self, options: Options, inputs: Spans, outputs: Spans
    ) -> tuple[Spans, Spans]:
        """Returns the modelled spans of inputs and outputs on the virtual system.

        Args:
            options: frozen options.
            inputs: measured spans of the inputs.
            outputs: measured spans of the outputs.
        """
        return modelled_latency.modelled_spans(*self._times(options), inputs, outputs)

    def _times(self, options: Options) -> tuple[TimePlan, Inventory]:
        self.checked()
        if self._timed is None:
            assert self.arguments is not None, "a program was made for some arguments"
            request, inventory = self.plan(self.arguments, options)
            self._timed = timing.time_of(request, inventory, current_system()), inventory
        return self._timed

    def forget(self) -> None:
        """Drops the program."""
        self.executable = None
        self.arguments = None
        self._timed = None
        self._programs.clear()

    def _request(
        self, arguments: Arguments, options: Options, parameters: dict[str, torch.nn.Parameter]
    ) -> Request:
        """Returns the request for a compilation, after checks."""
        config = self._config(options)
        _check_updatable_buffers(config, self._user_model)
        check_inputs(arguments.items())
        check_batches(arguments.tensors(), config)
        optimizer = None
        if self._optimizer_link is not None:
            is_running_mean = has_running_mean(options)
            optimizer = self._optimizer_link.config(parameters, is_running_mean=is_running_mean)
        return Request(
            model=self._model,
            arguments=arguments.rebuild_with,
            tensors=arguments.tensors(),
            config=config,
            optimizer=optimizer,
            parameters=tuple(parameters),
            hooks=(run_pre_compile_hooks, run_post_compile_hooks),
        )

    def _config(self, options: Options) -> CompileConfig:
        model = self._user_model
        self.groupings.withdraw(model)
        groups = self.groupings.weight_groups(model, options.replication_factor)
        is_training = self._optimizer_link is not None
        return freeze(options, is_training=is_training, weight_groups=groups)


def _check_updatable_buffers(config: CompileConfig, model: torch.nn.Module) -> None:
    known = dict(model.named_buffers())
    for name in config.updatable_buffers:
        if name not in known:
            raise compiler_error(
                f"Options.updatableNamedBuffers names '{name}', which is no buffer of the "
                f"model. Its buffers are: {', '.join(known) or 'none'}."
            )
