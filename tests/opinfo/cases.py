"""Samples of PyTorch's operator and module databases, each as a `Case`: a call of tensors."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from opinfo.exceptions import WITHOUT_OUT
from support.operator_database import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils import _pytree as pytree

KINDS = ("forward", "gradient", "inplace", "out", "mixed")
NARROW_TYPES = (torch.float16, torch.int32)
SEED = 20


@dataclass
class Case:
    """A call of `function` with `tensors`, whose result contains tensors.

    Attributes:
        name: name of the entry in the database.
        kind: values to compare: results, gradients, or results and a written argument.
        tensors: arguments that are inputs of the model.
        options: keyword arguments that are not tensors.
        module: module with parameters that `function` calls; `None` for an operator.
    """

    name: str
    kind: str
    dtype: torch.dtype
    function: Callable[..., Any]
    tensors: list[torch.Tensor]
    module: torch.nn.Module | None = None
    description: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name} {self.kind} {dtype}: {self.description}"


def names(part: tuple[int, int] = (0, 1)) -> list[str]:
    """Returns the entries of both databases whose hash falls into part (index, count)."""
    index, count = part
    every = [full_name(op) for op in op_db] + [module_name(info) for info in module_db]
    return sorted({name for name in every if zlib.crc32(name.encode()) % count == index})


def full_name(op: Any) -> str:
    """Returns the name of an operator with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def module_name(info: Any) -> str:
    """Returns the class of a module, and whether it is a variant."""
    return f"{info.module_cls.__module__.removeprefix('torch.')}.{info.module_cls.__name__}"


def cases(name: str, kinds: Sequence[str] = KINDS, limit: int | None = None) -> Iterator[Case]:
    """Yields the cases of the entries of this name.

    Args:
        name: one of `names`.
        kinds: kinds of cases to create.
        limit: largest number of cases of one kind and dtype, evenly spread; `None` for all.
    """
    groups = [group for op in op_db if full_name(op) == name for group in _of_operator(op, kinds)]
    for info in module_db:
        if module_name(info) == name:
            groups += _of_module(info, kinds)
    for group in groups:
        yield from _spread(group, limit)


def _spread(group: Iterator[Case], limit: int | None) -> Iterator[Case]:
    if limit is None:
        return group
    every = list(group)
    return iter(every[:: max(1, -(-len(every) // limit))])


def _of_operator(op: Any, kinds: Sequence[str]) -> Iterator[Iterator[Case]]:
    for dtype in (torch.float32, *NARROW_TYPES, torch.complex64):
        if dtype in op.dtypes:
            for kind in _kinds_for(op, dtype, kinds):
                yield _samples(op, kind, dtype)


def _samples(op: Any, kind: str, dtype: torch.dtype) -> Iterator[Case]:
    set_rng_seed(SEED)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=kind == "gradient"):
        case = _case(full_name(op), kind, dtype, _variant(op, kind), sample)
        if kind == "mixed":
            yield from _on_two_devices(case)
            continue
        if dtype.is_complex:
            case = _of_real_pairs(case)
        yield case
        if kind == "out":
            return


def _kinds_for(op: Any, dtype: torch.dtype, kinds: Sequence[str]) -> Iterator[str]:
    is_wide = dtype is torch.float32
    has_gradient = is_wide or dtype.is_complex
    for kind in kinds:
        if kind == "gradient" and not (has_gradient and op.supports_autograd):
            continue
        if kind == "mixed" and not is_wide:
            continue
        if kind == "inplace" and not (is_wide and op.inplace_variant is not None):
            continue
        has_out = op.supports_out and full_name(op) not in WITHOUT_OUT
        if kind == "out" and not (is_wide and has_out):
            continue
        yield kind


def _variant(op: Any, kind: str) -> Callable[..., Any]:
    return op.inplace_variant if kind == "inplace" else op.op


def _case(name: str, kind: str, dtype: torch.dtype, function: Any, sample: Any) -> Case:
    kwargs = {key: value for key, value in sample.kwargs.items() if key != "device"}
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, kwargs))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor, **more: Any) -> Any:
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        first, rest, named = pytree.tree_unflatten(filled, spec)
        return sample.output_process_fn_grad(function(first, *rest, **named, **more))

    tensors = [leaves[position] for position in positions]
    return Case(name, kind, dtype, call, tensors, description=_describe(leaves), options=kwargs)


def _on_two_devices(case: Case) -> Iterator[Case]:
    """Yields cases in which the first tensor, or all others, are on the host."""
    count = len(case.tensors)
    for on_host in (range(1), range(1, count)) if count > 1 else ():

        def call(*given: torch.Tensor, on_host: range = on_host, **more: Any) -> Any:
            rest = iter(given)
            filled = [
                case.tensors[i].detach() if i in on_host else next(rest) for i in range(count)
            ]
            return case.function(*filled, **more)

        tensors = [each for i, each in enumerate(case.tensors) if i not in on_host]
        where = "first tensor on the host" if on_host.start == 0 else "others on the host"
        yield replace(
            case, function=call, tensors=tensors, description=f"{case.description}; {where}"
        )


def _of_real_pairs(case: Case) -> Case:
    """Returns a case whose inputs are pairs of real numbers in place of complex numbers."""
    is_complex = [x.is_complex() and x.layout is torch.strided for x in case.tensors]

    def call(*given: torch.Tensor, **more: Any) -> Any:
        pairs = zip(given, is_complex, strict=True)
        return case.function(*(torch.view_as_complex(v) if c else v for v, c in pairs), **more)

    tensors = [
        torch.view_as_real(v.detach().resolve_conj()).clone().requires_grad_(v.requires_grad)
        if c
        else v
        for v, c in zip(case.tensors, is_complex, strict=True)
    ]
    return replace(case, function=call, tensors=tensors)


def _of_module(info: Any, kinds: Sequence[str]) -> Iterator[Iterator[Case]]:
    for kind in kinds:
        if kind in ("forward", "gradient"):
            for training in (False, True):
                yield _module_samples(info, kind, training)


def _module_samples(info: Any, kind: str, training: bool) -> Iterator[Case]:
    set_rng_seed(SEED)
    for sample in info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
    ):
        yield _module_case(module_name(info), kind, info.module_cls, sample, training)


def _module_case(name: str, kind: str, cls: Any, sample: Any, training: bool) -> Case:
    made = sample.constructor_input
    module = cls(*made.args, **made.kwargs).train(training)
    given = sample.forward_input
    leaves, spec = pytree.tree_flatten((given.args, given.kwargs))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor, module: torch.nn.Module) -> Any:
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return module(*args, **kwargs)

    tensors = [leaves[position] for position in positions]
    description = f"{made.args} {made.kwargs} train={training}; {_describe(leaves)}"
    return Case(name, kind, torch.float32, call, tensors, module, description)


def _describe(leaves: Sequence[Any]) -> str:
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)[:40]
        for leaf in leaves
    )
