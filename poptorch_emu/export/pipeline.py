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
from poptorch_emu.printed.terminal import html_lines

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage

    from poptorch_emu.export import pipeline_gradients, pipeline_runner
else:  # Imported late, because they load PyTorch's pipelining, which takes some seconds.
    pipeline_gradients = LateModule("poptorch_emu.export.pipeline_gradients")
    pipeline_runner = LateModule("poptorch_emu.export.pipeline_runner")


@dataclass(frozen=True)
class Compiled:
    """The parts of a compiled model that an export reads.

    Attributes:
        executable: the program.
        model: copy of the user's module with the present weights.
        inputs: whole batches like those of the compilation.
        optimizer: the optimiser without clipping and loss scaling; `None` for inference.
        max_grad_norm: limit of the norm of all gradients; infinity for no limit.
    """

    executable: Executable
    model: torch.nn.Module
    inputs: Sequence[torch.Tensor]
    optimizer: TorchOptimizer | None
    max_grad_norm: float = math.inf


class ExportedPipeline:
    """The stages of a compiled model in plain PyTorch (exact).

    Values equal those of the emulator on a CPU except for rounding, because the engine has kernels
    of its own for some layers. Bits are equal for all other layers, if the number of micro-batches
    is a power of two: PyTorch divides where the emulator multiplies.
    """

    def __init__(self, compiled: Compiled, *, freeze_statistics: bool) -> None:
        """Checks that plain PyTorch can run the model, and proves that its gradients are equal.

        Args:
            compiled: the compiled model.
            freeze_statistics: whether batch norms keep their present statistics.

        Raises:
            Error: the model cannot be exported; the message names the line and a remedy.
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
        """Returns the number of stages, their IPUs, and the methods to use next, as text."""
        ipus = ", ".join(map(str, self._compiled.executable.partition.ipu_of_stage))
        noun = "stage" if self.num_stages == 1 else "stages"
        return (
            f"{self.num_stages} {noun} of plain PyTorch, compiled for the IPUs {ipus}\n"
            "schedule() and stage() make them parts of torch.distributed.pipelining"
        )

    def _repr_html_(self) -> str:
        """Returns the same text as HTML for a notebook."""
        return html_lines([str(self)])

    @property
    def num_stages(self) -> int:
        """The number of stages (exact)."""
        return self._stages.num_stages

    def stage_module(self, stage: int, device: torch.device | str = "cpu") -> fx.GraphModule:
        """Returns the forward of a stage as ATen operations, with copies of the weights (exact).

        Parameters and buffers have the user's names. Values of the stage before are positional
        arguments; inputs of the model are the keywords `input_0`, `input_1`, ...

        Raises:
            IndexError: `stage` is out of range.
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
            stage: index of the stage, one of `own_stages`.
            device: device of the stage.
            group: processes of the pipeline; by default all, or those of this replica.
            module: module that runs; by default a new `stage_module`. Pass one that you wrapped.
            kind: kind of the schedule, as for `schedule`.

        Raises:
            IndexError: `stage` is out of range.
            ValueError: the group cannot share the stages, or this stage belongs to another rank.
        """
        self._check_stage(stage)
        if module is None:
            module = self.stage_module(stage, device)
        made: PipelineStage = pipeline_runner.make_stage(
            module, stage, self._spec, device, group, kind
        )
        return made

    def replica_group(self) -> dist.ProcessGroup:
        """Returns the processes that run this process's stages of all replicas (exact).

        Pass it to a wrapper: `DistributedDataParallel(module, process_group=...)`. A stage that is
        not wrapped needs no group, because `step` sums its gradients over the replicas.

        Raises:
            ValueError: there is one replica, or the replicas do not divide the processes.
        """
        found: dist.ProcessGroup = pipeline_gradients.replica_group(self._spec)
        return found

    def own_stages(
        self, group: dist.ProcessGroup | None = None, kind: str | None = None
    ) -> list[int]:
        """Returns the indices of the stages of this process, in order (exact).

        They are rank, rank + size of the group, ... unless the schedule defines another order.

        Args:
            group: processes of the pipeline; by default all, or those of this replica.
            kind: kind of the schedule, as for `schedule`.

        Raises:
            ValueError: the processes cannot share the stages.
        """
        return pipeline_runner.own_stages(self._spec, group, kind)

    def schedule(
        self, stages: PipelineStage | Sequence[PipelineStage], kind: str | None = None
    ) -> Any:
        """Returns the schedule of this process's stages (exact).

        Args:
            stages: the stage, or all stages of this process in order.
            kind: "1f1b", "gpipe", "sequential" (one micro-batch at a time), "interleaved",
                "looped_bfs" or "zero_bubble_h1" (several stages in each process, or one),
                "zero_bubble_v" or "dualpipe_v" (two stages in each), or "table" for the table of
                `emulator.set_schedule`. By default the execution strategy decides.

        Raises:
            ValueError: the kind is unknown or does not fit the stages, or a stage is missing.
        """
        own = list(stages) if isinstance(stages, Sequence) else [stages]
        schedule = pipeline_runner.make_schedule(own, self._spec, kind)
        self._made[schedule] = own, kind
        return schedule

    def step(self, schedule: Any, *inputs: torch.Tensor) -> Any:
        """Runs a whole batch: forward and backward, or forward alone in inference (exact).

        Gradients are summed over all replicas and all stages that share a weight, and clipped, as
        the model's optimiser expects them. They are added to the gradients that parameters already
        have, so call `zero_grad` before.

        Args:
            schedule: schedule that the method `schedule` returned.
            inputs: all tensors of a call of the model, on each rank; a process ignores those that
                its stages do not read, and sends none to another process.

        Returns:
            On the rank of the last stage, the losses of its replica, one for each micro-batch, or
            the outputs of inference; `None` on other ranks.

        Raises:
            ValueError: an input does not have the rows of all micro-batches.
        """
        stages, kind = self._made[schedule]
        return pipeline_runner.run_step(schedule, stages, self._spec, inputs, kind)

    def optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Returns the optimiser for a stage's parameters (exact).

        It is one of `torch.optim`, or uses the emulator's formulas if PyTorch lacks the rule. It
        has the present hyper-parameters and state of the compiled model's optimiser.

        Args:
            module: module from `stage_module`, or the `submod` of a stage.

        Raises:
            Error: the model does not train.
            ValueError: the module has parameters that the model lacks.
        """
        own = pipeline_gradients.unwrapped(module)
        return self._torch_optimizer().over(dict(own.named_parameters()))

    def load_into(
        self,
        model: torch.nn.Module,
        modules: Iterable[torch.nn.Module | Mapping[str, torch.Tensor]],
    ) -> None:
        """Copies the weights of stages into a model with the user's names (exact).

        If the model is wrapped for the emulator, call the wrapper's `copyWeightsToDevice` after.

        Args:
            model: model of the user's class.
            modules: modules of some or all stages, or state dicts from other processes.

        Raises:
            Error: a stage has a tensor that the model lacks.
        """
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for module in modules:
            if isinstance(module, torch.nn.Module):
                module = pipeline_gradients.unwrapped(module).state_dict()
            for name, value in module.items():
                if name not in own:
                    raise make_error(
                        f"The model has no parameter or buffer '{name}', which one of the "
                        "exported stages has. Pass a model of the class that was exported, "
                        f"{type(self._compiled.model)}."
                    )
                with torch.no_grad():
                    own[name].copy_(value)

    def save(self, folder: str | Path) -> None:
        """Writes a program of plain PyTorch, which runs without this package (exact).

        The folder receives a `torch.export` file for each stage and `run.py`, which
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
                recomputes=False,  # `torch.export` does not accept a checkpoint.
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
