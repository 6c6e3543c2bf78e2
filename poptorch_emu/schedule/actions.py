"""One action of one virtual IPU, and its text form.

An action only names work. The code, the cost and the time of that work are elsewhere.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache, total_ordering
from typing import NamedTuple

_ACTION = re.compile(r"(0|[1-9][0-9]*)([FRBIWU])(0|[1-9][0-9]*)")


@total_ordering
class Kind(Enum):
    """The kind of an action. Its value is its letter in text, and kinds sort in training order.

    The letters are those of `torch.distributed.pipelining`. A backward is either one action or two:
    the gradients of inputs, which the stage before needs, and the gradients of weights.
    """

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    BACKWARD_INPUTS = "I"
    BACKWARD_WEIGHTS = "W"
    UPDATE = "U"

    @property
    def word(self) -> str:
        """Word for this kind in names of segments and events."""
        return {"I": "backward", "W": "weights"}.get(self.value, self.name.lower())

    def __lt__(self, other: Kind) -> bool:
        """Whether this kind comes before `other` in a training step."""
        return "FRBIWU".index(self.value) < "FRBIWU".index(other.value)

    # Python's default for enums hashes the name, which costs a call each time.
    __hash__ = object.__hash__


class Action(NamedTuple):
    """The `kind` of work done for one `stage` and one `micro_batch`.

    An UPDATE belongs to an IPU, not to a stage and a micro-batch: its `stage` is the index of the
    IPU and its `micro_batch` is 0.
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Returns stage, letter of the kind and micro-batch, such as `2F0`."""
        return f"{self.stage}{self.kind.value}{self.micro_batch}"


# Timelines name each action several times.
@lru_cache(maxsize=8192)
def parse_action(text: str) -> Action:
    """Returns the action that `text` names; the inverse of `str`.

    Raises:
        ValueError: `text` is not the text form of an action.
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not an action: expected a stage, one of F, R, B, I, W and U, and a "
            "micro-batch, such as '2F0'."
        )
    stage, letter, micro_batch = match.groups()
    return Action(Kind(letter), int(stage), int(micro_batch))
