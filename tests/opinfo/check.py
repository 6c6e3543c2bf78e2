"""Runs one case on the virtual IPU and in eager PyTorch on the CPU, and compares the results."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from opinfo.cases import Case
from opinfo.exceptions import difference_of, is_comparable, refusal_of
from torch.utils import _pytree as pytree

import poptorch_emu as poptorch

NARROW = {
    torch.float64: torch.float32,
    torch.int64: torch.int32,
    torch.complex128: torch.complex64,
}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case: passed, refused, failed, or skipped because eager PyTorch refuses it."""

    name: str
    status: str
    case: str
    detail: str = ""
    seconds: float = 0.0


class IncomparableError(Exception):
    """Raised if a case has nothing to compare."""


class Inference(torch.nn.Module):
    """Calls the function of a case with its inputs."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case
        self.module = copy.deepcopy(case.module)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return _call(self._case, self.module, tensors)


class Training(torch.nn.Module):
    """Calls a case whose differentiable tensors are parameters; the loss weights each result."""

    def __init__(self, case: Case, weights: list[torch.Tensor | None]) -> None:
        super().__init__()
        self._case = case
        self.module = copy.deepcopy(case.module)
        self._is_parameter = [_is_differentiated(case, tensor) for tensor in case.tensors]
        self.leaves = torch.nn.ParameterList(
            torch.nn.Parameter(_copy(tensor))
            for tensor, is_parameter in zip(case.tensors, self._is_parameter, strict=True)
            if is_parameter
        )
        for index, weight in enumerate(weights):
            self.register_buffer(f"weight{index}", weight)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        leaves, others = iter(self.leaves), iter(inputs)
        tensors = [next(leaves if is_leaf else others) for is_leaf in self._is_parameter]
        outputs = _tensors(_call(self._case, self.module, tensors))
        terms = [
            (_real(value) * weight).sum()
            for index, value in enumerate(outputs)
            if (weight := getattr(self, f"weight{index}")) is not None
        ]
        return poptorch.identity_loss(sum(terms), "none")


def check(case: Case) -> Outcome:
    """Returns the outcome of `case`."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status, detail = _check(case)
    except IncomparableError as cause:
        status, detail = "skipped", str(cause)
    return Outcome(case.name, status, str(case), detail, time.perf_counter() - start)


def _check(case: Case) -> tuple[str, str]:
    try:
        expected = _eager(case)
    except IncomparableError:
        raise
    except Exception as cause:
        raise IncomparableError(f"eager PyTorch: {cause}") from cause
    if case.kind == "out":
        expected = _eager_out(case, expected)
    try:
        actual = _emulated(case, expected)
    except poptorch.Error as error:
        reason = refusal_of(case.name, str(error))
        return ("refused", reason) if reason else ("failed", f"Error: {error}")
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    try:
        _compare(case, actual, expected)
    except (AssertionError, RuntimeError) as error:
        reason = difference_of(case.name, str(error))
        return ("refused", reason) if reason else ("failed", str(error))
    return "passed", ""


def _eager(case: Case) -> list[Any]:
    """Returns the expected values: results and written inputs, or gradients."""
    if case.kind == "gradient":
        return _eager_gradients(case)
    torch.manual_seed(0)
    inputs = [_copy(tensor).contiguous() for tensor in case.tensors]
    if _is_half_convolution(case):
        outputs = Inference(case)(*(tensor.float() for tensor in inputs))
        return [value.half() for value in pytree.tree_leaves(outputs)]
    outputs = pytree.tree_leaves(Inference(case)(*inputs))
    if case.kind != "inplace":
        return outputs
    shapes = [tensor.shape for tensor in case.tensors]
    if [tensor.shape for tensor in inputs] != shapes:
        raise IncomparableError("changes the shape of an input")
    return [*outputs, *inputs]


def _is_half_convolution(case: Case) -> bool:
    """Returns whether eager PyTorch may round partial sums, as its transposed 3-D kernel does.

    The test then expects the exact result, rounded once.
    """
    is_half = all(tensor.dtype is torch.float16 for tensor in case.tensors)
    return case.name.startswith("nn.functional.conv") and case.kind == "forward" and is_half


def _eager_out(case: Case, results: list[Any]) -> list[Any]:
    """Returns the tensors that eager PyTorch writes to `out`, if `out` has the form of `results`.

    They may be more than `results`, because PyTorch's test suite takes absolute values of some.

    Raises:
        IncomparableError: eager PyTorch does not accept such tensors as `out`.
    """
    try:
        return list(_WithOut(case, results)(*(_copy(tensor) for tensor in case.tensors)))
    except Exception as cause:
        raise IncomparableError(f"eager PyTorch: {cause}") from cause


def _emulated(case: Case, expected: list[Any]) -> list[Any]:
    if case.kind == "gradient":
        return _emulated_gradients(case)
    inputs = [_copy(tensor) for tensor in case.tensors]
    module = _WithOut(case, expected) if case.kind == "out" else Inference(case)
    model = poptorch.inferenceModel(module, _options())
    outputs = pytree.tree_leaves(model(*inputs))
    return [*outputs, *inputs] if case.kind == "inplace" else outputs


class _WithOut(Inference):
    """Passes tensors to the function, to which it writes its results."""

    def __init__(self, case: Case, expected: list[Any]) -> None:
        super().__init__(case)
        self._types = [(list(value.shape), value.dtype) for value in expected]

    def forward(self, *tensors: torch.Tensor) -> Any:
        out = tuple(torch.empty(shape, dtype=dtype) for shape, dtype in self._types)
        self._case.function(*tensors, out=out[0] if len(out) == 1 else out)
        return out


def _eager_gradients(case: Case) -> list[Any]:
    if not is_comparable(case.name, case.options, case.description):
        raise IncomparableError("random: its gradient depends on the numbers drawn")
    model = Training(case, _weights(case))
    loss = model(*_inputs(case))
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        value.detach() - (0 if gradient is None else gradient)
        for value, gradient in zip(parameters, gradients, strict=True)
    ]


def _emulated_gradients(case: Case) -> list[Any]:
    model = Training(case, _weights(case))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    training = poptorch.trainingModel(model, _options(), optimizer)
    training(*_inputs(case))
    training.destroy()
    return [parameter.detach() for parameter in model.parameters()]


def _weights(case: Case) -> list[torch.Tensor | None]:
    """Returns a fixed random weight for each differentiable result."""
    probe = copy.deepcopy(case.module)
    tensors = [_leaf(case, tensor) for tensor in case.tensors]
    torch.manual_seed(0)
    outputs = _tensors(_call(case, probe, tensors))
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(_real(value).shape, generator=generator) if value.requires_grad else None
        for value in outputs
    ]
    if not any(weight is not None for weight in weights):
        raise IncomparableError("no result has a gradient")
    return weights


def _leaf(case: Case, tensor: torch.Tensor) -> torch.Tensor:
    return _copy(tensor).requires_grad_(_is_differentiated(case, tensor))


def _inputs(case: Case) -> list[torch.Tensor]:
    return [_copy(tensor) for tensor in case.tensors if not _is_differentiated(case, tensor)]


def _is_differentiated(case: Case, tensor: torch.Tensor) -> bool:
    return tensor.requires_grad if case.module is None else False


def _call(case: Case, module: torch.nn.Module | None, tensors: Any) -> Any:
    return case.function(*tensors) if module is None else case.function(*tensors, module=module)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value) if value.is_complex() else value


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _options() -> poptorch.Options:
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    return options


def _compare(case: Case, actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs, f"result {index} is {ours}, expected {theirs}"
            continue
        is_written = case.kind == "inplace" and index >= len(expected) - len(case.tensors)
        is_written |= case.kind == "gradient"
        dtype = theirs.dtype if is_written else NARROW.get(theirs.dtype, theirs.dtype)
        assert type(ours) in (torch.Tensor, torch.nn.Parameter), f"result {index} is a {type(ours)}"
        assert ours.dtype == dtype, f"result {index} has {ours.dtype}, expected {dtype}"
        assert ours.shape == theirs.shape, (
            f"result {index} has shape {list(ours.shape)}, expected {list(theirs.shape)}"
        )
        if is_comparable(case.name, case.options, case.description):
            _compare_values(index, ours, theirs.to(dtype), case)


def _compare_values(index: int, ours: torch.Tensor, theirs: torch.Tensor, case: Case) -> None:
    tolerance = {}
    if theirs.dtype is torch.float16:
        tolerance = {"rtol": 5e-3, "atol": 5e-3}
    elif case.dtype.is_complex:
        tolerance = {"rtol": 1e-4, "atol": 1e-4}
    elif theirs.is_floating_point() or theirs.is_complex():
        tolerance = {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(
        ours, theirs, equal_nan=True, msg=lambda text: f"result {index}: {text}", **tolerance
    )
