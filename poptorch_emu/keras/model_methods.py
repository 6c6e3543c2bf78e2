"""The methods that models built in a strategy's scope have beside Keras's own.

They stand among the attributes of each model, behind Keras's tracking, so that its class stays what
the user wrote: files, clones and checks of the type are Keras's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from poptorch_emu.config import TableConfig
from poptorch_emu.emulator.given_values import LAST_RUN
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras import original_options, run_settings, stage_assignment
from poptorch_emu.keras.call_graph import graph_of_call, is_of_own_class
from poptorch_emu.keras.ipu_trainer import IpuTrainer
from poptorch_emu.keras.run_settings import (
    GradientAccumulationReductionMethod,
    PipelineSchedule,
    RecomputationMode,
    ReplicatedMetricReductionMethod,
    SystemSettings,
)
from poptorch_emu.options.base import note_accepted


class IpuModelMethods:
    """What one model can do beside what Keras's models can."""

    def __init__(self, model: Any, system: Callable[[], SystemSettings]) -> None:
        """Takes a model that may still be under construction."""
        self._model = model
        self._trainer = IpuTrainer(model, system)

    def put_on(self) -> None:
        """Makes the public methods the model's."""
        attributes = vars(self._model)
        trainer = self._trainer
        functions = [f"make_{each}_function" for each in ("train", "test", "predict")]
        for name in ("compile", "fit", "evaluate", "predict", *functions):
            attributes[name] = getattr(trainer, name)
        attributes[LAST_RUN] = trainer.last_executor
        attributes["reset_metrics"] = trainer.metrics.reset
        attributes["_get_metrics_result_or_logs"] = trainer.metrics.result_or_logs
        attributes["_symbolic_build"] = trainer.symbolic_build
        for name, method in vars(IpuModelMethods).items():
            if not name.startswith("_") and name != "put_on" and callable(method):
                attributes[name] = getattr(self, name)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: Sequence[Any]) -> None:
        """Says in which stage of a pipeline each layer runs (exact).

        Args:
            pipeline_stage_assignment: entries of `get_pipeline_stage_assignment` with their stages
                set; of a Sequential, a number for each layer will do.

        Raises:
            ValueError: there are not as many as layers, or they decrease along the model.
            TypeError: an entry is of another kind, or the model is neither.
        """
        stage_assignment.assign(self._model, list(pipeline_stage_assignment))
        self._change()

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """Returns an entry for each layer or call, with its stage (exact).

        Raises:
            RuntimeError: the model is of a class of its own, and its inputs are not known.
        """
        if is_of_own_class(self._model) and graph_of_call(self._model) is None:
            raise RuntimeError(
                f"The inputs of model {self._model.name!r} are not known. Call build(input_shape) "
                "of the model first."
            )
        return stage_assignment.assignments_of(self._model)

    def reset_pipeline_stage_assignment(self) -> None:
        """Takes all stages away: the model runs on one IPU (exact)."""
        stage_assignment.unassign(self._model)
        self._change()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Prints each layer call with its stage (exact; the layout is ours).

        Args:
            line_length: of the lines, in characters; 80 by default.
            print_fn: takes each line; `print` by default.
        """
        width = line_length or 80
        show = print_fn or print
        columns = f"{{:<{width * 2 // 5}}}{{:<{width * 2 // 5}}}{{}}"
        show(f"Model: {self._model.name!r}")
        show(columns.format("Layer (call)", "Type", "Pipeline stage"))
        for name, kind, stage in _rows(self.get_pipeline_stage_assignment()):
            show(columns.format(name, kind, "none" if stage is None else stage))

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
        """Says how the pipeline of the model runs (exact; places of tensors are modelled).

        Args:
            gradient_accumulation_steps_per_replica: how many batches one replica adds up for an
                update of the weights; 1 by default.
            device_mapping: the IPU of each stage; by default its own number.
            accumulate_outfeed: accepted: what is logged is the mean over all batches in any case.
            gradient_accumulation_reduction_method: of the gradients of these batches; by default
                their sum. Those of replicas are added.
            pipeline_schedule: in which order the stages take turns; grouped by default. What a
                function of `emulator.schedules` returns says which IPU runs each stage, too.
            recomputation_mode: makes activations be computed again; by default
                `IPUConfig.allow_recompute` decides.
            replicated_optimizer_state_sharding: lets each replica hold a part of the state.
            offload_weight_update_variables: keeps the optimiser's state in streaming memory.
            offload_activations: keeps activations there.
            offload_gradient_accumulation_buffers: keeps sums of gradients there.
            offload_weights: keeps the weights there.
            of_original: further options of the original, which change no result: accepted.

        Raises:
            TypeError: a value is of another type, or there is no such option.
            ValueError: a number is out of range, or an option is set by other methods.
            NotImplementedError: `continuous_weight_updates` is on.
        """
        steps = gradient_accumulation_steps_per_replica
        original_options.check_pipelining(of_original)
        original_options.check_flag("accumulate_outfeed", accumulate_outfeed)
        if accumulate_outfeed:
            note_accepted("set_pipelining_options(accumulate_outfeed=True)")
        if recomputation_mode is not None:
            run_settings.checked_member(RecomputationMode, recomputation_mode, "recomputation_mode")
        placement = run_settings.checked_placement(
            {
                "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
                "offload_weight_update_variables": offload_weight_update_variables,
                "offload_activations": offload_activations,
                "offload_gradient_accumulation_buffers": offload_gradient_accumulation_buffers,
                "offload_weights": offload_weights,
            }
        )
        self._change(
            accumulation=1 if steps is None else run_settings.checked_accumulation(steps),
            device_mapping=run_settings.checked_mapping(device_mapping),
            schedule=run_settings.checked_schedule(pipeline_schedule, device_mapping),
            recomputation=recomputation_mode,
            reduction=_checked_reduction(gradient_accumulation_reduction_method),
            placement=placement,
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
        """Says how many batches make one update of a model without a pipeline (exact).

        Arguments and errors are those of `set_pipelining_options`;
        `use_v2_gradient_accumulation_optimizer` is accepted.
        """
        steps = gradient_accumulation_steps_per_replica
        original_options.check_accumulation(of_original)
        placement = run_settings.checked_placement(
            {
                "offload_weight_update_variables": offload_weight_update_variables,
                "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
            }
        )
        self._change(
            accumulation=1 if steps is None else run_settings.checked_accumulation(steps),
            reduction=_checked_reduction(gradient_accumulation_reduction_method),
            placement=placement,
        )

    def set_replication_options(
        self,
        replicated_metric_reduction_method: ReplicatedMetricReductionMethod | str = "NONE",
    ) -> None:
        """Says what is logged of the metrics of replicas (exact).

        Args:
            replicated_metric_reduction_method: `NONE` logs those of the last replica, `LIST` an
                array of all, `SUM` and `MEAN` their sum and mean.

        Raises:
            TypeError: it is neither a member nor a name.
            ValueError: it is no such name.
        """
        self._trainer.metrics.reduction = run_settings.checked_method(
            ReplicatedMetricReductionMethod,
            replicated_metric_reduction_method,
            "replicated_metric_reduction_method",
        )

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Says whether callbacks are called for each step, or for each execution (exact).

        Each step has the logs that Keras has after it. Callbacks are called when the execution is
        complete, in the order of its steps.

        Args:
            asynchronous: for each step.

        Raises:
            TypeError: it is no bool.
        """
        original_options.check_flag("asynchronous", asynchronous)
        self._trainer.calls_back_each_step = bool(asynchronous)

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Takes options of the queue that `fit` and its like read by (accepted).

        Raises:
            ValueError: an option is Keras's to decide.
        """
        original_options.check_queue(
            "set_infeed_queue_options", kwargs, ("dataset", "infeed_spec", "element_spec")
        )

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Takes options of the queue by which results come (accepted).

        Raises:
            ValueError: an option is Keras's to decide.
        """
        original_options.check_queue(
            "set_outfeed_queue_options", kwargs, ("outfeed_mode", "device_ordinal")
        )

    def export_for_ipu_serving(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses to export for a server (refused).

        Raises:
            Error: always.
        """
        raise compiler_error(
            "export_for_ipu_serving writes an executable for TensorFlow Serving, which does not "
            "run here. Save the model with model.save('name.keras'), and call predict."
        )

    def _change(self, **settings: Any) -> None:
        """Takes settings; what was compiled with others is dropped."""
        trainer = self._trainer
        trainer.settings = replace(trainer.settings, **settings)
        trainer.forget()


def _rows(entries: Sequence[Any], indent: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields name, type and stage of each entry; below a nested model, those inside of it."""
    for each in entries:
        call = f" ({each.node_index})" if hasattr(each, "node_index") else ""
        inside = getattr(each, "pipeline_stage_assignments", None)
        stage = each.pipeline_stage if inside is None else ""
        yield f"{indent}{each.layer.name}{call}", type(each.layer).__name__, stage
        yield from _rows(inside or (), indent + "  ")


def _checked_reduction(value: Any) -> GradientAccumulationReductionMethod | None:
    name = "gradient_accumulation_reduction_method"
    if value is None:
        return None
    return run_settings.checked_method(  # type: ignore[no-any-return]
        GradientAccumulationReductionMethod, value, name
    )
