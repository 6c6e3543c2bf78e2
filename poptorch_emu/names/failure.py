"""The runner's report about a program that failed: the line, PopTorch's rule, and the change."""

from __future__ import annotations

import linecache
import re
import traceback
from inspect import signature
from types import TracebackType

from poptorch_emu import optim
from poptorch_emu.errors import Error
from poptorch_emu.trace.places.source_line import is_users_file, links_of
from poptorch_emu.troubleshooting import Topic, topic_of

# Rule of PopTorch that each mistake violates. Source: its user guide.
_RULES = {
    Topic.MOVED_TO_CPU: "forward runs on the IPU as a whole; only what it returns reaches the "
    "host.",
    Topic.PYTHON_CONTROL_FLOW: "forward is traced once, before tensors have values, so "
    "Python code cannot branch on them.",
    Topic.DATA_DEPENDENT_SHAPE: "A compiled graph has static shapes.",
    Topic.HOST_TENSOR: "Operations of forward take tensors on the IPU: inputs, parameters, "
    "buffers and results of these operations.",
    Topic.HOST_PARAMETER: "Training changes the parameter that is on the IPU, so forward must "
    "read it from its module.",
    Topic.NO_LOSS: "A training model computes its loss in forward and returns it.",
    Topic.SEVERAL_LOSSES: "A training model has one final loss.",
    Topic.REASSIGNED_STATE: "Buffers and parameters are changed in place in forward.",
    Topic.NO_BLOCK: "In a model with blocks, each operation belongs to a block.",
    Topic.BLOCK_NAMES: "An execution strategy names every block of the model.",
    Topic.CHANGED_INPUTS: "A model is compiled once, for the types and shapes of its first call.",
    Topic.BATCH_SIZE: "The options determine the batch size of a call: deviceIterations, "
    "gradientAccumulation and replicationFactor multiply the size of micro-batches.",
    Topic.TOO_FEW_MICRO_BATCHES: "A pipeline needs one micro-batch or more for each of its stages.",
    Topic.NO_FREE_IPU: "A model holds its IPUs until it is detached or destroyed.",
    Topic.TOO_MANY_IPUS: "All IPUs of a model are in one system, and a process can use 64 of "
    "them at most.",
    Topic.POWER_OF_TWO: "A process reserves IPUs in powers of two.",
    Topic.UNSUPPORTED_TYPE: "The device has float32, float16, bool and integers of up to 32 bits.",
    Topic.OUT_OF_MEMORY: "The model's tensors must fit into the memory of its IPUs.",
}
# Python's message about an unknown argument of one of PyTorch's optimisers.
_OF_AN_OPTIMIZER = re.compile(
    r"^(?P<name>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<argument>\w+)'"
)
# Part of PyTorch's own message when code needs the value of a tensor while it is traced.
_COUNTS_BY_A_VALUE = "only integer tensors of a single element"
_RULE_OF_COUNTING = (
    "forward is traced once, before tensors have values, so Python code cannot use them as counts."
)


def is_explained(error: BaseException, trace: TracebackType | None) -> bool:
    """Returns whether an exception is about a mistake that this package knows.

    Args:
        error: the exception.
        trace: traceback of the exception, which begins in the program.
    """
    if isinstance(error, Error) or _change_of_optimizer(error):
        return True
    frames = traceback.extract_tb(trace)
    return isinstance(error, (AssertionError, ValueError, TypeError)) and bool(
        frames and "poptorch_emu" in frames[-1].filename and _is_program(frames[0].filename)
    )


def _change_of_optimizer(error: BaseException) -> str:
    """Returns the change for an argument that only `poptorch.optim` has; "" for other errors."""
    found = _OF_AN_OPTIMIZER.search(str(error)) if isinstance(error, TypeError) else None
    own = getattr(optim, found["name"], None) if found else None
    if found is None or own is None or found["argument"] not in signature(own).parameters:
        return ""
    return f"Write poptorch.optim.{found['name']}: PyTorch's class has no {found['argument']}."


def is_of_forward(trace: TracebackType | None) -> bool:
    """Returns whether an exception came from code of the program that this package called.

    Args:
        trace: traceback of the exception, which begins in the program.
    """
    files = [each.tb_frame.f_code.co_filename for each in links_of(trace)]
    is_ours = [not _is_program(file) and "poptorch_emu" in file for file in files]
    return any(map(_is_program, files[is_ours.index(True) :])) if any(is_ours) else False


def is_of_dataset(error: BaseException) -> bool:
    """Returns whether an exception reports an error of the program's dataset in another process."""
    text = str(error)
    return "In the worker process:" in text or "DataLoader worker process" in text


def without_inner_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback of the program's own frames; the whole traceback if it has none."""
    kept: TracebackType | None = None
    for each in reversed(links_of(trace)):
        if _is_program(each.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept or trace


def drop_inner_causes(error: BaseException) -> None:
    """Removes the cause of an exception if no line of the program is in the cause's traceback."""
    cause = error.__cause__
    if cause is None or not any(
        _is_program(each.tb_frame.f_code.co_filename) for each in links_of(cause.__traceback__)
    ):
        error.__cause__, error.__suppress_context__ = None, True


def explanation(error: BaseException, trace: TracebackType | None) -> str:
    """Returns the line, the rule and the remedy of an explained error, each on its own line.

    Args:
        error: the exception.
        trace: traceback of the exception, with the program's frames only.
    """
    message = error.message if isinstance(error, Error) else str(error)
    lines = [f"In your program: {_place(message, trace)}"]
    lines += [f"The rule: {rule}" for rule in [_rule_of(message)] if rule]
    # A sentence that begins with "Or" belongs to the remedy in the sentence before.
    sentences = re.split(r"(?<=[.!?])\s+(?!Or )(?=[A-Z])", message.strip())
    change = _change_of_optimizer(error) or (sentences[-1] if len(sentences) > 1 else "")
    lines += [f"What to change: {change}"] if change else []
    topic = topic_of(message)
    lines += [f"More: python -m poptorch_emu --explain {topic.value}"] if topic else []
    return "\n".join(lines)


def _rule_of(message: str) -> str:
    """Returns the rule of PopTorch that was broken; "" if none is known."""
    topic = topic_of(message)
    if topic is None:
        return _RULE_OF_COUNTING if _COUNTS_BY_A_VALUE in message else ""
    return _RULES.get(topic, "")


def _place(message: str, trace: TracebackType | None) -> str:
    """Returns the line that the message names, or the innermost line of the program."""
    found = re.search(r"at (\S+):(\d+)", message)
    if found is not None:
        file, number = found[1], int(found[2])
    else:
        last = links_of(trace)[-1:]
        if not last:
            return "(no line is known)"
        file, number = last[0].tb_frame.f_code.co_filename, last[0].tb_lineno
    text = linecache.getline(file, number).strip()
    return f"{file}:{number}" + (f": {text}" if text else "")


def _is_program(file: str) -> bool:
    return is_users_file(file) or file == "<string>"
