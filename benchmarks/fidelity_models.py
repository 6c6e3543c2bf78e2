"""The models and settings behind published memory figures, to compare an estimate with.

Where the figures come from is told in `docs/fidelity.md`. What the sources leave
open is marked `assumed`. For memory it only matters whether gradients are accumulated, so rows with
many micro-batches take the fewest that their pipeline allows, and no value matters: nothing here
runs a step. Transformers keep the output of each layer where they recompute (said for C17 and C27).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from models import Bottleneck, ResNet50Like
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.executor import PoplarExecutor

Built = tuple[PoplarExecutor, tuple[torch.Tensor, ...]]
SERIAL = poptorch.MatMulSerializationMode.OutputChannels
SHARDED = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
OFF_CHIP = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
RECOMPUTE_ALL = 4
# Enough to hide a word from softmax, and no infinity in float16.
HIDDEN = -1e4


@dataclass(frozen=True)
class Row:
    """One published configuration.

    Attributes:
        what: one line for people.
        build: makes the wrapped model and the arguments of its `compile`.
        fits: whether it was said to fit; `None` where nothing was said.
        total_bytes: published memory of all tiles of the IPU.
        largest_tile_bytes: published memory of the fullest tile.
        always_live_bytes: published part of the total that is held for the whole program, which
            it counts.
        counts_vertex_code: whether the total does.
    """

    name: str
    what: str
    build: Callable[[], Built]
    fits: bool | None
    total_bytes: int | None = None
    largest_tile_bytes: int | None = None
    always_live_bytes: int | None = None
    counts_vertex_code: bool = True


@dataclass(frozen=True)
class Shape:
    """Sizes of a Transformer; `layers` says how many layers each IPU has."""

    width: int
    heads: int
    length: int
    layers: tuple[int, ...]
    is_causal: bool = False
    has_norm_first: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1


class Attention(nn.Module):
    """Self-attention written out; `bias` is added to the scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inputs = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.drop = nn.Dropout(shape.attention_dropout)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, length, width = x.shape
        heads = self.inputs(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if bias is not None:
            scores = scores + bias
        mixed = self.drop(torch.softmax(scores, dim=-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention and a feed-forward net, each with a way around it and a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.has_norm_first = shape.has_norm_first
        self.attention = Attention(shape)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.has_norm_first:
            x = x + self.drop(self.attention(self.norm1(x), bias))
            return x + self.drop(self.feed(self.norm2(x)))
        x = self.norm1(x + self.drop(self.attention(x, bias)))
        return self.norm2(x + self.drop(self.feed(x)))


class Encoder(nn.Module):
    """A stack of layers over the IPUs; where backward recomputes, it keeps what lies between."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_causal = shape.is_causal
        self.ipus = [ipu for ipu, count in enumerate(shape.layers) for _ in range(count)]
        self.layers = nn.ModuleList(Layer(shape) for _ in self.ipus)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        for index, (ipu, layer) in enumerate(zip(self.ipus, self.layers, strict=True)):
            with poptorch.Block(f"layer{index}", ipu_id=ipu):
                if self.is_causal and self.ipus.index(ipu) == index:
                    size = (x.shape[1], x.shape[1])
                    bias = torch.full(size, HIDDEN, dtype=x.dtype, device=x.device).triu(1)
                x = poptorch.recomputationCheckpoint(layer(x, bias))
        return x


class Bert(nn.Module):
    """Embeddings of words, places and kinds, and the encoder."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, shape.width)
        self.places = nn.Parameter(torch.zeros(512, shape.width))
        self.kinds = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.drop = nn.Dropout(shape.dropout)
        self.encoder = Encoder(shape)

    def encode(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("embedding", ipu_id=0):
            x = self.words(ids) + self.places[: ids.shape[1]] + self.kinds(kinds)
            x = poptorch.recomputationCheckpoint(self.drop(self.norm(x)))
            bias = (1 - mask[:, None, None].to(x.dtype)) * HIDDEN
        return self.encoder(x, bias)


class BertPretraining(Bert):
    """The missing words, decoded with the table of words in `parts`, and the next sentence."""

    def __init__(self, shape: Shape, vocabulary: int, parts: int) -> None:
        super().__init__(shape, vocabulary)
        width = shape.width
        self.parts = parts
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.word_bias = nn.Parameter(torch.zeros(vocabulary))
        self.pool = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, ids, kinds, mask, hidden, words, follows):
        x = self.encode(ids, kinds, mask)
        with poptorch.Block("heads", ipu_id=0):
            chosen = x.gather(1, hidden[..., None].expand(-1, -1, x.shape[-1]))
            table = self.words.weight.t()
            logits = poptorch.serializedMatMul(self.transform(chosen), table, SERIAL, self.parts)
            logits = (logits + self.word_bias).flatten(0, 1)
            next_loss = F.cross_entropy(self.pool(x[:, 0]), follows)
            loss = F.cross_entropy(logits, words.flatten()) + next_loss
            return poptorch.identity_loss(loss, "none")


class BertAnswers(Bert):
    """First and last word of an answer."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__(shape, vocabulary)
        self.head = nn.Linear(shape.width, 2)

    def forward(self, ids, kinds, mask, first, last):
        x = self.encode(ids, kinds, mask)
        with poptorch.Block("head", ipu_id=self.encoder.ipus[-1]):
            starts, ends = self.head(x).unbind(-1)
            loss = F.cross_entropy(starts, first) + F.cross_entropy(ends, last)
            return poptorch.identity_loss(loss / 2, "none")


class Gpt(nn.Module):
    """Decoder whose head is its table of words, on the IPU of the table.

    The head takes the sequence in `pieces`, and for each of them the table in `parts`.
    """

    def __init__(self, shape: Shape, vocabulary: int, pieces: int = 1, parts: int = 1) -> None:
        super().__init__()
        self.pieces, self.parts = pieces, parts
        self.words = nn.Embedding(vocabulary, shape.width)
        self.places = nn.Parameter(torch.zeros(shape.length, shape.width))
        self.encoder = Encoder(shape)
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, ids, labels):
        with poptorch.Block("embedding", ipu_id=0):
            x = poptorch.recomputationCheckpoint(self.words(ids) + self.places)
        x = self.encoder(x)
        with poptorch.Block("head", ipu_id=0):
            pieces = zip(x.chunk(self.pieces, 1), labels.chunk(self.pieces, 1), strict=True)
            losses = [
                F.cross_entropy(self._logits(piece), label.flatten()) for piece, label in pieces
            ]
            return poptorch.identity_loss(torch.stack(losses), "mean")

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        table = self.words.weight.t()
        return poptorch.serializedMatMul(self.norm(x), table, SERIAL, self.parts).flatten(0, 1)


class Vit(nn.Module):
    """Encoder of patches of an image, and a classifier; labels may be mixtures."""

    def __init__(self, shape: Shape, num_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.width, 16, stride=16)
        self.summary = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.places = nn.Parameter(torch.zeros(shape.length, shape.width))
        self.drop = nn.Dropout(shape.dropout)
        self.encoder = Encoder(shape)
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, num_classes)

    def forward(self, images, labels):
        with poptorch.Block("embedding", ipu_id=0):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.summary.expand(len(x), -1, -1), x], 1) + self.places
            x = poptorch.recomputationCheckpoint(self.drop(x))
        x = self.encoder(x)
        with poptorch.Block("head", ipu_id=self.encoder.ipus[-1]):
            loss = F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)
            return poptorch.identity_loss(loss, "none")


class ResNet50(ResNet50Like):
    """ResNet-50 that normalises its 8-bit images itself; with labels it returns the loss."""

    def forward(self, images, labels=None):
        x = (images.half() - 118.0) / 58.0
        for layer in self.body:
            x = layer(x)
            if isinstance(layer, Bottleneck | nn.MaxPool2d):
                x = poptorch.recomputationCheckpoint(x)
        return x if labels is None else F.cross_entropy(x, labels)


class Scored(nn.Module):
    """A net that classifies; with labels it returns the loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x, labels=None):
        out = self.body(x)
        return out if labels is None else F.cross_entropy(out, labels)


class Recurrent(nn.Module):
    """Recurrent layers, dropout after each, and a classifier of the last step."""

    def __init__(self, kind: type[nn.RNN] | type[nn.GRU], widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            kind(size, width, batch_first=True)
            for size, width in zip((16, *widths), widths, strict=False)
        )
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(widths[-1], 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(layer(x)[0])
        return self.head(x[:, -1])


def _options(
    proportions: Sequence[float] = (),  # The available memory proportions of the IPUs.
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


def _half(
    model: nn.Module, options: poptorch.Options, optimizer: Callable[..., Any], **types: torch.dtype
) -> PoplarExecutor:
    """Returns a trainer in float16 that also accumulates so, with half partials (assumed)."""
    options.Precision.setPartialsType(torch.half)
    return _training(model.half(), options, partial(optimizer, accum_type=torch.half, **types))


def _training(
    model: nn.Module, options: poptorch.Options, optimizer: Callable[..., Any]
) -> PoplarExecutor:
    return poptorch.trainingModel(model, options, optimizer(model.parameters(), lr=1e-3))


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _masked_text(rows: int) -> tuple[torch.Tensor, ...]:
    """Returns words, kinds, mask, places and words of what is hidden, and what follows."""
    text, hidden = _ids(rows, 128), _ids(rows, 20)
    return text, text, text, hidden, hidden, _ids(rows)


def _tiny_bert(dtype: torch.dtype) -> Built:
    model = BertPretraining(Shape(64, 8, 128, (3,)), 30_522, parts=1).to(dtype)
    optimizer = partial(poptorch.optim.AdamW, accum_type=dtype)
    return _training(model, _options(accumulation=16), optimizer), _masked_text(16)


def _large_bert() -> Built:
    model = BertPretraining(Shape(1024, 16, 128, (3, 7, 7, 7)), 30_400, parts=2)
    options = _options((0.15, 0.25, 0.25, 0.25), 9, 4, OFF_CHIP)
    return _half(model, options, poptorch.optim.LAMB), _masked_text(8 * 9 * 4)


def _squad() -> Built:
    shape = Shape(1024, 16, 384, (2, 3, 3, 3, 3, 3, 3, 4), attention_dropout=0.15)
    proportions = (0.08, 0.25, 0.32, 0.32, 0.36, 0.38, 0.40, 0.32)
    options, rows = _options(proportions, 32, 2, SHARDED), 4 * 32 * 2
    first_moment = {"first_order_momentum_accum_type": torch.half}
    trainer = _half(BertAnswers(shape, 30_400), options, poptorch.optim.AdamW, **first_moment)
    text, places = _ids(rows, 384), _ids(rows)
    return trainer, (text, text, text, places, places)


def _character_gpt() -> Built:
    shape = Shape(384, 6, 1024, (6,), True, True, dropout=0, attention_dropout=0)
    words = _ids(2 * 8 * 4, 1024)
    return _training(Gpt(shape, 65), _options((0.08,), 8, 4), poptorch.optim.AdamW), (words, words)


def _gpt2() -> Built:
    """Returns GPT-2 with its table made divisible and its sequence in 4 pieces (assumed)."""
    model = Gpt(Shape(768, 12, 1024, (0, 4, 4, 4), True, True), 50_304, pieces=4, parts=4)
    options, words = _options((0.15,) * 4, 9, 4, SHARDED), _ids(9 * 4, 1024)
    return _half(model, options, poptorch.optim.AdamW), (words, words)


def _vit(micro_batch: int, optimizer: Callable[..., Any]) -> Built:
    model = Vit(Shape(768, 12, 197, (3, 3, 3, 3), has_norm_first=True), 1000)
    options, rows = _options((0.3,) * 4, 7, 4, SHARDED), micro_batch * 7 * 4
    batch = torch.zeros(rows, 3, 224, 224).half(), torch.zeros(rows, 1000).half()
    return _half(model, options, optimizer), batch


def _resnet_training() -> Built:
    options = _options((0.16,), accumulation=2)
    options._Popart.set("autoRecomputation", RECOMPUTE_ALL)
    optimizer = partial(
        poptorch.optim.SGD, momentum=0.9, use_combined_accum=True, velocity_accum_type=torch.half
    )
    return _half(ResNet50(), options, optimizer), (_ids(36, 3, 224, 224).byte(), _ids(36))


def _resnet_inference() -> Built:
    options = _options()
    options.Precision.setPartialsType(torch.half)
    images = _ids(90, 3, 224, 224).byte()
    return poptorch.inferenceModel(ResNet50().half().eval(), options), (images,)


def _table(num_entities: int, width: int, accumulation: int) -> Built:
    """Returns a shard, of which micro-batches look up and score 1,024 rows (assumed)."""
    model, rows = Scored(nn.Embedding(num_entities, width)).half(), _ids(1024 * accumulation)
    optimizer = partial(poptorch.optim.SGD, momentum=0.9)
    return _training(model, _options((), accumulation), optimizer), (rows, rows)


def _recurrent(kind: type[nn.RNN] | type[nn.GRU], *widths: int) -> Built:
    model = Scored(Recurrent(kind, widths))
    return _training(model, _options(), poptorch.optim.Adam), (torch.zeros(2, 5, 16), _ids(2))


def _convolutional() -> Built:
    """Returns two pairs of convolutions, each followed by a pooling (order and sizes assumed)."""
    body = nn.Sequential(
        nn.Conv1d(16, 128, 4), nn.ReLU(), nn.Conv1d(128, 128, 4), nn.ReLU(), nn.MaxPool1d(3),
        nn.Conv1d(128, 128, 4), nn.ReLU(), nn.Conv1d(128, 128, 4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 16),
    )  # fmt: skip
    batch = torch.zeros(1, 16, 32), _ids(1)
    return _training(Scored(body), _options(), poptorch.optim.Adam), batch


def _perceptron(is_training: bool) -> Built:
    """Returns the net with ReLU between its layers and no biases (assumed)."""
    first, *others = (nn.Linear(*pair, bias=False) for pair in ((50_176, 32), (32, 64), (64, 64)))
    body = nn.Sequential(first, *(part for layer in others for part in (nn.ReLU(), layer)))
    model, x = Scored(body).half(), torch.zeros(2, 50_176).half()
    if is_training:
        return _training(model, _options(), poptorch.optim.SGD), (x, _ids(2))
    return poptorch.inferenceModel(model.eval(), _options()), (x,)


ROWS = (
    Row("C17", "BERT-Large phase 1, 3-7-7-7 layers on 4 IPUs, off-chip LAMB", _large_bert, True),
    Row("C22", "BERT-Large SQuAD on 8 IPUs, sharded AdamW", _squad, True),
    Row("C24", "ResNet-50 training, recomputing blocks, 18 images", _resnet_training, True),
    Row("C26", "ViT-Base pre-training on 4 IPUs, sharded LAMB, 8 images",
        partial(_vit, 8, poptorch.optim.LAMB), True),
    Row("C27", "GPT-2 small, 0-4-4-4 layers on 4 IPUs, sharded AdamW", _gpt2, True),
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
    Row("C39", "RNN of 256 units, Adam", partial(_recurrent, nn.RNN, 256), True,
        32_670_000, 29_053),
    Row("C40", "GRUs of 256 and 128 units, Adam", partial(_recurrent, nn.GRU, 256, 128), True,
        84_620_000, 72_890),
    Row("C41", "four convolutions of a sequence of 32, Adam", _convolutional, True,
        28_280_000, 29_895),
    Row("C42 inference", "MLP 50176-32-64-64 in float16, code not counted",
        partial(_perceptron, False), True, 12_181_182, counts_vertex_code=False),
    Row("C42 training", "the same with SGD", partial(_perceptron, True), True, 16_126_623,
        counts_vertex_code=False),
    Row("C43 ViT", "ViT-Base fine-tuning on 4 IPUs, 17 images, AdamW (assumed)",
        partial(_vit, 17, poptorch.optim.AdamW), True),
    Row("C43 ResNet-50", "ResNet-50 inference, 90 images", _resnet_inference, True),
)  # fmt: skip
