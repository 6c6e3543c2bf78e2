"""Changes that `import poptorch` makes to the process, apart from defining names."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from typing import Any

import torch
from tqdm import tqdm

from poptorch_emu.executor.args_parser import registerGeometricCustomArgParsers
from poptorch_emu.log import install_excepthook, logger
from poptorch_emu.torch_versions import tensor_str

_print_any = tensor_str._str_intern


def apply() -> None:
    """Makes the changes that PopTorch documents for its import (exact)."""
    os.environ.setdefault("RDMAV_FORK_SAFE", "1")
    _show_stacks_of_crashes()
    install_excepthook()
    tensor_str._str_intern = _print_tensor
    # A lock held by another thread during a fork would never be released in the child.
    tqdm.get_lock().locks = []
    _know_geometric_types()


def _show_stacks_of_crashes() -> None:
    # The process's own stderr, because a notebook or a test runner may have replaced `sys.stderr`.
    stderr = sys.__stderr__
    if stderr is None or stderr.closed:
        return
    if not faulthandler.is_enabled():
        faulthandler.enable(stderr)
    # A process that is ended on purpose shows no stack, except at level DEBUG.
    if logger.isEnabledFor(logging.DEBUG):
        faulthandler.register(signal.SIGTERM, stderr, chain=True)


def _know_geometric_types() -> None:
    try:
        registerGeometricCustomArgParsers()
    except ModuleNotFoundError as cause:
        # The package imports `poptorch`, which is found only after `emulator.install`.
        if cause.name != "poptorch":
            raise


def _print_tensor(inp: torch.Tensor, *, tensor_contents: str | None = None) -> str:
    """Returns the text of a tensor; a tensor on the IPU has a dtype and a shape but no values."""
    if inp.device.type != "ipu":
        return str(_print_any(inp, tensor_contents=tensor_contents))  # type: ignore[no-untyped-call]
    fields: list[Any] = [tensor_contents or "<unavailable>", f"device='{inp.device}'"]
    fields.append(f"size={tuple(inp.shape)}")
    if inp.dtype is not torch.get_default_dtype():
        fields.append(f"dtype={inp.dtype}")
    if inp.grad_fn is not None:
        fields.append(f"grad_fn=<{type(inp.grad_fn).__name__}>")
    elif inp.requires_grad:
        fields.append("requires_grad=True")
    text = f"tensor({', '.join(fields)})"
    return f"Parameter containing:\n{text}" if isinstance(inp, torch.nn.Parameter) else text
