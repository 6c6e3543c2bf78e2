"""Tensors, seeds and copies without values: the error names the reason and a way out."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return x.sum(1) if scale is None else x.sum(1) * scale


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


X = torch.ones(2, 3)
BAD = {
    "meta": (lambda: X.to("meta"), "is on the meta device: it has a shape and no values"),
    "coo": (X.to_sparse, r"has the layout torch.sparse_coo.*to_dense\(\)"),
    "csr": (X.to_sparse_csr, r"has the layout torch.sparse_csr.*to_dense\(\)"),
    "nested": (lambda: torch.nested.nested_tensor([X, X]), "is a nested tensor"),
}


@pytest.mark.filterwarnings("ignore:.*(beta|prototype)")
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_input_without_dense_values_then_refused_and_the_next_call_runs(
    make, message, is_compiled
) -> None:
    model = poptorch.inferenceModel(Sum(), options())
    if is_compiled:
        model(X)
    with pytest.raises(poptorch.Error, match=f"Invalid input tensor: x {message}"):
        model(make())
    assert model(X).tolist() == [3, 3]


def test_named_input_in_a_container_without_values_then_error_names_it() -> None:
    with pytest.raises(poptorch.Error, match="Invalid input tensor: scale is on the meta device"):
        poptorch.inferenceModel(Sum(), options())(X, scale=X.to("meta"))


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
def test_model_without_values_then_refused(wrap) -> None:
    with pytest.raises(poptorch.Error, match="weight is on the meta device"):
        wrap(nn.Linear(3, 3, device="meta"), options())(X)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_type_that_the_device_lacks_then_refused_with_one_that_it_has(dtype) -> None:
    expected = f"input type from pytorch: {dtype}, that of input 0. Please cast to torch.int32"
    with pytest.raises(poptorch.Error, match=expected):
        poptorch.inferenceModel(nn.Identity(), options())(X.to(dtype))


def test_type_that_the_device_lacks_when_made_in_forward_then_refused() -> None:
    class Casts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.uint16)

    with pytest.raises(poptorch.Error, match="`UInt16'.*Please cast to `Int'"):
        poptorch.inferenceModel(Casts(), options())(X)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seed_of_more_than_64_bits_then_value_error(seed: int) -> None:
    with pytest.raises(ValueError, match=r"random_seed must be at (most|least) -?\d{19,20}, not"):
        options().randomSeed(seed)


@pytest.mark.parametrize("seed", [2**64 - 1, 2**63, -(2**63), 0])
def test_seed_of_64_bits_then_runs_and_repeats(seed: int) -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    first, second = (poptorch.inferenceModel(Noise(), options().randomSeed(seed)) for _ in "ab")
    assert torch.equal(first(X), second(X))


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy, copy.copy])
@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
def test_compiled_wrapper_when_pickled_or_copied_then_error_names_save(take, wrap) -> None:
    class Loss(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(super().forward(x), "sum")

    model = wrap(Loss(3, 3), options())
    before = model(X)
    with pytest.raises(TypeError, match=r"Use save\(\) and poptorch.load\(\).*state_dict\(\)"):
        take(model)
    assert torch.isfinite(before).all() and torch.isfinite(model(X)).all()


def test_wrapper_before_compilation_then_pickling_is_refused_and_a_copy_runs() -> None:
    model = poptorch.inferenceModel(Sum(), options())
    with pytest.raises(TypeError, match=r"Use save\(\)"):
        pickle.dumps(model)
    assert copy.deepcopy(model)(X).tolist() == model(X).tolist() == [3, 3]
