"""Runs the batches of one Keras model on virtual IPUs, in place of Keras's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.config import TableConfig
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.keras.capture.batches import Batch, form_of, in_runs, num_rows, unpacked
from poptorch_emu.keras.capture.captured_model import CapturedModel, Use
from poptorch_emu.keras.capture.captured_update import CapturedUpdate
from poptorch_emu.keras.capture.keras_program import KerasProgram
from poptorch_emu.keras.keras_2.old_programs import compile_arguments, run_arguments
from poptorch_emu.keras.optimizers.optimizer_formulas import convert
from poptorch_emu.keras.optimizers.optimizer_link import learning_rate_of
from poptorch_emu.keras.optimizers.wrapped_optimizers import factor_of_loss, merged
from poptorch_emu.keras.settings.run_settings import (
    ModelSettings,
    SystemSettings,
    executor_options,
    note_reduction,
    num_replicas,
)
from poptorch_emu.keras.stages.call_graph import note_inputs
from poptorch_emu.keras.stages.stage_plan import StagePlan, plan_stages
from poptorch_emu.keras.training.epoch_check import check_epoch, shorter_execution, smaller_batch
from poptorch_emu.keras.training.executions import check_steps, drawn_by_executions
from poptorch_emu.keras.training.host_metrics import HostMetrics, needs_outputs, steps_of
from poptorch_emu.keras.training.step_callbacks import called_back_with
from poptorch_emu.schedule.tables.named import placement


class IpuTrainer:
    """The programs of one model, and the functions that `fit`, `evaluate` and `predict` call.

    Attributes:
        settings: settings of the model.
        metrics: metrics of the model.
        calls_back_each_step: whether callbacks run for each step of an execution.
    """

    def __init__(self, model: Any, system: Callable[[], SystemSettings]) -> None:
        """Prepares a trainer without programs.

        Args:
            model: Keras model, which may still be under construction.
            system: function that returns the settings of the process's `IPUConfig`.
        """
        self._model = model
        self._system = system
        self._programs: dict[tuple[Any, ...], KerasProgram] = {}
        self._known_plan: tuple[StagePlan | None] | None = None
        self._last: KerasProgram | None = None
        self._iterator: Any = None
        self._is_fitting = False  # False during the validation in `fit`, too.
        self.settings = ModelSettings()
        self.metrics = HostMetrics(model)
        self.calls_back_each_step = False
        self._step_logs: list[Any] = []  # Logs of the last execution.
        self._followers: list[Callable[[PoplarExecutor], None]] = []

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the model as Keras does, and checks the number of steps of an execution.

        Raises:
            ValueError: `steps_per_execution` is not a positive integer.
        """
        optimizer = args[0] if args else kwargs.get("optimizer")
        if getattr(optimizer, "loss_scale_factor", None) is not None:
            kwargs.setdefault("auto_scale_loss", False)  # The program has chosen a scale itself.
        type(self._model).compile(self._model, *args, **compile_arguments(kwargs))
        check_steps(self._model.steps_per_execution)

    def run(self, use: Use, *args: Any, **kwargs: Any) -> Any:
        """Trains, evaluates or predicts as Keras does, on IPUs."""
        check_steps(self._model.steps_per_execution)
        kwargs = run_arguments(kwargs)
        note_inputs(self._model, kwargs.get("x", args[0] if args else None))
        outer = self._is_fitting, self._iterator
        self._is_fitting = use is Use.TRAIN
        try:
            logs = self._step_logs if self.calls_back_each_step else None
            with drawn_by_executions(self._replicas), called_back_with(logs):
                return getattr(type(self._model), use.value)(self._model, *args, **kwargs)
        finally:
            # Data without references are released here. The garbage collector would release them in
            # another order, and then wait some seconds for each worker process of a loader.
            self._is_fitting, self._iterator = outer

    def symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds the model as Keras does, and keeps the iterator that `fit` will use."""
        self._iterator = iterator
        shapes = None if iterator is None else iterator.shapes()
        type(self._model)._symbolic_build(self._model, iterator=shapes, data_batch=data_batch)
        if self._is_fitting and iterator is not None:
            iterator.leave_rest_out()

    def make_function(self, use: Use, force: bool = False) -> Any:
        """Prepares `fit`, for example, after each `compile` of Keras, or anew if `force` is true.

        Raises:
            RuntimeError: the steps of an execution are not a multiple of the steps of an update.
            ValueError: the model's settings contradict each other, or the device cannot run the
                model.
        """
        model, is_training = self._model, use is Use.TRAIN
        if getattr(model, use.function) is None or force:
            self._begin(use)
            if is_training:
                self._check_updates(model.steps_per_execution)
            runs = {Use.TRAIN: self._train, Use.TEST: self._test, Use.PREDICT: self._predict}
            setattr(model, use.function, runs[use])
        if is_training and self._iterator is not None:
            check_epoch(self._iterator, model.steps_per_execution)
        return getattr(model, use.function)

    def forget(self) -> None:
        """Drops all programs, because settings have changed."""
        for use in Use:
            self._drop(use)
            setattr(self._model, use.function, None)

    def _begin(self, use: Use) -> None:
        """Checks the model and drops the programs compiled before."""
        model = self._model
        name = use.step
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(
                f"{type(model).__name__} overrides {name}, which runs on the host. Override "
                "compute_loss or call instead, or train the model with poptorch.trainingModel."
            )
        if model.run_eagerly:
            raise ValueError(
                f"Model {model.name!r} was compiled with run_eagerly=True, but IPUs run compiled "
                "programs. Leave it out, or build the model outside of the strategy's scope."
            )
        self._known_plan = None
        self._drop(use)

    def _drop(self, use: Use) -> None:
        for key in [key for key in self._programs if key[0] is use]:
            program = self._programs.pop(key)
            program.drop()
            self._last = None if self._last is program else self._last

    def _train(self, data: Sequence[Any]) -> Any:
        batches = [unpacked(each) for each in data]
        self._check_training(batches)
        program = self._program(Use.TRAIN, batches)
        self._step_logs.clear()
        return self._logged(batches, program)

    def _test(self, data: Sequence[Any]) -> Any:
        logs = None
        self._step_logs.clear()
        for batches in in_runs([unpacked(each) for each in data]):
            logs = self._logged(batches, self._program(Use.TEST, batches))
        return logs

    def _logged(self, batches: Sequence[Batch], program: KerasProgram) -> Any:
        """Runs batches and returns the values for Keras's logs."""
        whole, losses, outputs = program.run(batches)
        replicas = program.replicas
        if not self.calls_back_each_step:
            return self.metrics.update(batches, replicas, whole, losses, outputs)
        for each in steps_of(batches, replicas, losses, outputs):
            logs = self.metrics.update(*each)
            self._step_logs.append(dict(logs))
        return logs

    def _predict(self, data: Sequence[Any]) -> Any:
        batches = [(unpacked(each)[0], None, None) for each in data]
        if not all(layer.built for layer in self._model._flatten_layers()):
            with torch.no_grad():
                self._model(batches[0][0])
        results = [self._program(Use.PREDICT, run).run(run)[2] for run in in_runs(batches)]
        if len(results) == 1:
            return results[0]
        return keras.tree.map_structure(lambda *parts: torch.cat(parts), *results)

    def _check_training(self, batches: Sequence[Batch]) -> None:
        """Checks that one program can train with these batches.

        Raises:
            RuntimeError: the number of batches is not a multiple of the batches of an update.
            ValueError: the batches have several sizes, or their number has changed.
        """
        first = form_of(batches[0])
        known = [key for key in self._programs if key[0] is Use.TRAIN]
        wanted = known[0][1] if known else first
        for batch in batches:
            if form_of(batch) != wanted:
                raise smaller_batch(num_rows(batch), wanted[0][0][0])
        if known and known[0][2] != len(batches):
            replicas = self._replicas()
            raise shorter_execution(len(batches) // replicas, known[0][2] // replicas)
        self._check_updates(len(batches) // self._replicas())

    def _program(self, use: Use, batches: Sequence[Batch]) -> KerasProgram:
        """Returns the program for these batches, and compiles it if necessary."""
        key = (use, form_of(batches[0]), len(batches))
        program = self._programs.get(key)
        if program is None:
            program = self._made(use, batches)
            for begin in self._followers if use is Use.TRAIN else ():
                begin(program.executor)
            self._programs[key] = program
        self._last = program
        return program

    def last_executor(self) -> PoplarExecutor | None:
        """Returns the executor that ran last; `None` if none did, or if settings have changed."""
        return None if self._last is None else self._last.executor

    def follow(self, begin: Callable[[PoplarExecutor], None]) -> Callable[[], None]:
        """Calls a function with each executor that trains; returns a function that ends this."""
        for key, program in self._programs.items():
            if key[0] is Use.TRAIN:
                begin(program.executor)
        self._followers.append(begin)
        return lambda: self._followers.remove(begin) if begin in self._followers else None

    def _made(self, use: Use, batches: Sequence[Batch]) -> KerasProgram:
        model, plan = self._model, self._plan()
        steps, is_training = len(batches), use is Use.TRAIN
        replicas = self._replicas()
        if not is_training and steps % replicas:
            replicas = 1
        settings = self._training_settings() if is_training else self.settings
        factor, update = 1.0, None
        if is_training:
            processes = self._system().num_processes
            factor = factor_of_loss(settings, model.optimizer, replicas * processes)
            update = self._update(settings, replicas, factor)
        options = executor_options(
            self._system(),
            settings,
            plan,
            steps,
            replicas=replicas,
            is_training=is_training and update is None,
        )
        module = CapturedModel(
            model,
            use,
            batches[0],
            plan,
            returns_outputs=use is Use.PREDICT or needs_outputs(model),
            loss_factor=factor,
            replicas=replicas,
            update=update,
        )
        optimizer = model.optimizer if is_training else None
        updates = steps // (settings.accumulation * replicas)
        return KerasProgram(module, use, steps, options, optimizer, updates)

    def _update(
        self, settings: ModelSettings, replicas: int, factor: float
    ) -> CapturedUpdate | None:
        """Returns an update by Keras's formula; `None` if the device has a counterpart.

        Raises:
            ValueError: the optimizer has no counterpart, which pipelines and processes need.
        """
        model = self._model
        try:
            convert(model.optimizer, model.trainable_variables, learning_rate_of(model.optimizer))
            return None
        except ValueError as fault:
            if self._plan() is not None or self._system().num_processes > 1:
                raise ValueError(
                    f"{fault} A model without pipeline stages, in one process, trains with it."
                ) from None
        note_reduction(settings, replicas)
        return CapturedUpdate(
            model.optimizer,
            model.trainable_variables,
            settings.accumulation,
            factor / (settings.accumulation * replicas if settings.is_mean else 1),
            replicas,
        )

    def _plan(self) -> StagePlan | None:
        if self._known_plan is None:
            settings = self.settings
            plan = plan_stages(self._model, settings.device_mapping)
            if plan is not None and isinstance(settings.schedule, TableConfig):
                ipus = placement(settings.schedule, len(plan.ipus))
                plan = plan_stages(self._model, ipus)
            self._known_plan = (plan,)
        return self._known_plan[0]

    def _training_settings(self) -> ModelSettings:
        return merged(self.settings, self._model.optimizer)

    def _replicas(self) -> int:
        return num_replicas(self._system(), self._plan())

    def _check_updates(self, steps: int) -> None:
        """Checks that `steps` steps of each replica make whole updates."""
        accumulation = self._training_settings().accumulation
        if steps % accumulation:
            raise RuntimeError(
                f"An execution has {steps} steps for each replica, but one update of the weights "
                f"takes {accumulation}: gradient_accumulation_steps_per_replica={accumulation}. "
                f"Call compile(steps_per_execution=...) with a multiple of {accumulation}, and "
                "let the steps of an epoch be a multiple of it, too."
            )
