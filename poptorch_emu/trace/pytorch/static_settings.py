"""Settings of PyTorch that hold during a trace and are restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch.nn.modules import transformer
from torch.overrides import handle_torch_function

from poptorch_emu.errors import compiler_error
from poptorch_emu.torch_versions import (
    MakefxTracer,
    cond_module,
    is_torch_function_mode_enabled,
    validates_distributions,
)
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.pytorch import host_draws
from poptorch_emu.trace.pytorch.patches import once_imported, patched
from poptorch_emu.troubleshooting import Topic


@contextmanager
def static_settings() -> Iterator[None]:
    """Prevents PyTorch from reading values, which a trace does not have, and from compiling."""
    with ExitStack() as stack:
        stack.enter_context(_unchecked_distributions())
        # The layers of `torch.nn.Transformer` would read the values of a mask.
        stack.enter_context(patched(transformer, _detect_is_causal_mask=_is_causal))
        stack.enter_context(_uncompiled())
        stack.enter_context(host_draws.undecided())
        stack.enter_context(_visible_range())
        # `torch.cond` accepts nested operands, which Dynamo would flatten.
        stack.enter_context(patched(cond_module, validate_subgraph_args_types=lambda *_: None))
        stack.enter_context(_unchecked_gradients())
        stack.enter_context(patched(MakefxTracer, trace=_refuse_graph))
        yield


def _refuse_graph(*_: Any) -> NoReturn:
    """Raises for a graph captured within the trace, because it would store fake values.

    Raises:
        Error: always.
    """
    raise compiler_error(
        f"A graph is made at {user_source()} (make_fx, torch.func.linearize, torch.export) of "
        "tensors that have no values while forward is captured. Call the function itself; in "
        f"place of linearize use torch.func.jvp; {Topic.UNSUPPORTED_OPERATOR}"
    )


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Disables the checks of parameters and samples in `torch.distributions`."""
    was_checked = validates_distributions()
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(was_checked)


def _is_causal(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Returns the user's setting; detecting a causal mask would only select a faster kernel."""
    return is_causal is True


@contextmanager
def _unchecked_gradients() -> Iterator[None]:
    """Keeps autograd's anomaly mode without its check of values; `forward` may also set it."""
    checks_nan = torch.is_anomaly_check_nan_enabled()
    set_anomaly_enabled = torch.set_anomaly_enabled

    def set_unchecked(enabled: bool, check_nan: bool = True) -> None:
        nonlocal checks_nan
        checks_nan = check_nan
        set_anomaly_enabled(enabled, False)

    set_anomaly_enabled(torch.is_anomaly_enabled(), False)
    try:
        with patched(
            torch,
            set_anomaly_enabled=set_unchecked,
            is_anomaly_check_nan_enabled=lambda: checks_nan,
        ):
            yield
    finally:
        set_anomaly_enabled(torch.is_anomaly_enabled(), checks_nan)


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Runs functions from `torch.compile` uncompiled, because the device has its own compiler."""
    with ExitStack() as stack:

        def force_eager() -> None:
            stack.enter_context(torch.compiler.set_stance("force_eager"))

        # Dynamo is slow to import, and without it nothing is compiled.
        with once_imported("torch._dynamo", force_eager):
            yield


@contextmanager
def _visible_range() -> Iterator[None]:
    """Makes calls of `torch.range` visible to function modes; PyTorch's binding bypasses them."""
    original = torch.range

    def visible_range(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not is_torch_function_mode_enabled():
            return original(*args, **kwargs)
        result: torch.Tensor = handle_torch_function(original, (), *args, **kwargs)
        return result

    with patched(torch, range=visible_range):
        yield
