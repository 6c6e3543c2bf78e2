"""The settings behind published memory figures.

`docs/fidelity.md` lists the sources of the figures. Settings that a source leaves open are marked
`assumed`. Memory only depends on whether gradients are accumulated, so that rows with many
micro-batches use the smallest number that their pipeline allows. Values do not matter, because no
step runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fidelity_models import (
    BertAnswers,
    BertPretraining,
    Gpt,
    Recurrent,
    ResNet50,
    Scored,
    Shape,
    Vit,
)
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.executor.executor import PoplarExecutor

Built = tuple[PoplarExecutor, tuple[torch.Tensor, ...]]
SHARDED = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
OFF_CHIP = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
RECOMPUTE_ALL = 4


@dataclass(frozen=True)
class Row:
    """One published configuration.

    Attributes:
        what: description in one line.
        build: function that returns the wrapped model and the arguments of its `compile`.
        fits: whether the model was published to fit; `None` if the source does not say.
        total_bytes: published memory of all tiles of the IPU.
        largest_tile_bytes: published memory of the fullest tile.
        always_live_bytes: published always-live part of the total.
        counts_vertex_code: whether the total includes vertex code.
    """

    name: str
    what: str
    build: Callable[[], Built]
    fits: bool | None
    total_bytes: int | None = None
    largest_tile_bytes: int | None = None
    always_live_bytes: int | None = None
    counts_vertex_code: bool = True


def options_for(
    proportions: Sequence[float] = (),  # available memory proportion of each IPU
    accumulation: int = 1,
    replicas: int = 1,
    state: poptorch.TensorLocationSettings | None = None,
) -> poptorch.Options:
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    # A head on the IPU of the embedding is a stage of its own.
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(accumulation)
    options.setAvailableMemoryProportion({f"IPU{i}": part for i, part in enumerate(proportions)})
    if state is not None:
        options.TensorLocations.setOptimizerLocation(state)
    return options


def half_trainer(
    model: nn.Module, options: poptorch.Options, optimizer: Callable[..., Any], **types: torch.dtype
) -> PoplarExecutor:
    """Returns a float16 trainer with float16 accumulation and half partials (assumed)."""
    options.Precision.setPartialsType(torch.half)
    return trainer(model.half(), options, partial(optimizer, accum_type=torch.half, **types))


def trainer(
    model: nn.Module, options: poptorch.Options, optimizer: Callable[..., Any]
) -> PoplarExecutor:
    return poptorch.trainingModel(model, options, optimizer(model.parameters(), lr=1e-3))


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def masked_text(rows: int, length: int = 128, num_hidden: int = 20) -> tuple[torch.Tensor, ...]:
    """Returns words, kinds, mask, positions and words of the masked words, and the next label."""
    text, hidden = ids(rows, length), ids(rows, num_hidden)
    return text, text, text, hidden, hidden, ids(rows)


def _tiny_bert(dtype: torch.dtype) -> Built:
    model = BertPretraining(Shape(64, 8, 128, (3,)), 30_522, parts=1).to(dtype)
    optimizer = partial(poptorch.optim.AdamW, accum_type=dtype)
    return trainer(model, options_for(accumulation=16), optimizer), masked_text(16)


def large_bert(
    length: int = 128,
    hidden: int = 20,
    rows: int = 8,
    accumulation: int = 9,
    replicas: int = 4,
    proportions: Sequence[float] = (0.15, 0.25, 0.25, 0.25),
    layers: Sequence[int] = (3, 7, 7, 7),
) -> Built:
    """Returns BERT-Large in pre-training.

    Args:
        length: number of words in a sequence.
        hidden: number of masked words in a sequence.
        rows: number of sequences in a micro-batch.
        accumulation: number of micro-batches in an update.
        replicas: number of replicas, with four IPUs each.
        proportions: available memory proportion of each IPU for products.
        layers: number of layers on each IPU.
    """
    model = BertPretraining(Shape(1024, 16, length, tuple(layers)), 30_400, parts=2)
    options = options_for(proportions, accumulation, replicas, OFF_CHIP)
    batch = masked_text(rows * accumulation * replicas, length, hidden)
    return half_trainer(model, options, poptorch.optim.LAMB), batch


def squad(device_iterations: int = 1) -> Built:
    # The source leaves the last layer unmarked, so that its IPU recomputes the three before.
    shape = Shape(1024, 16, 384, (2, 3, 3, 3, 3, 3, 3, 4), attention_dropout=0.15, marks_last=False)
    proportions = (0.08, 0.25, 0.32, 0.32, 0.36, 0.38, 0.40, 0.32)
    options, rows = options_for(proportions, 32, 2, SHARDED), 4 * 32 * 2 * device_iterations
    options.deviceIterations(device_iterations)
    first_moment = {"first_order_momentum_accum_type": torch.half}
    trainer = half_trainer(
        BertAnswers(shape, 30_400), options, poptorch.optim.AdamW, **first_moment
    )
    text, places = ids(rows, 384), ids(rows)
    return trainer, (text, text, text, places, places)


def _character_gpt() -> Built:
    shape = Shape(384, 6, 1024, (6,), True, True, dropout=0, attention_dropout=0)
    words = ids(2 * 8 * 4, 1024)
    return trainer(Gpt(shape, 65), options_for((0.08,), 8, 4), poptorch.optim.AdamW), (words, words)


def gpt2(accumulation: int = 9, device_iterations: int = 1) -> Built:
    """Returns GPT-2 with a padded word table and its sequence in 4 pieces (assumed)."""
    model = Gpt(Shape(768, 12, 1024, (0, 4, 4, 4), True, True), 50_304, pieces=4, parts=4)
    options = options_for((0.15,) * 4, accumulation, 4, SHARDED)
    options.deviceIterations(device_iterations)
    words = ids(accumulation * device_iterations * 4, 1024)
    return half_trainer(model, options, poptorch.optim.AdamW), (words, words)


def vit(
    micro_batch: int, optimizer: Callable[..., Any], accumulation: int = 7, replicas: int = 4
) -> Built:
    model = Vit(Shape(768, 12, 197, (3, 3, 3, 3), has_norm_first=True), 1000)
    options = options_for((0.3,) * 4, accumulation, replicas, SHARDED)
    rows = micro_batch * accumulation * replicas
    batch = torch.zeros(rows, 3, 224, 224).half(), torch.zeros(rows, 1000).half()
    return half_trainer(model, options, optimizer), batch


def resnet_training(
    rows: int = 18, accumulation: int = 2, replicas: int = 1, is_synthetic: bool = False
) -> Built:
    options = options_for((0.16,), accumulation, replicas).enableSyntheticData(is_synthetic)
    options.broadcastBuffers(False)
    options._Popart.set("autoRecomputation", RECOMPUTE_ALL)
    optimizer = partial(
        poptorch.optim.SGD, momentum=0.9, use_combined_accum=True, velocity_accum_type=torch.half
    )
    rows *= accumulation * replicas
    batch = torch.zeros(rows, 3, 224, 224, dtype=torch.uint8), ids(rows)
    return half_trainer(ResNet50(), options, optimizer), batch


def resnet_inference() -> Built:
    options = options_for()
    options.Precision.setPartialsType(torch.half)
    images = ids(90, 3, 224, 224).byte()
    return poptorch.inferenceModel(ResNet50().half().eval(), options), (images,)


def _table(num_entities: int, width: int, accumulation: int) -> Built:
    """Returns a shard whose micro-batches look up and score 1,024 rows (assumed)."""
    model, rows = Scored(nn.Embedding(num_entities, width)).half(), ids(1024 * accumulation)
    optimizer = partial(poptorch.optim.SGD, momentum=0.9)
    return trainer(model, options_for((), accumulation), optimizer), (rows, rows)


def recurrent(kind: type[nn.RNN] | type[nn.GRU], *widths: int) -> Built:
    model = Scored(Recurrent(kind, widths))
    return trainer(model, options_for(), poptorch.optim.Adam), (torch.zeros(2, 5, 16), ids(2))


def convolutional() -> Built:
    """Returns two pairs of convolutions, each followed by a pooling (order and sizes assumed)."""
    body = nn.Sequential(
        nn.Conv1d(16, 128, 4), nn.ReLU(), nn.Conv1d(128, 128, 4), nn.ReLU(), nn.MaxPool1d(3),
        nn.Conv1d(128, 128, 4), nn.ReLU(), nn.Conv1d(128, 128, 4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 16),
    )  # fmt: skip
    batch = torch.zeros(1, 16, 32), ids(1)
    return trainer(Scored(body), options_for(), poptorch.optim.Adam), batch


def _perceptron(is_training: bool) -> Built:
    """Returns the net with ReLU between its layers and no biases (assumed)."""
    first, *others = (nn.Linear(*pair, bias=False) for pair in ((50_176, 32), (32, 64), (64, 64)))
    body = nn.Sequential(first, *(part for layer in others for part in (nn.ReLU(), layer)))
    model, x = Scored(body).half(), torch.zeros(2, 50_176).half()
    if is_training:
        return trainer(model, options_for(), poptorch.optim.SGD), (x, ids(2))
    return poptorch.inferenceModel(model.eval(), options_for()), (x,)


ROWS = (
    Row("C17", "BERT-Large phase 1, 3-7-7-7 layers on 4 IPUs, off-chip LAMB", large_bert, True),
    Row("C22", "BERT-Large SQuAD on 8 IPUs, sharded AdamW", squad, True),
    Row("C24", "ResNet-50 training, recomputing blocks, 18 images", resnet_training, True),
    Row("C26", "ViT-Base pre-training on 4 IPUs, sharded LAMB, 8 images",
        partial(vit, 8, poptorch.optim.LAMB), True),
    Row("C27", "GPT-2 small, 0-4-4-4 layers on 4 IPUs, sharded AdamW", gpt2, True),
    Row("C35", "BERT of 3 layers of width 64, AdamW, float16 (assumed)",
        partial(_tiny_bert, torch.float16), True, 103_077_866, 106_267),
    Row("C35 float32", "the same in float32, since the source does not say",
        partial(_tiny_bert, torch.float32), True, 103_077_866, 106_267),
    Row("C36a", "3.2 M entities of width 100 on 4 IPUs, SGD with momentum",
        partial(_table, 800_000, 100, 1), True),
    Row("C36a +25 %", "more than the most that fitted", partial(_table, 1_000_000, 100, 1), False),
    Row("C36b", "0.9 M entities of width 256 on 4 IPUs, accumulation",
        partial(_table, 225_000, 256, 2), True),
    Row("C36b +25 %", "more than the most that fitted", partial(_table, 281_250, 256, 2), False),
    Row("C37", "character GPT in float32, AdamW, nothing recomputed", _character_gpt, False,
        1_170_000_000, 876_060, 376_000_000),
    Row("C39", "RNN of 256 units, Adam", partial(recurrent, nn.RNN, 256), True,
        32_670_000, 29_053),
    Row("C40", "GRUs of 256 and 128 units, Adam", partial(recurrent, nn.GRU, 256, 128), True,
        84_620_000, 72_890),
    Row("C41", "four convolutions of a sequence of 32, Adam", convolutional, True,
        28_280_000, 29_895),
    Row("C42 inference", "MLP 50176-32-64-64 in float16, code not counted",
        partial(_perceptron, False), True, 12_181_182, counts_vertex_code=False),
    Row("C42 training", "the same with SGD", partial(_perceptron, True), True, 16_126_623,
        counts_vertex_code=False),
    Row("C43 ViT", "ViT-Base fine-tuning on 4 IPUs, 17 images, AdamW (assumed)",
        partial(vit, 17, poptorch.optim.AdamW), True),
    Row("C43 ResNet-50", "ResNet-50 inference, 90 images", resnet_inference, True),
)  # fmt: skip
