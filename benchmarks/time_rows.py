"""The settings behind published speeds.

`docs/fidelity.md` lists the sources of the figures. `time_builders.py` and `fidelity_rows.py` build
the models and mark settings that the sources leave open as `assumed`. `OTHER_SETTINGS` lists other
possible assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from statistics import geometric_mean
from typing import Any

from fidelity_rows import (
    Built,
    convolutional,
    gpt2,
    large_bert,
    recurrent,
    resnet_training,
    squad,
    vit,
)
from time_builders import (
    bert_base,
    clip,
    conformer,
    dlrm,
    efficient_net,
    entities,
    fine_tuned_vit,
    loading,
    mnist,
    resnet_inference,
    small_perceptron,
    speech,
)
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.plan.time.time_plan import HostWork


class Kind(Enum):
    """Group of rows whose time depends on the same parts of the model."""

    LARGE = "large training"
    POD64 = "training on 64 IPUs"
    CARD = "inference on cards"
    SMALL = "small programs"
    GROUPS = "groups"


@dataclass(frozen=True)
class TimeRow:
    """One published speed.

    Attributes:
        what: description in one line.
        kind: group of rows for which errors are summarised together.
        family: family of models, which a fit can leave out.
        build: function that returns the wrapped model and the arguments of a call.
        system: system on which the figure was measured.
        published: items per second; or cycles of a call, if `is_cycles`.
        items_per_row: items that are packed into one row, for example sequences.
        is_goal: whether the prediction must be close to the published figure.
        host: work that the host was published to do at the same time.
    """

    name: str
    what: str
    kind: Kind
    family: str
    build: Callable[[], Built]
    system: str
    published: float
    items_per_row: float = 1.0
    is_cycles: bool = False
    host: HostWork | None = None
    is_goal: bool = False


class Choice(Enum):
    """The basis on which a setting was chosen that the source of a row leaves open."""

    DEFAULT = "a default"
    OTHER_ROWS = "other rows"
    OWN_FIGURE = "the row's own figure"


@dataclass(frozen=True)
class OtherSetting:
    """A row with another choice of a setting that its source leaves open.

    Attributes:
        taken: setting of the row.
        otherwise: other possible setting.
        row: row with the other setting.
        choice: the basis of the setting of the row. A setting that the row's own figure chose is
            fitted: a cross-validation predicts such a row with the other setting.
    """

    taken: str
    otherwise: str
    row: TimeRow
    choice: Choice


# Published with C11: the speed of the tutorial's loader alone.
_TUTORIAL_LOADER = HostWork(items_per_second=68_227)
# Assumed: number of questions that share a row of 384 words, with a mean length of 170.
_QUESTIONS_PER_ROW = 2.0
_LONG = (0.10, 0.15, 0.15, 0.15)
_POD64 = (0.14, 0.19, 0.19, 0.19)
_pretraining = "BERT-Large pre-training"
BERT, RESNET, VIT, GPT = "BERT", "ResNet", "ViT", "GPT-2"


def _of_two(*cycles: int) -> float:
    """Returns the cycles of one of 100 iterations, between those of two versions of TensorFlow.

    No source says which version is closer, so the figure is their geometric mean.
    """
    return geometric_mean(cycles) / 100


_GOALS = (
    TimeRow("C17 Pod16", f"{_pretraining}, 128 words, packed, PyTorch", Kind.LARGE, BERT,
            partial(large_bert, accumulation=1751), "bow-pod16", 5592, 1.17),
    TimeRow("C17 Pod64", "the same on 64 IPUs", Kind.POD64, BERT,
            partial(large_bert, accumulation=438, replicas=16, proportions=_POD64), "bow-pod64",
            18_494, 1.17),
    TimeRow("C18 Pod16", "the same not packed, PopART", Kind.LARGE, BERT,
            partial(large_bert, accumulation=2048), "bow-pod16", 5179),
    TimeRow("C18 Pod64", "the same on 64 IPUs", Kind.POD64, BERT,
            partial(large_bert, accumulation=512, replicas=16, proportions=_POD64), "bow-pod64",
            19_353),
    TimeRow("C19 TF1", "the same, TensorFlow 1", Kind.LARGE, BERT,
            partial(large_bert, accumulation=2050), "bow-pod16", 5125),
    TimeRow("C19 TF2", "the same, TensorFlow 2", Kind.LARGE, BERT,
            partial(large_bert, accumulation=2040), "bow-pod16", 4527),
    TimeRow("C19 TF2 Pod64", "the same on 64 IPUs", Kind.POD64, BERT,
            partial(large_bert, accumulation=520, replicas=16, proportions=_POD64), "bow-pod64",
            18_199),
    TimeRow("C20 Pod16", f"{_pretraining}, 384 words, PopART", Kind.LARGE, BERT,
            partial(large_bert, 384, 60, 2, 2048, 4, _LONG), "bow-pod16", 1470),
    TimeRow("C20 Pod64", "the same on 64 IPUs", Kind.POD64, BERT,
            partial(large_bert, 384, 60, 2, 512, 16, _LONG), "bow-pod64", 5444),
    TimeRow("C21", f"{_pretraining}, 512 words, packed, PyTorch", Kind.LARGE, BERT,
            partial(large_bert, 512, 76, 2, 1024, 4, _LONG), "bow-pod16", 1969, 2.0),
    TimeRow("C22", "BERT-Large SQuAD on 8 IPUs", Kind.LARGE, BERT, partial(squad, 2), "bow-pod16",
            1009),
    TimeRow("C23 Pod16", "ResNet-50, TensorFlow, input not waited for", Kind.LARGE, RESNET,
            partial(resnet_training, 20, 11, 16, True), "bow-pod16", 44_059),
    TimeRow("C23 Pod64", "the same on 64 IPUs", Kind.POD64, RESNET,
            partial(resnet_training, 20, 4, 64, True), "bow-pod64", 153_205),
    TimeRow("C24", "ResNet-50, PyTorch", Kind.LARGE, RESNET,
            partial(resnet_training, 18, 57, 16), "bow-pod16", 37_061),
    TimeRow("C26", "ViT-Base pre-training", Kind.LARGE, VIT,
            partial(vit, 8, poptorch.optim.LAMB, 2048), "bow-pod16", 7615),
    TimeRow("C27", "GPT-2 small, 1,024 words", Kind.LARGE, GPT, partial(gpt2, 2048, 8),
            "bow-pod64", 1059),
    TimeRow("C29", "ResNet-50, MLPerf, Mk2, TensorFlow", Kind.LARGE, RESNET,
            partial(resnet_training, 20, 10, 16, True), "mk2-pod16", 30_000),
    TimeRow("C30 batch 4", "ResNet-50 inference on a card", Kind.CARD, RESNET,
            partial(resnet_inference, 4), "c600", 7062),
    TimeRow("C30 batch 32", "the same with larger batches", Kind.CARD, RESNET,
            partial(resnet_inference, 32), "c600", 13_542),
)  # fmt: skip
_OTHERS = (
    TimeRow("C11 synthetic", "small net of a tutorial", Kind.SMALL, "loading",
            partial(loading, True), "mk2-pod16", 47_324, host=_TUTORIAL_LOADER),
    TimeRow("C11 real", "the same with data", Kind.SMALL, "loading", partial(loading, False),
            "mk2-pod16", 17_957, host=_TUTORIAL_LOADER),
    TimeRow("C12", "MNIST on 4 IPUs, AdamW state off chip", Kind.SMALL, "digits", mnist,
            "mk2-pod16", 60_000),
    TimeRow("C13 training", "DLRM, 512 rows a call", Kind.SMALL, "DLRM", partial(dlrm, True),
            "bow-pod4", 594_498),
    TimeRow("C13 inference", "DLRM, 1,024 rows a call", Kind.SMALL, "DLRM", partial(dlrm, False),
            "bow-pod4", 3_219_849),
    TimeRow("C14", "entities of a knowledge graph, four shards", Kind.SMALL, "entities", entities,
            "bow-pod4", 4 * 11_520 / 0.0151),
    TimeRow("C15", "digits, 80 a call", Kind.SMALL, "digits", small_perceptron,
            "mk2-pod4", 99_972),
    TimeRow("C16", "ViT-Base fine-tuning on 4 IPUs, one image", Kind.SMALL, VIT, fine_tuned_vit,
            "mk2-pod16", 318),
    TimeRow("C25", "EfficientNet-B4 in groups of 16", Kind.GROUPS, "EfficientNet", efficient_net,
            "bow-pod16", 8263),
    TimeRow("C28 Pod4", "Conformer", Kind.GROUPS, "Conformer", partial(speech, 1), "mk2-pod4", 819),
    TimeRow("C28 Pod16", "the same on 16 IPUs", Kind.GROUPS, "Conformer", partial(speech, 4),
            "mk2-pod16", 3163),
    TimeRow("C31", "BERT-Base SQuAD inference on a card", Kind.CARD, BERT, bert_base, "c600",
            3134, _QUESTIONS_PER_ROW),
    TimeRow("C32 CLIP", "CLIP inference on a card, 4 pairs", Kind.CARD, "CLIP", clip, "c600",
            2674),
    TimeRow("C32 Conformer", "Conformer's encoder on a card, 4 rows", Kind.CARD, "Conformer",
            conformer, "c600", 4195),
    TimeRow("C39", "RNN of 256 units", Kind.SMALL, "recurrent", partial(recurrent, nn.RNN, 256),
            "mk2-pod16", _of_two(11_391_266, 14_855_062), is_cycles=True),
    TimeRow("C40", "GRUs of 256 and 128 units", Kind.SMALL, "recurrent",
            partial(recurrent, nn.GRU, 256, 128), "mk2-pod16", _of_two(51_213_564, 55_012_169),
            is_cycles=True),
    TimeRow("C41", "four convolutions of a sequence", Kind.SMALL, "sequences", convolutional,
            "mk2-pod16", _of_two(10_277_400, 10_517_000), is_cycles=True),
)  # fmt: skip

TIME_ROWS = (*(replace(row, is_goal=True) for row in _GOALS), *_OTHERS)
ROW_OF_NAME = {row.name: row for row in TIME_ROWS}


def _other(
    name: str, taken: str, otherwise: str, choice: Choice = Choice.DEFAULT, **changes: Any
) -> OtherSetting:
    return OtherSetting(taken, otherwise, replace(ROW_OF_NAME[name], **changes), choice)


_STREAMS = "streams on 64 tiles for I/O", "the device waits for them"
_half_vit = partial(vit, 1, poptorch.optim.AdamW, 128, 1)
_waiting_bert = partial(bert_base, False)
OTHER_SETTINGS = (
    _other("C11 synthetic", "the published loader limits it", "no loader", Choice.OWN_FIGURE,
           host=None),
    _other("C13 training", "Bow", "Mk2", system="mk2-pod4"),
    _other("C13 inference", "Bow", "Mk2", system="mk2-pod4"),
    _other("C14", "Bow", "Mk2", system="mk2-pod4"),
    _other("C16", "Mk2", "Bow", system="bow-pod16"),
    _other("C16", "float32", "float16", Choice.OWN_FIGURE, build=_half_vit),
    _other("C25", "the second IPU begins with block 10", "with block 12",
           build=partial(efficient_net, 12)),
    _other("C28 Pod4", "4 rows in a micro-batch", "8 rows", build=partial(speech, 1, 8)),
    _other("C31", *_STREAMS, Choice.OTHER_ROWS, build=_waiting_bert),
    _other("C31", "two questions in a row of words", "one", Choice.OWN_FIGURE, items_per_row=1.0),
    _other("C32 CLIP", *_STREAMS, Choice.OTHER_ROWS, build=partial(clip, False)),
    _other("C32 Conformer", *_STREAMS, Choice.OTHER_ROWS, build=partial(conformer, False)),
)  # fmt: skip
