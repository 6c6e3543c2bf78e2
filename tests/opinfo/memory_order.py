"""Compares assumptions about memory order with PyTorch's kernels: part of `make test-ops`.

Each operator that the databases' entries reach is called with arguments in several memory orders.
The result must have the strides that a captured value would have, and the operator that the engine
calls must return the same values for every order.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from opinfo.cases import Case, cases, names
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch_emu.engine.instruction import target_of
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.recording.recorder import IPU

aten = torch.ops.aten

# Operators that are not compared, with the reason.
LEFT_OUT = {
    aten._linalg_check_errors.default: "it accepts only the codes that a factorisation returns",
}
# Operators whose strides are not compared, with the reason.
STRIDES_DIFFER = {
    aten._embedding_bag.default: "results that nobody reads have other shapes",
    aten.mkldnn_rnn_layer.default: "its workspace has another shape",
    aten._ctc_loss.default: "its workspace is laid out by the kernel",
    aten._ctc_loss.Tensor: "its workspace is laid out by the kernel",
}
# Operators whose values depend on memory order by definition, as in `passes/memory_order.py`.
READS_MEMORY = {
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
    aten._reshape_alias.default,
    aten._linalg_det.default,
    aten._linalg_slogdet.default,
}
# PyTorch's kernels that read outside of their arguments in some orders; only the engine's run.
UNSAFE = {aten.native_group_norm_backward.default}
_MOST_ELEMENTS = 20_000
_KINDS = ("forward", "gradient")
# Orders of an argument's dimensions: channels last, reversed, and the last one outermost.
_ORDERS: Mapping[str, Any] = {
    "channels last": lambda n: [0, *range(2, n), 1],
    "reversed": lambda n: range(n - 1, -1, -1),
    "last first": lambda n: [n - 1, *range(n - 1)],
}


class Compared(TorchDispatchMode):
    """Compares each operator that runs, once for all arguments of equal form."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self._known: set[str] = set()
        self._memo = ResultMemo(IPU)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_comparable(func, args, kwargs):
            key = f"{func} {pytree.tree_map_only(torch.Tensor, _form, (args, kwargs))}"
            if key not in self._known:
                self._known.add(key)
                self._compare(func, args, kwargs)
        return func(*args, **kwargs)

    def _compare(self, func: Any, args: Any, kwargs: Any) -> None:
        for order, given in _orders(args, kwargs):
            try:
                result = None if func in UNSAFE else func(*given[0], **given[1])
            except RuntimeError:
                result = None  # PyTorch's kernel refuses this order; the engine must accept it.
            if result is not None and func not in STRIDES_DIFFER:
                self._compare_strides(func, given, result, order)
            if func not in READS_MEMORY:
                self._compare_values(func, given, order)

    def _compare_strides(self, func: Any, given: Any, result: Any, order: str) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: _fake(mode, x), given)
        try:
            with mode:
                assumed = self._memo.run(func, args, kwargs)
        except Exception:  # A capture refuses operations that fakes do not support.
            return
        expected, actual = _strides(assumed, like=result), _strides(result, like=assumed)
        if expected != actual:
            self.faults.append(
                f"{func}, {order}: strides {expected} are assumed, the kernel returns {actual}; "
                f"{_shapes(given)}"
            )

    def _compare_values(self, func: Any, given: Any, order: str) -> None:
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, given)
        try:
            expected = func(*args, **kwargs)
        except RuntimeError:
            return
        try:
            actual = target_of(func)(*given[0], **given[1])
        except RuntimeError as error:
            self.faults.append(f"{func}, {order}: {str(error).splitlines()[0]}; {_shapes(given)}")
            return
        if not _are_close(func, actual, expected):
            self.faults.append(f"{func}, {order}: other values; {_shapes(given)}")


def _is_comparable(func: Any, args: Any, kwargs: Any) -> bool:
    tensors = _tensors((args, kwargs))
    is_pure = not func._schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags
    if func in LEFT_OUT:
        return False
    is_made = not func.name().startswith(("aten::empty", "aten::new_empty"))
    are_dense = all(
        x.layout is torch.strided and x.numel() <= _MOST_ELEMENTS and x.numel() > 0 for x in tensors
    )
    return func.namespace == "aten" and is_pure and is_made and are_dense and bool(tensors)


def _orders(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yields the arguments in other memory orders: all of them, and each one alone."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.dim() > 1]
    groups = [places, *([place] for place in places if len(places) > 1)] if places else []
    for name, order in _ORDERS.items():
        for group in groups:
            laid = list(leaves)
            for place in group:
                laid[place] = in_order(leaves[place], list(order(leaves[place].dim())))
            yield f"arguments {group} {name}", pytree.tree_unflatten(laid, spec)


def in_order(value: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Returns a tensor with the same elements whose dimensions have another memory order."""
    back = [order.index(dim) for dim in range(len(order))]
    return value.detach().permute(order).contiguous().permute(back)


def _fake(mode: FakeTensorMode, value: torch.Tensor) -> FakeTensor:
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(mode, like, IPU)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _form(value: torch.Tensor) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _shapes(given: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda x: list(x.shape), given)


def _strides(result: Any, like: Any) -> list[list[int]]:
    """Returns strides; where a dimension has one element, any will do.

    Results whose shape is not that in `like` are left out: nobody reads them, as the saved
    statistics of a batch norm in evaluation.
    """
    return [
        [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]
        for x, y in zip(_tensors(result), _tensors(like), strict=True)
        if x.shape == y.shape
    ]


def _are_close(func: Any, actual: Any, expected: Any) -> bool:
    pairs = list(zip(_tensors(actual), _tensors(expected), strict=True))
    if func in STRIDES_DIFFER:
        pairs = pairs[:1]
    return all(
        x.layout is not torch.strided
        or (x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True))
        for x, y in pairs
    )


def faults_of(name: str, compared: Compared, limit: int | None = None) -> list[str]:
    """Returns messages about the operators that an entry of the databases reaches."""
    start = len(compared.faults)
    for case in cases(name, _KINDS, limit):
        if case.dtype is torch.float32:
            _run(case, compared)
    return compared.faults[start:]


def _run(case: Case, compared: Compared) -> None:
    is_gradient = case.kind == "gradient"
    tensors = [x.detach().requires_grad_(is_gradient and x.requires_grad) for x in case.tensors]
    module = {} if case.module is None else {"module": case.module}
    with compared, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = _tensors(case.function(*tensors, **module))
            sums = [x.abs().square().sum() for x in results if x.requires_grad]
            if sums:
                sum(sums).backward()  # type: ignore[union-attr]
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError):
            pass  # Eager PyTorch refuses the case.


def main() -> int:
    """Prints messages about all entries or the named ones; returns 1 if there are any."""
    compared, found = Compared(), defaultdict(list)
    for name in sys.argv[1:] or names():
        for fault in faults_of(name, compared):
            found[fault.partition(",")[0]].append(fault)
    for operator, faults in sorted(found.items()):
        print(f"{operator}: {len(faults)}\n    " + "\n    ".join(faults[:3]))
    print(f"{len(found)} operators with faults")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
