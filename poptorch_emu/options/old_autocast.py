"""`poptorch.autocast` and `poptorch.autocasting` of PopTorch 2, which cast inputs of operations.

PopTorch 3 has no such names; programs that still use them find them here. A policy lists the
functions and modules that are cast to each dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator
from contextvars import Token
from typing import Any, Final

from poptorch_emu.config import CastRule
from poptorch_emu.errors import require
from poptorch_emu.trace.operators.loss_functions import LOSS_FUNCTIONS
from poptorch_emu.trace.pytorch.autocast import is_open

Operation = str | type | Callable[..., Any]

# The lists of the reference are not published. These lists follow the range of float16: products
# are summed in float32 in any case, but sums of many terms and exponentials overflow.
_FP16: Final = """
linear bilinear matmul mm bmm mv addmm addmv addbmm baddbmm einsum tensordot chain_matmul
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
scaled_dot_product_attention multi_head_attention_forward
lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
""".split()
_FP32: Final = (
    """
softmax log_softmax softmin gumbel_softmax logsumexp
batch_norm group_norm instance_norm layer_norm rms_norm local_response_norm normalize
norm cosine_similarity pairwise_distance exp expm1 log log2 log10 log1p pow cumsum cumprod prod
gaussian_nll_loss huber_loss multi_margin_loss multilabel_margin_loss
triplet_margin_with_distance_loss
""".split()
    + sorted(function.__name__ for function in LOSS_FUNCTIONS)
)
_PROMOTE: Final = """
add sub mul div addcdiv addcmul atan2 cat cross dot lerp maximum minimum stack where
""".split()


class autocast(ContextDecorator):  # noqa: N801
    """Casts the inputs of operations in a region of `forward` (exact except for defaults).

    A context manager, and a decorator for functions. Regions nest, and `autocast(False)` suspends
    the region around it. Outside a trace it does nothing. `Options.Precision.autocastPolicy` sets
    the dtype of each operation. The default policy of PopTorch 2 is not published: ours computes
    matrix products, convolutions and linear layers in float16, losses, softmax and normalisation
    in float32, and elementwise operations of mixed dtypes in float32.
    """

    def __init__(self, enabled: bool = True) -> None:
        """Stores whether operations in the region are cast."""
        require(isinstance(enabled, bool), f"enabled must be a bool, not {enabled!r}.")
        self._enabled = enabled
        self._tokens: list[Token[bool]] = []

    def __repr__(self) -> str:
        """Returns the expression that creates the value."""
        return f"autocast({self._enabled})"

    def __enter__(self) -> None:
        """Opens the region."""
        self._tokens.append(is_open.set(self._enabled))

    def __exit__(self, *failure: Any) -> None:
        """Closes the region."""
        is_open.reset(self._tokens.pop())


class Policy:
    """The dtype of each operation in a region of `autocast` (exact except for defaults).

    A function is identified by its bare name, so `torch.add`, `torch.Tensor.add` and `+` are the
    same. A module class stands for all operations inside such a module. In-place operations cast
    nothing.
    """

    def __init__(
        self,
        fp16: Iterable[Operation] | None = None,
        fp32: Iterable[Operation] | None = None,
        promote: Iterable[Operation] | None = None,
        demote: Iterable[Operation] | None = None,
    ) -> None:
        """Creates a policy from four lists of functions, module classes, or their names.

        Args:
            fp16: operations whose floating-point arguments become float16.
            fp32: operations whose floating-point arguments become float32.
            promote: operations whose arguments take the widest floating dtype among them.
            demote: operations whose arguments take the narrowest floating dtype among them.
                Each list defaults to that of the default policy.

        Raises:
            ValueError: an operation is in two lists, or an entry is not an operation.
        """
        given = dict(zip(CastRule, (fp16, fp32, promote, demote), strict=True))
        rules: dict[str, CastRule] = {}
        for rule, operations in given.items():
            for operation in operations or ():
                name = _name_of(operation)
                if rules.setdefault(name, rule) is not rule:
                    raise ValueError(
                        f"{name} is in the lists {rules[name].value} and {rule.value} of a policy. "
                        "Leave it in one of them."
                    )
        defaults = {
            name: rule
            for rule, names in zip(CastRule, (_FP16, _FP32, _PROMOTE, ()), strict=True)
            for name in names
            if given[rule] is None
        }
        self._rules = {**defaults, **rules}

    def __repr__(self) -> str:
        """Returns the four lists as text."""
        lists = (
            f"{rule.value}={[name for name, own in self._rules.items() if own is rule]}"
            for rule in CastRule
        )
        return f"Policy({', '.join(lists)})"

    @property
    def rules(self) -> Mapping[str, CastRule]:
        """The rule of each operation, by its bare name."""
        return self._rules


def _name_of(operation: Operation) -> str:
    if isinstance(operation, str):
        return operation.rpartition(".")[2]
    name = getattr(operation, "__name__", None)
    if name is None:
        raise ValueError(
            f"A policy lists functions of torch, classes of modules, or their names, not "
            f"{operation!r}."
        )
    return str(name)
