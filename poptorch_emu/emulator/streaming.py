"""Iteration over the results of a call while it runs."""

from __future__ import annotations

from typing import Any

from poptorch_emu.emulator.given_values import check_model
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.runtime.stream import ResultStream


def stream(model: PoplarExecutor, *args: Any, max_unread: int = 2, **kwargs: Any) -> ResultStream:
    """Calls `model` and returns an iterator that yields its results as they arrive (exact).

    A result is that of a call with one device iteration. The virtual IPUs pause while
    `max_unread` results wait to be read. Until the stream has ended or is closed, the model cannot
    be used otherwise. Closing it early is safe: the call then runs to its end, and its results
    are dropped. The arguments are copied first, so the next batch may be loaded meanwhile.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`, with `OutputMode.All`.
        args: arguments of a call of the model.
        max_unread: number of results that may wait, at least 1.
        kwargs: arguments of a call of the model by name.

    Raises:
        Error: the output mode is not `All`, or the call raises it; the iterator raises errors
            of the run.
        ValueError: `max_unread` is less than 1.

    Example:
        >>> options = poptorch.Options().deviceIterations(3)
        >>> model = poptorch.inferenceModel(torch.nn.ReLU(), options)
        >>> with emulator.stream(model, torch.arange(-1.0, 2.0)) as results:
        ...     for output in results:
        ...         print(output)
        tensor([0.])
        tensor([0.])
        tensor([1.])
    """
    check_model(model)
    if max_unread < 1:
        raise ValueError(f"max_unread must be at least 1, not {max_unread}.")
    mode = OutputMode(model.options.output_mode)
    if mode is not OutputMode.All:
        raise make_error(
            f"The results of a model with OutputMode.{mode.name} cannot be streamed: a device "
            "iteration may have none. Set poptorch.Options().outputMode(poptorch.OutputMode.All)."
        )
    return model._stream(args, kwargs, max_unread)
