"""PyTorch's database of operators without the search of callers' stacks for each sample.

Otherwise PyTorch searches the stack for a test of `unittest`, which takes ten milliseconds a
sample.
"""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

__all__ = ["op_db"]


def _no_test() -> None:
    """Returns the running test of `unittest`, which is none."""


common_utils.extract_test_fn = _no_test
core.extract_test_fn = _no_test
