"""PyTorch's database of operators, whose samples come without a look at the callers' stack.

For each sample it would search the stack for a test of `unittest`, which takes ten milliseconds.
"""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

__all__ = ["op_db"]


def _no_test() -> None:
    """Returns the test of `unittest` that runs: none."""


common_utils.extract_test_fn = _no_test
core.extract_test_fn = _no_test
