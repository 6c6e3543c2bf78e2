"""Computes the metadata of results by running an operation where PyTorch has no rule."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from poptorch_emu.ir.evaluate import run_on_host
from poptorch_emu.torch_versions import UnsupportedOperatorException, disable_current_modes, pytree


def is_unknown(failure: RuntimeError) -> bool:
    """Returns whether an operation failed because it has no rule for fake tensors."""
    is_missing = isinstance(failure, (NotImplementedError, UnsupportedOperatorException))
    return is_missing or str(failure).startswith("There was no fake impl registered")


def infer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """Runs `func` on zeros on the CPU, and returns fake results on `device`.

    This suits operations whose results have shapes that do not depend on data.

    Raises:
        NotImplementedError: the operation has no CPU kernel, or a result is not a dense tensor.
    """
    with disable_current_modes():
        zeros = pytree.tree_map_only(
            torch.Tensor, lambda value: torch.zeros(value.shape, dtype=value.dtype), (args, kwargs)
        )
        results = run_on_host(func, *zeros)

    def to_fake(value: torch.Tensor) -> torch.Tensor:
        if value.layout is not torch.strided:
            raise NotImplementedError(f"a result has layout {value.layout}")
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)

    return pytree.tree_map_only(torch.Tensor, to_fake, results)


@contextmanager
def without_log_of_failures() -> Iterator[None]:
    """Suppresses PyTorch's log of tracebacks of errors that are also raised."""
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def is_told(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("failed while attempting to run meta")

    log.addFilter(is_told)
    try:
        yield
    finally:
        log.removeFilter(is_told)
