"""Builds models and inputs for published speeds that have settings of their own.

The models of `fidelity_rows.py` are also used for time. Settings that a source leaves open are
marked `assumed`. Everything is built on the meta device, without memory for a row or a step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from fidelity_models import Bert, ResNet50, Shape, Vit
from fidelity_rows import SHARDED, Built, half_trainer, ids, options_for, trainer
from time_models import AnswersOfBertBase, Dlrm, LoadingTutorial, PipelinedMnist
from time_networks import Clip, Conformer, EfficientNetB4, Entities, Speech
from torch import nn

import poptorch_emu as poptorch


def on_a_card(
    model: nn.Module, *batch: torch.Tensor, is_overlapped: bool, has_blocks: bool = False
) -> Built:
    """Returns an inference model with 128 micro-batches in a call, made from one micro-batch.

    Args:
        model: model in float32.
        batch: inputs of one micro-batch.
        is_overlapped: whether inputs and outputs are transferred on 64 I/O tiles during compute.
            This and the number of micro-batches are published for C30, and assumed for others.
        has_blocks: whether the model names its own blocks.
    """
    options = options_for().deviceIterations(128)
    options.Precision.setPartialsType(torch.half)
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
    if is_overlapped:
        options.TensorLocations.numIOTiles(64)
        model = Overlapped(model, has_blocks)
    rows = tuple(torch.cat([tensor] * 128) for tensor in batch)
    return poptorch.inferenceModel(model.half().eval(), options), rows


class Overlapped(nn.Module):
    """A net whose inputs and output are transferred while it computes."""

    def __init__(self, body: nn.Module, has_blocks: bool) -> None:
        super().__init__()
        self.body, self.has_blocks = body, has_blocks

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        mode = poptorch.OverlapMode.OverlapDeviceIterationLoop
        with self._block("inputs"):
            given = [poptorch.set_overlap_for_input(x, mode) for x in inputs]
        result = self.body(*given)
        with self._block("output"):
            return poptorch.set_overlap_for_output(result, mode)

    def _block(self, name: str) -> AbstractContextManager[object]:
        return poptorch.Block(name, ipu_id=0) if self.has_blocks else nullcontext()


def resnet_inference(rows: int, is_overlapped: bool = True) -> Built:
    """Returns ResNet-50 as in an ONNX runtime, with float16 input (assumed)."""
    images = torch.zeros(rows, 3, 224, 224, dtype=torch.half)
    return on_a_card(ResNet50(), images, is_overlapped=is_overlapped)


def loading(is_synthetic: bool) -> Built:
    options = options_for().deviceIterations(50).enableSyntheticData(is_synthetic)
    batch = torch.zeros(16 * 50, 1, 128, 128), ids(16 * 50)
    return trainer(LoadingTutorial(), options, poptorch.optim.SGD), batch


def mnist() -> Built:
    options = options_for(accumulation=10).deviceIterations(10)
    options.outputMode(poptorch.OutputMode.All)
    state = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(state)
    batch = torch.zeros(4000, 1, 28, 28), ids(4000)
    return trainer(PipelinedMnist(), options, poptorch.optim.AdamW), batch


def dlrm(is_training: bool) -> Built:
    rows = 4 * (512 if is_training else 1024)
    batch = torch.zeros(rows, 13), ids(rows, 26, 4)
    options = options_for(replicas=4)
    if is_training:
        return trainer(Dlrm(), options, poptorch.optim.SGD), (*batch, torch.zeros(rows))
    return poptorch.inferenceModel(Dlrm().eval(), options), batch


def bert_base(is_overlapped: bool = True) -> Built:
    text = ids(40, 384)
    model = AnswersOfBertBase(Bert(Shape(768, 12, 384, (12,)), 30_522))
    return on_a_card(model, text, text, text, is_overlapped=is_overlapped, has_blocks=True)


def efficient_net(first_on_second_ipu: int = 10) -> Built:
    """Returns EfficientNet-B4 for 380 x 380 images, split at block 10 of 34 (both assumed)."""
    accumulation, replicas, rows = 32, 8, 4
    options = options_for((0.10, 0.10), accumulation, replicas, SHARDED)
    rows *= accumulation * replicas
    batch = torch.zeros(rows, 3, 380, 380, dtype=torch.uint8), ids(rows)
    optimizer = partial(poptorch.optim.RMSprop, momentum=0.9, accum_type=torch.half)
    return trainer(EfficientNetB4(first_on_second_ipu).half(), options, optimizer), batch


def speech(replicas: int, micro_batch: int = 4) -> Built:
    """Returns pipelines on 4 IPUs with micro-batches of 4 rows (assumed)."""
    accumulation = 16_128 // (micro_batch * replicas)
    rows = micro_batch * accumulation * replicas
    options = options_for((), accumulation, replicas, SHARDED)
    batch = torch.zeros(rows, 1220, 80).half(), ids(rows, 48)
    return half_trainer(Speech(), options, poptorch.optim.AdamW), batch


def entities() -> Built:
    """Returns four shards of a knowledge graph, each with its own entities."""
    num_shards = 4
    options = options_for(accumulation=6, replicas=num_shards).deviceIterations(8)
    rows = 240 * 6 * 8 * num_shards
    batch = ids(rows), ids(rows), ids(rows, 1 + num_shards)
    model = trainer(Entities(93_773, 64, num_shards), options, poptorch.optim.AdamW)
    own = poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
    model.table.replicaGrouping(*own)
    return model, batch


def fine_tuned_vit() -> Built:
    """Returns ViT-Base in float32, because the source names no other type."""
    model = Vit(Shape(768, 12, 197, (3, 3, 3, 3), has_norm_first=True), 1000)
    batch = torch.zeros(128, 3, 224, 224), torch.zeros(128, 1000)
    return trainer(model, options_for(accumulation=128), poptorch.optim.AdamW), batch


def small_perceptron() -> Built:
    """Returns two linear layers (assumed) for digits."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    return poptorch.inferenceModel(model, options_for()), (torch.zeros(80, 1, 28, 28),)


def clip(is_overlapped: bool = True) -> Built:
    pairs = torch.zeros(4, 3, 224, 224).half(), ids(4, 77)
    return on_a_card(Clip(), *pairs, is_overlapped=is_overlapped)


def conformer(is_overlapped: bool = True) -> Built:
    """Returns the encoder for 512 frames (assumed)."""
    frames = torch.zeros(4, 512, 80).half()
    return on_a_card(Conformer(512, 1), frames, is_overlapped=is_overlapped, has_blocks=True)
