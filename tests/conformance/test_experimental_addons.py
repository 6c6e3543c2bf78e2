"""`poptorch_experimental_addons`, against plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.small_models import Function, options, run, trained

import poptorch_emu as poptorch
from poptorch_emu.companions import poptorch_experimental_addons as pea
from poptorch_emu.companions.poptorch_experimental_addons import collectives, sharded, sparse

pytestmark = pytest.mark.feature("poptorch_experimental_addons", fidelity="exact")


def gradient_by_model(function: Callable, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Returns gradients of the sum of weighted results, by one step of SGD."""

    def loss(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(weighted(function(*weights)), "none")

    sgd = lambda parameters: poptorch.optim.SGD(parameters, lr=1.0)  # noqa: E731
    after = trained(loss, list(inputs), [(torch.zeros(1),)], optimizer=sgd)
    return [weight - new for weight, new in zip(inputs, after, strict=True)]


def weighted(result: torch.Tensor) -> torch.Tensor:
    return (result.flatten().float() * torch.linspace(-1.0, 2.0, result.numel())).sum()


def plain_gradient(function: Callable, *inputs: torch.Tensor) -> list[torch.Tensor]:
    leaves = [value.clone().requires_grad_() for value in inputs]
    weighted(function(*leaves)).backward()
    return [leaf.grad for leaf in leaves]


def test_names_then_are_those_of_the_package() -> None:
    assert pea.__all__ == [
        "autograd_proxy",
        "distance_matrix",
        "quantise_fpx",
        "quantise_fpx_grad",
        "quantise_fpx_ste",
    ]


@pytest.mark.parametrize("is_model", [False, True])
def test_proxy_then_gets_the_whole_gradient(is_model: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return pea.autograd_proxy(x.round(), 3 * x)

    x = torch.tensor(5.7)
    value = run(lambda x: function(x), x) if is_model else function(x)
    assert value == 6
    gradient = (gradient_by_model if is_model else plain_gradient)(lambda x: 100 * function(x), x)
    torch.testing.assert_close(gradient[0], torch.tensor(-300.0))
    with pytest.raises(ValueError, match=r"shape \(2,\) and a proxy of shape \(3,\)"):
        pea.autograd_proxy(torch.ones(2), torch.ones(3))


def test_binary_units_when_trained_by_torchs_adam_then_infer_after_destroy() -> None:
    def units(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = x @ weight
        y = pea.autograd_proxy(2 * (y > 0).to(y.dtype) - 1, y.tanh())
        return y, poptorch.identity_loss((y - 1).square(), "sum")

    model, x = Function(units, -torch.ones(3, 2)), torch.rand(4, 3) + 0.1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options(), optimizer)
    for _ in range(20):
        training(x)
    training.destroy()
    y, _ = poptorch.inferenceModel(model, options())(x)
    assert torch.equal(y, torch.ones(4, 2))


@pytest.mark.parametrize("is_model", [False, True])
@pytest.mark.parametrize(
    ("dtype", "atol", "rtol"), [("float32", 1e-5, 2e-6), ("float16", 2e-3, 2e-3)]
)
@pytest.mark.parametrize("p", [1, 2])
def test_distances_then_equal_the_norm_of_differences(p, dtype, atol, rtol, is_model) -> None:
    if dtype == "float16" and not is_model:
        pytest.skip("PyTorch has no such distances on the host.")
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(n, 5, generator=generator).to(getattr(torch, dtype)) for n in (10, 30))
    a[0] = b[3]  # Creates a distance of 0, whose gradient is 0.
    found = run(lambda a, b: pea.distance_matrix(a, b, p), a, b)
    if not is_model:
        found = pea.distance_matrix(a, b, p)
    exact = [value.float() for value in (a, b)]
    expected = (exact[0][:, None] - exact[1][None]).norm(p, dim=-1)
    assert found.dtype is a.dtype
    torch.testing.assert_close(found.float(), expected, atol=atol, rtol=rtol)
    if is_model:
        gradients = gradient_by_model(lambda a, b: pea.distance_matrix(a, b, p), a, b)
        plain = plain_gradient(lambda a, b: torch.cdist(a, b, float(p)), *exact)
        for gradient, value in zip(gradients, plain, strict=True):
            tolerance = (
                {"atol": 5e-5, "rtol": 1e-4} if dtype == "float32" else {"atol": 5e-2, "rtol": 2e-2}
            )
            torch.testing.assert_close(gradient.float(), value, **tolerance)


def test_distances_when_they_do_not_fit_then_error() -> None:
    with pytest.raises(NotImplementedError, match="not p=3"):
        pea.distance_matrix(torch.ones(2, 2), torch.ones(2, 2), 3)
    for other in (torch.ones(2), torch.ones(2, 3)):
        with pytest.raises(ValueError, match=r"expected \(M, K\)"):
            pea.distance_matrix(torch.ones(2, 2), other, 1)


def called(function: Callable, x: torch.Tensor, is_model: bool) -> torch.Tensor:
    return run(function, x) if is_model else function(x)


@pytest.mark.parametrize("is_model", [False, True])
def test_formats_then_have_just_these_values(is_model: bool) -> None:
    def rounded(bits: tuple[int, int], x: torch.Tensor) -> torch.Tensor:
        return called(lambda x: pea.quantise_fpx(x, *bits, rounding="nearest"), x, is_model)

    values = {0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3}
    assert set(rounded((2, 1), torch.linspace(-4, 4, 401)).abs().tolist()) == values
    values = {0, 0.125, 0.25, 0.5, 1, 2, 4, 8}
    assert set(rounded((3, 0), torch.linspace(-10, 10, 1001)).abs().tolist()) == values
    assert rounded((2, 1), torch.tensor([0.2])).item() == 0.25
    many = rounded((5, 2), torch.linspace(-1e5, 1e5, 20001))
    assert len(many.unique()) <= 256
    assert (many.min(), many.max()) == (-57344, 57344)


@pytest.mark.parametrize("is_model", [False, True])
def test_stochastic_rounding_then_is_right_on_average(is_model: bool) -> None:
    x = torch.full((10000,), -1.35)
    result = called(lambda x: pea.quantise_fpx(x, 2, 1), x, is_model)
    assert set(result.tolist()) == {-1.0, -1.5}
    share = (result == -1.5).float().mean().item()
    assert abs(share - 0.7) < 3 * math.sqrt(0.7 * 0.3 / 10000)


@pytest.mark.parametrize("is_model", [False, True])
def test_variants_then_have_their_gradients(is_model: bool) -> None:
    x = torch.tensor([0.2, 1.7, -0.9])
    gradient = gradient_by_model if is_model else plain_gradient
    factors = torch.linspace(-1.0, 2.0, 3)
    (ste,) = gradient(lambda x: pea.quantise_fpx_ste(x, 2, 1, "nearest"), x)
    torch.testing.assert_close(ste, factors)
    (rounded,) = gradient(lambda x: 1.2 * pea.quantise_fpx_grad(x, 2, 1, "nearest"), x)
    torch.testing.assert_close(rounded, torch.tensor([-1.0, 0.5, 2.0]))
    assert torch.equal(called(lambda x: pea.quantise_fpx_grad(x, 2, 1), x, is_model), x)
    (stopped,) = gradient(lambda x: pea.quantise_fpx(x, 2, 1, "nearest") + 0 * x, x)
    assert not stopped.any()


@pytest.mark.parametrize(
    ("bits", "rounding", "message"),
    [
        ((9, 1), "nearest", "exponent_bits=9"),
        ((2, 24), "nearest", "mantissa_bits=24"),
        ((2, 1), "up", "'up'"),
    ],
)
def test_format_that_does_not_exist_then_error(bits, rounding, message) -> None:
    with pytest.raises(ValueError, match=message):
        pea.quantise_fpx(torch.ones(1), *bits, rounding=rounding)
    with pytest.raises(ValueError, match=message):
        run(lambda x: pea.quantise_fpx(x, *bits, rounding=rounding), torch.ones(1))


@pytest.mark.parametrize(
    ("bits", "message"), [((6, 1), "exponent_bits=6"), ((2, 11), "mantissa_bits=11")]
)
def test_format_that_half_precision_does_not_hold_then_only_the_host_has_it(bits, message) -> None:
    pea.quantise_fpx(torch.ones(1), *bits)
    with pytest.raises(ValueError, match=message):
        run(lambda x: pea.quantise_fpx(x, *bits), torch.ones(1))


X = torch.randn(2, 3)
EXCHANGES = {
    "gather": (lambda x: collectives.all_gather_cross_replica(x, 1), lambda x: x[None]),
    "identical": (
        lambda x: collectives.all_gather_cross_replica_identical_grads_in(x, 1),
        lambda x: x[None],
    ),
    "reduce": (lambda x: collectives.all_reduce_cross_replica_sum(x, 1), lambda x: x),
    "reduce gradients": (
        lambda x: collectives.all_reduce_cross_replica_sum(x, 1, insert_in_grad_graph=True),
        lambda x: x,
    ),
    "all to all": (lambda x: collectives.all_to_all_single_cross_replica(x, 1), lambda x: x),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange_of_one_replica_then_is_its_own(name: str) -> None:
    function, expected = EXCHANGES[name]
    assert torch.equal(run(lambda x: function(x), X), expected(X))
    (gradient,) = gradient_by_model(lambda x: function(x).square(), X)
    torch.testing.assert_close(gradient, plain_gradient(lambda x: expected(x).square(), X)[0])


def test_exchanges_outside_a_trace_then_compute_nothing() -> None:
    gathered = collectives.all_gather_cross_replica(X, 3)
    assert gathered.shape == (3, 2, 3) and not gathered.any()
    assert collectives.all_gather_cross_replica(torch.tensor(1.0), 4).shape == (4,)
    assert collectives.all_reduce_cross_replica_sum(X, 3) is X
    assert collectives.all_to_all_single_cross_replica(X, 2) is X
    with pytest.raises(ValueError, match="multiple of replication_factor=3"):
        collectives.all_to_all_single_cross_replica(X, 3)


def test_sharded_products_of_one_replica_then_are_products() -> None:
    x, y = torch.randn(6, 4), torch.randn(4, 8)
    for function in (
        lambda x, y: sharded.rowcolrow_sharded_matmul(x, y, 1, num_chunks=2),
        lambda x, y: sharded.repcolcol_sharded_matmul(x, y, 1),
        lambda x, y: sharded.colrowrep_sharded_matmul(x, y, 1),
    ):
        torch.testing.assert_close(run(lambda x, y, f=function: f(x, y), x, y), x @ y)
        found = gradient_by_model(function, x, y)
        torch.testing.assert_close(found, plain_gradient(torch.matmul, x, y))
    with pytest.raises(ValueError, match="num_chunks=3 does not divide"):
        sharded.rowcolrow_sharded_matmul(x, y, 1, num_chunks=3)
    with pytest.raises(ValueError, match=r"expected \(m, K\)"):
        sharded.colrowrep_sharded_matmul(x, x, 1)


def blocks(size: int, shape: tuple[int, int], density: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    keep = torch.rand(shape, generator=generator) < density
    keep[0, 0] = True
    indices = keep.nonzero().T
    values = torch.randn(indices.size(1), size, size, generator=generator)
    whole = (*shape, size, size)
    return torch.sparse_coo_tensor(indices, values, whole, check_invariants=True).coalesce()


SPARSE = [
    (1, (3, 5), 7, 0.4, torch.float32),
    (4, (12, 10), 8, 0.2, torch.float32),
    (4, (12, 10), 8, 0.2, torch.float16),
    (1, (128, 128), 1, 0.01, torch.float32),
]


@pytest.mark.parametrize("is_model", [False, True])
@pytest.mark.parametrize(("size", "shape", "batch", "density", "dtype"), SPARSE)
def test_sparse_product_then_equals_the_dense_one(size, shape, batch, density, dtype, is_model):
    matrix = blocks(size, shape, density).to(dtype)
    dense, static = sparse.block_coo_to_dense(matrix).float(), sparse.StaticSparseMatrix(matrix)
    atol = 1e-5 if dtype is torch.float32 else 1e-2
    right = torch.randn(dense.size(1), batch).to(dtype)
    left = torch.randn(batch, dense.size(0)).to(dtype)
    if not is_model and dtype is torch.float16:
        right, left = right.float(), left.float()
    found = called(lambda x: static @ x, right, is_model)
    torch.testing.assert_close(found.float(), dense @ right.float(), atol=atol, rtol=1e-3)
    found = called(lambda x: x @ static, left, is_model)
    torch.testing.assert_close(found.float(), left.float() @ dense, atol=atol, rtol=1e-3)
    other = sparse.block_coo_transpose(matrix)
    assert torch.equal(sparse.block_coo_to_dense(other).float(), dense.T)


def test_sparse_product_when_trained_then_dense_has_its_gradient() -> None:
    matrix = blocks(2, (3, 4), 0.5)
    (found,) = gradient_by_model(
        lambda x: sparse.block_coo_spmm(matrix, x, "sparse_dense"), torch.randn(8, 3)
    )
    dense = sparse.block_coo_to_dense(matrix)
    expected = plain_gradient(lambda x: dense @ x, torch.randn(8, 3))[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_oblong_blocks_then_only_the_plain_product_takes_them() -> None:
    places, values = [[0, 1], [1, 0]], torch.randn(2, 2, 3)
    matrix = torch.sparse_coo_tensor(places, values, (2, 2, 2, 3), check_invariants=True)
    x, dense = torch.randn(6, 2), sparse.block_coo_to_dense(matrix)
    torch.testing.assert_close(sparse.block_coo_spmm_gs(matrix, x, "sparse_dense"), dense @ x)
    left = torch.randn(2, 4)
    torch.testing.assert_close(sparse.block_coo_spmm_gs(matrix, left, "dense_sparse"), left @ dense)
    with pytest.raises(ValueError, match="2 by 3; expected square blocks"):
        sparse.block_coo_spmm_ipu(matrix, x, "sparse_dense")


def test_sparse_layers_in_a_loop_then_equal_dense_ones() -> None:
    first, second = (sparse.StaticSparseLinear(blocks(2, (4, 4), 0.3)) for _ in range(2))
    weights = [sparse.block_coo_to_dense(layer.weight.matrix) for layer in (first, second)]
    assert not list(first.parameters())

    def turn(x: torch.Tensor) -> list[torch.Tensor]:
        return [second(first(x).relu())]

    x = torch.rand(3, 8)
    found = run(lambda x: poptorch.for_loop(3, turn, [x])[0], x)
    for _ in range(3):
        x = (x @ weights[0].T).relu() @ weights[1].T
    torch.testing.assert_close(found, x, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("ord", [2, "fro", 1])
def test_pruning_then_keeps_the_blocks_of_largest_norm(ord, dtype) -> None:
    matrix = torch.randn(8, 12).to(dtype)
    pruned = sparse.magnitude_prune(matrix, 4, 0.5, ord)
    assert pruned.shape == (2, 3, 4, 4) and pruned.dtype is dtype and pruned.is_coalesced()
    norms = {
        (row, col): torch.linalg.norm(
            matrix[4 * row : 4 * row + 4, 4 * col : 4 * col + 4].float(), ord=ord
        )
        for row in range(2)
        for col in range(3)
    }
    largest = sorted(norms, key=norms.get)[-3:]
    assert sorted(map(tuple, pruned.indices().T.tolist())) == sorted(largest)
    dense = sparse.block_coo_to_dense(pruned)
    for row, col in largest:
        part = (slice(4 * row, 4 * row + 4), slice(4 * col, 4 * col + 4))
        assert torch.equal(dense[part], matrix[part])
    with pytest.raises(ValueError, match="no blocks of 5 by 5"):
        sparse.magnitude_prune(matrix, 5, 0.5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: sparse.block_coo_spmm(m, x, "sparse"), "mode='sparse'"),
        (lambda m, x: sparse.block_coo_spmm(m.to_dense(), x, "sparse_dense"), "two sparse axes"),
        (lambda m, x: sparse.block_coo_spmm(m, x[0], "sparse_dense"), "expected 8 rows"),
        (lambda m, x: sparse.block_coo_spmm_ipu(m, x, "dense_sparse"), "expected 6 columns"),
        (lambda m, x: sparse.block_coo_transpose(x), "two sparse axes"),
        (lambda m, x: sparse.block_coo_to_dense(x), "as many sparse axes as dense"),
    ],
)
def test_sparse_product_when_it_does_not_fit_then_error(function, message) -> None:
    with pytest.raises(ValueError, match=message):
        function(blocks(2, (3, 4), 0.5), torch.randn(8, 3))
