"""A compiled model as stages of `torch.distributed.pipelining`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import make_error
from poptorch_emu.export.forward import forward_stages
from poptorch_emu.export.gradients import flowing_values
from poptorch_emu.export.optimizer import TorchOptimizer
from poptorch_emu.export.refusal import check_exportable, check_stages, warn_of_losses
from poptorch_emu.export.saved_program import save_program
from poptorch_emu.export.spec_of_model import spec_of
from poptorch_emu.export.stage_module import Values, stage_module
from poptorch_emu.module_loading import LateModule
from poptorch_emu.report.terminal import html_lines

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage

    from poptorch_emu.export import pipeline_gradients, pipeline_runner
else:  # They load PyTorch's pipelining, which takes some seconds.
    pipeline_gradients = LateModule("poptorch_emu.export.pipeline_gradients")
    pipeline_runner = LateModule("poptorch_emu.export.pipeline_runner")


@dataclass(frozen=True)
class Compiled:
    """What an export starts from.

    Attributes:
        executable: the program.
        model: a copy of the user's module, with the weights as they are now.
        inputs: the tensors for which it was compiled, whole batches.
        optimizer: of the optimiser, if the model trains; it neither clips nor scales.
        max_grad_norm: limit of the norm of all gradients; infinity for none.
    """

    executable: Executable
    model: torch.nn.Module
    inputs: Sequence[torch.Tensor]
    optimizer: TorchOptimizer | None
    max_grad_norm: float = math.inf


class ExportedPipeline:
    """The stages of a compiled model in plain PyTorch (exact).

    Values are those of the emulator on a CPU but for rounding: for some layers the engine has
    kernels of its own. Bits are the same for all others, if the number of micro-batches is a power
    of two: PyTorch divides where the emulator multiplies.
    """

    def __init__(self, compiled: Compiled, *, freeze_statistics: bool) -> None:
        """Checks that plain PyTorch can do the same, and proves it for the gradients.

        Args:
            compiled: what to export.
            freeze_statistics: whether batch norms go on with the statistics that they have.

        Raises:
            Error: it cannot; the text names the line and the way out.
        """
        executable = compiled.executable
        check_exportable(executable, freezes_statistics=freeze_statistics)
        self._compiled = compiled
        self._values = Values(
            dict(compiled.model.named_parameters()),
            dict(compiled.model.named_buffers()),
            executable.graph.constants,
            compiled.model.state_dict().keys(),
        )
        self._stages = forward_stages(executable, self._values.parameters.keys())
        check_stages(self._stages)
        micro_batches = [_micro_batch(value, executable.config) for value in compiled.inputs]
        self._with_gradient: frozenset[fx.Node] = frozenset()
        if executable.config.is_training:
            self._with_gradient = flowing_values(self._stages, self._values, micro_batches)
        warn_of_losses(executable)
        self._spec = spec_of(
            executable,
            self._stages,
            self._with_gradient,
            micro_batches,
            self._values.parameters,
            compiled.max_grad_norm,
        )
        self._made: WeakKeyDictionary[Any, tuple[Sequence[PipelineStage], str | None]]
        self._made = WeakKeyDictionary()

    def __str__(self) -> str:
        """Returns how many stages there are, on which IPUs, and what can be done with them."""
        ipus = ", ".join(map(str, self._compiled.executable.partition.ipu_of_stage))
        noun = "stage" if self.num_stages == 1 else "stages"
        return (
            f"{self.num_stages} {noun} of plain PyTorch, compiled for the IPUs {ipus}\n"
            "schedule() and stage() make them parts of torch.distributed.pipelining"
        )

    def _repr_html_(self) -> str:
        """Returns the same for a notebook."""
        return html_lines([str(self)])

    @property
    def num_stages(self) -> int:
        """How many stages there are (exact)."""
        return self._stages.num_stages

    def stage_module(self, stage: int, device: torch.device | str = "cpu") -> fx.GraphModule:
        """Returns the forward of a stage as ATen operations, with copies of the weights (exact).

        Parameters and buffers have the user's names. Values of the stage before come by position,
        inputs of the model by the keywords `input_0`, `input_1`, ...

        Raises:
            IndexError: there is no such stage.
        """
        self._check_stage(stage)
        return stage_module(
            self._stages, stage, self._values, self._with_gradient, torch.device(device)
        )

    def stage(
        self,
        stage: int,
        device: torch.device | str,
        group: dist.ProcessGroup | None = None,
        module: torch.nn.Module | None = None,
        kind: str | None = None,
    ) -> PipelineStage:
        """Returns a stage for a schedule of PyTorch, with all shapes known (exact).

        Args:
            stage: one of `own_stages`.
            device: where it runs.
            group: of the processes; by default all of them, or with replicas those of this one.
            module: what runs; by default a new `stage_module`. Pass one that you have wrapped.
            kind: of the schedule, as `schedule` takes it.

        Raises:
            IndexError: there is no such stage.
            ValueError: the stages cannot be shared by the group, or this one is another rank's.
        """
        self._check_stage(stage)
        if module is None:
            module = self.stage_module(stage, device)
        made: PipelineStage = pipeline_runner.make_stage(
            module, stage, self._spec, device, group, kind
        )
        return made

    def replica_group(self) -> dist.ProcessGroup:
        """Returns the processes that run this one's stages of all replicas (exact).

        For what wraps a module: `DistributedDataParallel(module, process_group=...)`. A stage that
        is not wrapped needs none: `step` sums its gradients over the replicas.

        Raises:
            ValueError: there is one replica, or the processes do not divide into the replicas.
        """
        found: dist.ProcessGroup = pipeline_gradients.replica_group(self._spec)
        return found

    def own_stages(
        self, group: dist.ProcessGroup | None = None, kind: str | None = None
    ) -> list[int]:
        """Returns the numbers of the stages that belong to this process, in order (exact).

        That is rank, rank + size of the group, ... but for schedules that say it in another way.

        Args:
            group: of the processes; by default all of them, or with replicas those of this one.
            kind: of the schedule, as `schedule` takes it.

        Raises:
            ValueError: the processes cannot share the stages.
        """
        return pipeline_runner.own_stages(self._spec, group, kind)

    def schedule(
        self, stages: PipelineStage | Sequence[PipelineStage], kind: str | None = None
    ) -> Any:
        """Returns the schedule of this process's stages (exact).

        Args:
            stages: the one, or all of them in order.
            kind: "1f1b", "gpipe", "sequential" (one micro-batch at a time), "interleaved",
                "looped_bfs" or "zero_bubble_h1" (several stages in each process, or one),
                "zero_bubble_v" or "dualpipe_v" (two stages in each), or "table", which is the
                table of `emulator.set_schedule`. By default what the execution strategy asks for.

        Raises:
            ValueError: there is no such kind, it does not fit, or a stage is missing.
        """
        own = list(stages) if isinstance(stages, Sequence) else [stages]
        schedule = pipeline_runner.make_schedule(own, self._spec, kind)
        self._made[schedule] = own, kind
        return schedule

    def step(self, schedule: Any, *inputs: torch.Tensor) -> Any:
        """Runs a whole batch: forward and backward, or forward alone in inference (exact).

        Gradients are those of the model, as its optimiser takes them: over all replicas and all
        stages that share a weight, and clipped. They are added to those that parameters have: call
        `zero_grad` before.

        Args:
            schedule: made by `schedule`.
            inputs: all tensors of a call of the model, on each rank; those that no stage of this
                process reads are not touched, and none is sent to another process.

        Returns:
            On the rank of the last stage the losses of its replica, one a micro-batch, or the
            outputs of inference; elsewhere `None`.

        Raises:
            ValueError: an input does not have the rows of all micro-batches.
        """
        stages, kind = self._made[schedule]
        return pipeline_runner.run_step(schedule, stages, self._spec, inputs, kind)

    def optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Returns the optimiser for a stage's parameters (exact).

        It is one of `torch.optim`, or computes by the emulator's formulas what that does not have.
        It has the hyper-parameters that the compiled model's has now, and the state it has made.

        Args:
            module: made by `stage_module`, or the `submod` of a stage.

        Raises:
            Error: the model does not train.
            ValueError: the module has parameters that the model does not have.
        """
        own = pipeline_gradients.unwrapped(module)
        return self._torch_optimizer().over(dict(own.named_parameters()))

    def load_into(
        self,
        model: torch.nn.Module,
        modules: Iterable[torch.nn.Module | Mapping[str, torch.Tensor]],
    ) -> None:
        """Copies the weights of stages into a model with the user's names (exact).

        If the model is wrapped for the emulator, call `copyWeightsToDevice` of the wrapper after.

        Args:
            model: of the user's class.
            modules: of some or all stages; state dicts, if other processes sent them.

        Raises:
            Error: the model has no tensor of that name.
        """
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for module in modules:
            if isinstance(module, torch.nn.Module):
                module = pipeline_gradients.unwrapped(module).state_dict()
            for name, value in module.items():
                if name not in own:
                    raise make_error(
                        f"The model has no parameter or buffer '{name}', which a stage has. Pass a "
                        f"model of the class that was exported, {type(self._compiled.model)}."
                    )
                with torch.no_grad():
                    own[name].copy_(value)

    def save(self, folder: str | Path) -> None:
        """Writes a program of plain PyTorch, which runs without this package (exact).

        The folder gets a `torch.export` file of each stage and `run.py`, which
        `torchrun --nproc-per-node <stages> run.py batches.pt` starts.

        Raises:
            Error: the model does not train.
        """
        optimizer = self._torch_optimizer()
        modules = [
            stage_module(
                self._stages,
                stage,
                self._values,
                self._with_gradient,
                torch.device("cpu"),
                recomputes=False,  # `torch.export` takes no checkpoint.
            )
            for stage in range(self.num_stages)
        ]
        save_program(Path(folder), modules, self._spec, optimizer.spec, optimizer.states)

    def _torch_optimizer(self) -> TorchOptimizer:
        if self._compiled.optimizer is None:
            raise make_error(
                "An inference model has no optimizer. Export a model of poptorch.trainingModel."
            )
        return self._compiled.optimizer

    def _check_stage(self, stage: int) -> None:
        if not 0 <= stage < self.num_stages:
            raise IndexError(
                f"There is no stage {stage}: the exported pipeline has the stages 0 to "
                f"{self.num_stages - 1}."
            )


def _micro_batch(value: torch.Tensor, config: CompileConfig) -> torch.Tensor:
    return value.narrow(0, 0, value.size(0) // config.batch_factor) if value.dim() else value
