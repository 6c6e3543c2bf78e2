"""Sections of `docs/troubleshooting.md`, and the phrase that refers to them in messages.

A message ends with its topic: `f"Couldn't find a loss ...; {Topic.NO_LOSS}"`. The tests compare the
topics with the sections of the page, and provoke each message.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from poptorch_emu.near_names import did_you_mean

_PHRASE = "see troubleshooting: "


class Topic(Enum):
    """A section of the page; its text is the hint at the end of a message."""

    # Mistakes in losses and in forward.
    NO_LOSS = "no-loss"
    SEVERAL_LOSSES = "several-losses"
    AFTER_THE_LOSS = "after-the-loss"
    EXPLICIT_BACKWARD = "explicit-backward"
    PYTHON_CONTROL_FLOW = "python-control-flow"
    DATA_DEPENDENT_SHAPE = "data-dependent-shape"
    VALUE_GUARDS = "value-guards"
    MOVED_TO_CPU = "moved-to-cpu"
    OTHER_DEVICE = "other-device"
    HOST_TENSOR = "host-tensor"
    HOST_PARAMETER = "host-parameter"
    REASSIGNED_STATE = "reassigned-state"
    LEFT_TENSORS = "left-tensors"
    FROZEN_BATCH_NORM = "frozen-batch-norm"
    UNSUPPORTED_OPERATOR = "unsupported-operator"
    FOREIGN_LIBRARY = "foreign-library"
    STRICT_MODE = "strict-mode"
    # Mistakes in types and numbers.
    MY_LOSS_DIFFERS = "my-loss-differs"
    UNSUPPORTED_TYPE = "unsupported-type"
    FLOAT64 = "float64"
    INT64_OVERFLOW = "int64-overflow"
    INTEGER_STATE = "integer-state"
    FLOATING_POINT_EXCEPTION = "floating-point-exception"  # csrc/runtime names it, too.
    # Mistakes in batches and data.
    BATCH_SIZE = "batch-size"
    CHANGED_INPUTS = "changed-inputs"
    ACCUMULATION_IN_INFERENCE = "accumulation-in-inference"
    EMPTY_LOADER = "empty-loader"
    ODD_LAST_BATCH = "odd-last-batch"
    UNSENDABLE_DATASET = "unsendable-dataset"
    UNGUARDED_MAIN = "unguarded-main"
    # Mistakes in IPUs, stages, replicas and memory.
    TOO_FEW_MICRO_BATCHES = "too-few-micro-batches"
    STAGE_ORDER = "stage-order"
    NO_BLOCK = "no-block"
    BLOCK_NAMES = "block-names"
    REPLICA_BUFFERS = "replica-buffers"
    NO_FREE_IPU = "no-free-ipu"
    TOO_MANY_IPUS = "too-many-ipus"
    POWER_OF_TWO = "power-of-two"
    OUT_OF_MEMORY = "out-of-memory"
    # Mistakes in models, weights, optimisers and files.
    NOT_A_MODULE = "not-a-module"
    ALREADY_WRAPPED = "already-wrapped"
    NOT_COMPILED = "not-compiled"
    WEIGHTS_NOT_ON_HOST = "weights-not-on-host"
    EDITED_WEIGHTS = "edited-weights"
    CHANGED_FLAGS = "changed-flags"
    OPTIMIZER_VALUES = "optimizer-values"
    OPTIMIZER_MISMATCH = "optimizer-mismatch"
    OPTIMIZER_STEP = "optimizer-step"
    WRONG_EXECUTABLE = "wrong-executable"
    INVALID_FILE = "invalid-file"
    CACHE_FOLDER = "cache-folder"
    # Mistakes in programs of Keras and TensorFlow.
    KERAS_BACKEND = "keras-backend"
    ADDED_GRADIENTS = "added-gradients"
    UNEVEN_LOOP = "uneven-loop"
    TENSORFLOW_FUNCTION = "tensorflow-function"

    def __str__(self) -> str:
        return f"{_PHRASE}{self.value}"


def topic_of(message: str) -> Topic | None:
    """Returns the topic that a message names; `None` if it names none."""
    found = re.search(f"{_PHRASE}([a-z0-9-]+)", message)
    return next((topic for topic in Topic if found and topic.value == found[1]), None)


def explanation(name: str) -> str:
    """Returns a section of the page as text for terminals.

    Args:
        name: name of a section, such as "no-loss"; or a message, or the end of one.

    Raises:
        LookupError: the section is unknown, or the page is not installed.
    """
    topic = name.rpartition(_PHRASE)[2].strip().rstrip(".")
    known = [each.value for each in Topic]
    if topic not in known:
        raise LookupError(
            f"there is no section {topic!r}.{did_you_mean(topic, known)} "
            f"Choose one of {', '.join(known)}"
        )
    page = _page()
    if page is None:
        raise LookupError("the page docs/troubleshooting.md was not installed with the package")
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    title, _, text = next(one for one in sections if one.startswith(f"{topic}\n")).partition("\n")
    parts = re.split(r"^```.*\n", f"{text.strip()}\n", flags=re.MULTILINE)
    # Links are removed, because a terminal does not show other pages; code is indented, not fenced.
    parts[::2] = [re.sub(r"\[([^]]+)\]\([^)]+\)|\*\*", r"\1", words) for words in parts[::2]]
    parts[1::2] = [re.sub(r"^(?=.)", "    ", code, flags=re.MULTILINE) for code in parts[1::2]]
    rest = f"All sections, and the lines with which the examples begin: {page}"
    return f"{title}\n\n{''.join(parts).rstrip()}\n\n{rest}"


def linked(text: str) -> str:
    """Returns a message whose hint is a link to the page, for terminals that support links."""
    page = _page()
    if page is None:
        return text
    address = page.as_uri()
    return re.sub(
        f"{_PHRASE}([a-z0-9-]+)",
        lambda found: f"\x1b]8;;{address}#{found[1]}\x1b\\{found[0]}\x1b]8;;\x1b\\",
        text,
    )


def _page() -> Path | None:
    """Returns the path of the page in an installed package, or in a checkout's documents."""
    package = Path(__file__).resolve().parent
    places = (package / "troubleshooting.md", package.parent / "docs" / "troubleshooting.md")
    return next((place for place in places if place.is_file()), None)


def before_hint(message: str, sentence: str) -> str:
    """Returns `message` with one more sentence before its hint, which stays at the end."""
    text, separator, hint = message.rpartition(f"; {_PHRASE}")
    if not separator:
        return f"{message} {sentence}"
    return f"{text}. {sentence.removesuffix('.')}{separator}{hint}"
