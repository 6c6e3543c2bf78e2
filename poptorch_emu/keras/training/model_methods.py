"""Methods that models built in a strategy's scope have in addition to Keras's own.

The methods are attributes of each model that bypass Keras's tracking, so that the class stays the
user's. Files, clones and type checks therefore work as in plain Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from poptorch_emu.config import TableConfig
from poptorch_emu.emulator.given_values import FOLLOW, LAST_RUN
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.captured_model import Use
from poptorch_emu.keras.keras_2.old_files import saved_model_refused
from poptorch_emu.keras.settings import original_options, run_settings, saved_stages
from poptorch_emu.keras.settings.run_settings import (
    GradientAccumulationReductionMethod,
    PipelineSchedule,
    RecomputationMode,
    ReplicatedMetricReductionMethod,
    SystemSettings,
)
from poptorch_emu.keras.stages import stage_assignment
from poptorch_emu.keras.stages.call_graph import graph_of_call, is_of_own_class
from poptorch_emu.keras.training.ipu_trainer import IpuTrainer
from poptorch_emu.options.base import note_accepted


class IpuModelMethods:
    """The additional methods of one model."""

    def __init__(self, model: Any, system: Callable[[], SystemSettings]) -> None:
        """Prepares the methods of a model, which may still be under construction."""
        self._model = model
        self._trainer = IpuTrainer(model, system)

    def put_on(self) -> None:
        """Attaches the public methods to the model."""
        attributes = vars(self._model)
        trainer = self._trainer
        attributes["compile"] = trainer.compile
        for use in Use:
            attributes[use.value] = partial(trainer.run, use)
            attributes[f"make_{use.function}"] = partial(trainer.make_function, use)
        attributes[LAST_RUN] = trainer.last_executor
        attributes[FOLLOW] = trainer.follow
        attributes[saved_stages.SAVE] = self._save_stages
        attributes[saved_stages.RESTORE] = self._restore_stages
        attributes["reset_metrics"] = trainer.metrics.reset
        attributes["_get_metrics_result_or_logs"] = trainer.metrics.result_or_logs
        attributes["_symbolic_build"] = trainer.symbolic_build
        for name, method in vars(IpuModelMethods).items():
            if not name.startswith("_") and name != "put_on" and callable(method):
                attributes[name] = getattr(self, name)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: Sequence[Any]) -> None:
        """Assigns a pipeline stage to each layer (exact).

        Args:
            pipeline_stage_assignment: entries of `get_pipeline_stage_assignment` with their stages
                set; for a Sequential also a list with the number of each layer's stage.

        Raises:
            ValueError: there is not one entry for each layer, or stages decrease along the model.
            TypeError: an entry has a wrong type.
        """
        stage_assignment.assign(self._model, list(pipeline_stage_assignment))
        self._change()

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """Returns an entry for each layer or call, with its stage (exact).

        Raises:
            RuntimeError: the model has its own class, and its inputs are not known.
        """
        if is_of_own_class(self._model) and graph_of_call(self._model) is None:
            raise RuntimeError(
                f"The inputs of model {self._model.name!r} are not known. Call build(input_shape) "
                "of the model first."
            )
        return stage_assignment.assignments_of(self._model)

    def reset_pipeline_stage_assignment(self) -> None:
        """Removes all stages, so that the model runs on one IPU (exact)."""
        stage_assignment.unassign(self._model)
        self._change()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Prints each layer call with its stage (exact; the layout is ours).

        Args:
            line_length: length of the lines in characters; 80 by default.
            print_fn: function that receives each line; `print` by default.
        """
        width = line_length or 80
        show = print_fn or print
        columns = f"{{:<{width * 2 // 5}}}{{:<{width * 2 // 5}}}{{}}"
        show(f"Model: {self._model.name!r}")
        show(columns.format("Layer (call)", "Type", "Pipeline stage"))
        for name, kind, stage in _rows(self.get_pipeline_stage_assignment()):
            show(columns.format(name, kind, "none" if stage is None else stage))

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints Keras's summary, and the pipeline stages if there are any (exact).

        Arguments and errors are those of Keras.
        """
        kind = type(self._model)
        kind.summary(self._model, *args, **kwargs)
        if stage_assignment.known_stages(self._model) is not None:
            given = inspect.signature(kind.summary).bind(self._model, *args, **kwargs).arguments
            self.print_pipeline_stage_assignment_summary(
                given.get("line_length"), given.get("print_fn")
            )

    def export(
        self, filepath: Any, format: str = "tf_saved_model", *args: Any, **kwargs: Any
    ) -> Any:
        """Exports in one of Keras's formats that need no TensorFlow (exact).

        Arguments and errors are those of Keras.

        Raises:
            Error: the format is a SavedModel.
        """
        if format == "tf_saved_model":
            raise saved_model_refused("model.export")
        return type(self._model).export(self._model, filepath, format, *args, **kwargs)

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: Sequence[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: GradientAccumulationReductionMethod
        | str
        | None = None,
        pipeline_schedule: PipelineSchedule | TableConfig | None = None,
        recomputation_mode: RecomputationMode | None = None,
        replicated_optimizer_state_sharding: bool | None = None,
        offload_weight_update_variables: bool | None = None,
        offload_activations: bool | None = None,
        offload_gradient_accumulation_buffers: bool | None = None,
        offload_weights: bool | None = None,
        **of_original: Any,
    ) -> None:
        """Sets how the pipeline of the model runs (exact; places of tensors are modelled).

        Args:
            gradient_accumulation_steps_per_replica: number of batches whose gradients one replica
                accumulates for an update of the weights; 1 by default.
            device_mapping: IPU of each stage; by default the number of the stage.
            accumulate_outfeed: accepted; logs hold the mean over all batches in any case.
            gradient_accumulation_reduction_method: reduction of the gradients of these batches; by
                default their sum. Gradients of replicas are added.
            pipeline_schedule: order of the stages' work; grouped by default. A schedule of
                `emulator.schedules` also determines the IPU of each stage.
            recomputation_mode: turns recomputation of activations on; by default
                `IPUConfig.allow_recompute` decides.
            replicated_optimizer_state_sharding: whether each replica holds a part of the state.
            offload_weight_update_variables: whether the optimiser's state is in streaming memory.
            offload_activations: whether activations are in streaming memory.
            offload_gradient_accumulation_buffers: whether sums of gradients are in streaming
                memory.
            offload_weights: whether weights are in streaming memory.
            of_original: further options of the original, which change no result: accepted. The
                "availableMemoryProportion" of each stage is modelled.

        Raises:
            TypeError: a value has a wrong type, or an option does not exist.
            ValueError: a number is out of range, or other methods set the option.
            NotImplementedError: `continuous_weight_updates` is on.
        """
        original_options.check_options("set_pipelining_options", of_original)
        original_options.check_flag("accumulate_outfeed", accumulate_outfeed)
        if accumulate_outfeed:
            note_accepted("set_pipelining_options(accumulate_outfeed=True)")
        if recomputation_mode is not None:
            run_settings.checked_member(RecomputationMode, recomputation_mode, "recomputation_mode")
        of_update = _settings_of_update(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            replicated_optimizer_state_sharding=replicated_optimizer_state_sharding,
            offload_weight_update_variables=offload_weight_update_variables,
            offload_activations=offload_activations,
            offload_gradient_accumulation_buffers=offload_gradient_accumulation_buffers,
            offload_weights=offload_weights,
        )
        self._change(
            **of_update,
            device_mapping=run_settings.checked_mapping(device_mapping),
            schedule=run_settings.checked_schedule(pipeline_schedule, device_mapping),
            recomputation=recomputation_mode,
            proportions=original_options.stage_proportions(of_original),
        )

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: GradientAccumulationReductionMethod
        | str
        | None = None,
        use_v2_gradient_accumulation_optimizer: bool = False,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool | None = None,
        **of_original: Any,
    ) -> None:
        """Sets the number of batches of an update, for a model without a pipeline (exact).

        Arguments and errors are those of `set_pipelining_options`;
        `use_v2_gradient_accumulation_optimizer` is accepted.
        """
        original_options.check_options("set_gradient_accumulation_options", of_original)
        of_update = _settings_of_update(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            offload_weight_update_variables=offload_weight_update_variables,
            replicated_optimizer_state_sharding=replicated_optimizer_state_sharding,
        )
        self._change(**of_update)

    def set_replication_options(
        self,
        replicated_metric_reduction_method: ReplicatedMetricReductionMethod | str = "NONE",
    ) -> None:
        """Sets which metrics of the replicas are logged (exact).

        Args:
            replicated_metric_reduction_method: `NONE` logs the metrics of the last replica, `LIST`
                an array of all, `SUM` and `MEAN` their sum and mean.

        Raises:
            TypeError: the method is neither a member nor a string.
            ValueError: the string is not the name of a method.
        """
        self._trainer.metrics.reduction = run_settings.checked_method(
            ReplicatedMetricReductionMethod,
            replicated_metric_reduction_method,
            "replicated_metric_reduction_method",
        )

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Sets whether callbacks run for each step or for each execution (exact).

        Callbacks run when the execution is complete, in the order of its steps. Each step has the
        logs that Keras would have after it.

        Args:
            asynchronous: whether callbacks run for each step.

        Raises:
            TypeError: `asynchronous` is not a bool.
        """
        original_options.check_flag("asynchronous", asynchronous)
        self._trainer.calls_back_each_step = bool(asynchronous)

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Accepts options of the queue that feeds `fit`, for example (accepted).

        Raises:
            ValueError: Keras decides an option, or a number is out of range.
            TypeError: an option does not exist, or has a wrong type.
        """
        original_options.check_options("set_infeed_queue_options", kwargs)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Takes options of the queue that returns results (accepted).

        Raises:
            ValueError: Keras decides an option, or a number is out of range.
            TypeError: an option does not exist, or has a wrong type.
        """
        original_options.check_options("set_outfeed_queue_options", kwargs)

    def export_for_ipu_serving(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises an error, because models are not exported for servers (refused).

        Raises:
            Error: always.
        """
        raise compiler_error(
            "export_for_ipu_serving writes an executable for TensorFlow Serving, which does not "
            "run here. Save the model with model.save('name.keras'), and call predict."
        )

    def _save_stages(self, path: Path) -> None:
        """Adds the stages and options of the model to the file of the saved model."""
        saved_stages.save(self._model, self._trainer.settings, path)

    def _restore_stages(self, path: Path) -> None:
        """Gives the model the stages and options that its file has.

        Raises:
            Error: they do not belong to the model.
        """
        settings = saved_stages.restore(self._model, path)
        if settings is not None:
            self._trainer.settings = settings
            self._trainer.forget()

    def _change(self, **settings: Any) -> None:
        """Changes settings and drops the programs that were compiled with the old ones."""
        trainer = self._trainer
        trainer.settings = replace(trainer.settings, **settings)
        trainer.forget()


def _rows(entries: Sequence[Any], indent: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (name, type, stage) of each entry, and of the entries inside nested models."""
    for each in entries:
        call = f" ({each.node_index})" if hasattr(each, "node_index") else ""
        inside = getattr(each, "pipeline_stage_assignments", None)
        stage = each.pipeline_stage if inside is None else ""
        yield f"{indent}{each.layer.name}{call}", type(each.layer).__name__, stage
        yield from _rows(inside or (), indent + "  ")


def _settings_of_update(steps: Any, reduction: Any, **flags: bool | None) -> dict[str, Any]:
    """Returns checked settings by their names in `ModelSettings`; `None` means the default."""
    kind, name = GradientAccumulationReductionMethod, "gradient_accumulation_reduction_method"
    if reduction is not None:
        reduction = run_settings.checked_method(kind, reduction, name)
    return {
        "accumulation": 1 if steps is None else run_settings.checked_accumulation(steps),
        "reduction": reduction,
        "placement": run_settings.checked_placement(flags),
    }
