"""The settings behind published speeds, to compare a prediction with.

Where the figures come from is told in `docs/fidelity.md`. What the sources leave open is marked
`assumed`. Everything is built on the meta device: no row needs memory or runs a step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from fidelity_models import Bert, ResNet50, Shape, Vit
from fidelity_rows import (
    SHARDED,
    Built,
    convolutional,
    gpt2,
    half_trainer,
    ids,
    large_bert,
    options_for,
    recurrent,
    resnet_training,
    squad,
    trainer,
    vit,
)
from time_models import AnswersOfBertBase, Dlrm, LoadingTutorial, PipelinedMnist
from time_networks import Clip, Conformer, EfficientNetB4, Entities, Speech
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.plan.time.time_plan import HostWork


class Kind(Enum):
    """What decides the time of a row."""

    LARGE = "large training"
    POD64 = "training on 64 IPUs"
    CARD = "inference on cards"
    SMALL = "small programs"
    GROUPS = "groups"


@dataclass(frozen=True)
class TimeRow:
    """One published speed.

    Attributes:
        what: one line for people.
        kind: of the row.
        family: of models, for leaving one out of a fit.
        build: makes the wrapped model and the arguments of a call.
        system: that the figure is of.
        published: items each second; or cycles of a call, if `is_cycles`.
        items_per_row: what is counted: sequences that were packed into one row.
        is_goal: whether the row is one of those that must be met.
        host: what the host was published to do meanwhile.
    """

    name: str
    what: str
    kind: Kind
    family: str
    build: Callable[[], Built]
    system: str
    published: float
    items_per_row: float = 1.0
    is_goal: bool = True
    is_cycles: bool = False
    host: HostWork | None = None


def _on_a_card(model: nn.Module, *batch: torch.Tensor, has_blocks: bool = False) -> Built:
    """Returns 128 micro-batches a call, given one; inputs and outputs cross on 64 tiles for I/O.

    Both are published for C30, and assumed for the others.
    """
    options = options_for().deviceIterations(128)
    options.Precision.setPartialsType(torch.half)
    options.TensorLocations.numIOTiles(64)
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
    rows = tuple(torch.cat([tensor] * 128) for tensor in batch)
    whole = Overlapped(model.half().eval(), has_blocks)
    return poptorch.inferenceModel(whole, options), rows


class Overlapped(nn.Module):
    """A net whose inputs and output cross while it computes."""

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


def _resnet_inference(rows: int) -> Built:
    """Returns ResNet-50 as an ONNX runtime has it, input in float16 (assumed)."""
    return _on_a_card(ResNet50(), torch.zeros(rows, 3, 224, 224, dtype=torch.half))


def _loading(is_synthetic: bool) -> Built:
    options = options_for().deviceIterations(50).enableSyntheticData(is_synthetic)
    batch = torch.zeros(16 * 50, 1, 128, 128), ids(16 * 50)
    return trainer(LoadingTutorial(), options, poptorch.optim.SGD), batch


def _mnist() -> Built:
    options = options_for(accumulation=10).deviceIterations(10)
    options.outputMode(poptorch.OutputMode.All)
    state = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(state)
    batch = torch.zeros(4000, 1, 28, 28), ids(4000)
    return trainer(PipelinedMnist(), options, poptorch.optim.AdamW), batch


def _dlrm(is_training: bool) -> Built:
    rows = 4 * (512 if is_training else 1024)
    batch = torch.zeros(rows, 13), ids(rows, 26, 4)
    options = options_for(replicas=4)
    if is_training:
        return trainer(Dlrm(), options, poptorch.optim.SGD), (*batch, torch.zeros(rows))
    return poptorch.inferenceModel(Dlrm().eval(), options), batch


def _bert_base() -> Built:
    text = ids(40, 384)
    model = AnswersOfBertBase(Bert(Shape(768, 12, 384, (12,)), 30_522))
    return _on_a_card(model, text, text, text, has_blocks=True)


def _efficient_net() -> Built:
    """Returns images of 380 x 380, and the split at the 10th block of 34 (both assumed)."""
    accumulation, replicas, rows = 32, 8, 4
    options = options_for((0.10, 0.10), accumulation, replicas, SHARDED)
    rows *= accumulation * replicas
    batch = torch.zeros(rows, 3, 380, 380, dtype=torch.uint8), ids(rows)
    optimizer = partial(poptorch.optim.RMSprop, momentum=0.9, accum_type=torch.half)
    return trainer(EfficientNetB4(10).half(), options, optimizer), batch


def _speech(replicas: int) -> Built:
    """Returns pipelines of 4 IPUs with micro-batches of 4 rows (assumed)."""
    accumulation = 16_128 // (4 * replicas)
    rows = 4 * accumulation * replicas
    options = options_for((), accumulation, replicas, SHARDED)
    batch = torch.zeros(rows, 1220, 80).half(), ids(rows, 48)
    return half_trainer(Speech(), options, poptorch.optim.AdamW), batch


def _entities() -> Built:
    """Returns four shards, each of which has entities of its own."""
    num_shards = 4
    options = options_for(accumulation=6, replicas=num_shards).deviceIterations(8)
    rows = 240 * 6 * 8 * num_shards
    batch = ids(rows), ids(rows), ids(rows, 1 + num_shards)
    model = trainer(Entities(93_773, 64, num_shards), options, poptorch.optim.AdamW)
    own = poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
    model.table.replicaGrouping(*own)
    return model, batch


def _fine_tuned_vit() -> Built:
    """Returns ViT-Base in float32, since the source says nothing of another type."""
    model = Vit(Shape(768, 12, 197, (3, 3, 3, 3), has_norm_first=True), 1000)
    batch = torch.zeros(128, 3, 224, 224), torch.zeros(128, 1000)
    return trainer(model, options_for(accumulation=128), poptorch.optim.AdamW), batch


def _small_perceptron() -> Built:
    """Returns two linear layers (assumed) for digits."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    return poptorch.inferenceModel(model, options_for()), (torch.zeros(80, 1, 28, 28),)


def _clip() -> Built:
    return _on_a_card(Clip(), torch.zeros(4, 3, 224, 224).half(), ids(4, 77))


def _conformer() -> Built:
    """Returns the encoder for 512 frames (assumed)."""
    return _on_a_card(Conformer(512, 1), torch.zeros(4, 512, 80).half(), has_blocks=True)


# Published with C11: what its loader yields on its own.
_TUTORIAL_LOADER = HostWork(items_per_second=68_227)
# Assumed: questions that share a row of 384 words, of a mean length of 170.
_QUESTIONS_PER_ROW = 2.0
_LONG = (0.10, 0.15, 0.15, 0.15)
_POD64 = (0.14, 0.19, 0.19, 0.19)
_pretraining = "BERT-Large pre-training"
BERT, RESNET, VIT, GPT, SMALL, OTHER = "BERT", "ResNet", "ViT", "GPT-2", "small", "other"

TIME_ROWS = (
    TimeRow(
        "C17 Pod16",
        f"{_pretraining}, 128 words, packed, PyTorch",
        Kind.LARGE,
        BERT,
        partial(large_bert, accumulation=1751),
        "bow-pod16",
        5592,
        1.17,
    ),
    TimeRow(
        "C17 Pod64",
        "the same on 64 IPUs",
        Kind.POD64,
        BERT,
        partial(large_bert, accumulation=438, replicas=16, proportions=_POD64),
        "bow-pod64",
        18_494,
        1.17,
    ),
    TimeRow(
        "C18 Pod16",
        "the same not packed, PopART",
        Kind.LARGE,
        BERT,
        partial(large_bert, accumulation=2048),
        "bow-pod16",
        5179,
    ),
    TimeRow(
        "C18 Pod64",
        "the same on 64 IPUs",
        Kind.POD64,
        BERT,
        partial(large_bert, accumulation=512, replicas=16, proportions=_POD64),
        "bow-pod64",
        19_353,
    ),
    TimeRow(
        "C19 TF1",
        "the same, TensorFlow 1",
        Kind.LARGE,
        BERT,
        partial(large_bert, accumulation=2050),
        "bow-pod16",
        5125,
    ),
    TimeRow(
        "C19 TF2",
        "the same, TensorFlow 2",
        Kind.LARGE,
        BERT,
        partial(large_bert, accumulation=2040),
        "bow-pod16",
        4527,
    ),
    TimeRow(
        "C19 TF2 Pod64",
        "the same on 64 IPUs",
        Kind.POD64,
        BERT,
        partial(large_bert, accumulation=520, replicas=16, proportions=_POD64),
        "bow-pod64",
        18_199,
    ),
    TimeRow(
        "C20 Pod16",
        f"{_pretraining}, 384 words, PopART",
        Kind.LARGE,
        BERT,
        partial(large_bert, 384, 60, 2, 2048, 4, _LONG),
        "bow-pod16",
        1470,
    ),
    TimeRow(
        "C20 Pod64",
        "the same on 64 IPUs",
        Kind.POD64,
        BERT,
        partial(large_bert, 384, 60, 2, 512, 16, _LONG),
        "bow-pod64",
        5444,
    ),
    TimeRow(
        "C21",
        f"{_pretraining}, 512 words, packed, PyTorch",
        Kind.LARGE,
        BERT,
        partial(large_bert, 512, 76, 2, 1024, 4, _LONG),
        "bow-pod16",
        1969,
        2.0,
    ),
    TimeRow(
        "C22", "BERT-Large SQuAD on 8 IPUs", Kind.LARGE, BERT, partial(squad, 2), "bow-pod16", 1009
    ),
    TimeRow(
        "C23 Pod16",
        "ResNet-50, TensorFlow, input not waited for",
        Kind.LARGE,
        RESNET,
        partial(resnet_training, 20, 11, 16, True),
        "bow-pod16",
        44_059,
    ),
    TimeRow(
        "C23 Pod64",
        "the same on 64 IPUs",
        Kind.POD64,
        RESNET,
        partial(resnet_training, 20, 4, 64, True),
        "bow-pod64",
        153_205,
    ),
    TimeRow(
        "C24",
        "ResNet-50, PyTorch",
        Kind.LARGE,
        RESNET,
        partial(resnet_training, 18, 57, 16),
        "bow-pod16",
        37_061,
    ),
    TimeRow(
        "C26",
        "ViT-Base pre-training",
        Kind.LARGE,
        VIT,
        partial(vit, 8, poptorch.optim.LAMB, 2048),
        "bow-pod16",
        7615,
    ),
    TimeRow(
        "C27",
        "GPT-2 small, 1,024 words",
        Kind.LARGE,
        GPT,
        partial(gpt2, 2048, 8),
        "bow-pod64",
        1059,
    ),
    TimeRow(
        "C29",
        "ResNet-50, MLPerf, Mk2, TensorFlow",
        Kind.LARGE,
        RESNET,
        partial(resnet_training, 20, 10, 16, True),
        "mk2-pod16",
        30_000,
    ),
    TimeRow(
        "C30 batch 4",
        "ResNet-50 inference on a card",
        Kind.CARD,
        RESNET,
        partial(_resnet_inference, 4),
        "c600",
        7062,
    ),
    TimeRow(
        "C30 batch 32",
        "the same with larger batches",
        Kind.CARD,
        RESNET,
        partial(_resnet_inference, 32),
        "c600",
        13_542,
    ),
    TimeRow(
        "C11 synthetic",
        "small net of a tutorial",
        Kind.SMALL,
        SMALL,
        partial(_loading, True),
        "mk2-pod16",
        47_324,
        is_goal=False,
        host=_TUTORIAL_LOADER,
    ),
    TimeRow(
        "C11 real",
        "the same with data",
        Kind.SMALL,
        SMALL,
        partial(_loading, False),
        "mk2-pod16",
        17_957,
        is_goal=False,
        host=_TUTORIAL_LOADER,
    ),
    TimeRow(
        "C12",
        "MNIST on 4 IPUs, AdamW state off chip",
        Kind.SMALL,
        SMALL,
        _mnist,
        "mk2-pod16",
        60_000,
        is_goal=False,
    ),
    TimeRow(
        "C13 training",
        "DLRM, 512 rows a call",
        Kind.SMALL,
        SMALL,
        partial(_dlrm, True),
        "bow-pod4",
        594_498,
        is_goal=False,
    ),
    TimeRow(
        "C13 inference",
        "DLRM, 1,024 rows a call",
        Kind.SMALL,
        SMALL,
        partial(_dlrm, False),
        "bow-pod4",
        3_219_849,
        is_goal=False,
    ),
    TimeRow(
        "C14",
        "entities of a knowledge graph, four shards",
        Kind.SMALL,
        OTHER,
        _entities,
        "bow-pod4",
        4 * 11_520 / 0.0151,
        is_goal=False,
    ),
    TimeRow(
        "C15",
        "digits, 80 a call",
        Kind.SMALL,
        SMALL,
        _small_perceptron,
        "mk2-pod4",
        99_972,
        is_goal=False,
    ),
    TimeRow(
        "C16",
        "ViT-Base fine-tuning on 4 IPUs, one image",
        Kind.SMALL,
        VIT,
        _fine_tuned_vit,
        "mk2-pod16",
        318,
        is_goal=False,
    ),
    TimeRow(
        "C25",
        "EfficientNet-B4 in groups of 16",
        Kind.GROUPS,
        OTHER,
        _efficient_net,
        "bow-pod16",
        8263,
        is_goal=False,
    ),
    TimeRow(
        "C28 Pod4",
        "Conformer",
        Kind.GROUPS,
        OTHER,
        partial(_speech, 1),
        "mk2-pod4",
        819,
        is_goal=False,
    ),
    TimeRow(
        "C28 Pod16",
        "the same on 16 IPUs",
        Kind.GROUPS,
        OTHER,
        partial(_speech, 4),
        "mk2-pod16",
        3163,
        is_goal=False,
    ),
    TimeRow(
        "C31",
        "BERT-Base SQuAD inference on a card",
        Kind.CARD,
        OTHER,
        _bert_base,
        "c600",
        3134,
        _QUESTIONS_PER_ROW,
        is_goal=False,
    ),
    TimeRow(
        "C32 CLIP",
        "CLIP inference on a card, 4 pairs",
        Kind.CARD,
        OTHER,
        _clip,
        "c600",
        2674,
        is_goal=False,
    ),
    TimeRow(
        "C32 Conformer",
        "Conformer's encoder on a card, 4 rows",
        Kind.CARD,
        OTHER,
        _conformer,
        "c600",
        4195,
        is_goal=False,
    ),
    TimeRow(
        "C39",
        "RNN of 256 units",
        Kind.SMALL,
        SMALL,
        partial(recurrent, nn.RNN, 256),
        "mk2-pod16",
        113_913,
        is_goal=False,
        is_cycles=True,
    ),
    TimeRow(
        "C40",
        "GRUs of 256 and 128 units",
        Kind.SMALL,
        SMALL,
        partial(recurrent, nn.GRU, 256, 128),
        "mk2-pod16",
        512_136,
        is_goal=False,
        is_cycles=True,
    ),
    TimeRow(
        "C41",
        "four convolutions of a sequence",
        Kind.SMALL,
        SMALL,
        convolutional,
        "mk2-pod16",
        102_774,
        is_goal=False,
        is_cycles=True,
    ),
)
