"""Products with constant block-sparse matrices, which multiply stored blocks only.

A block-sparse matrix is a `torch.sparse_coo_tensor` with two sparse axes, the row and the column of
a block, and two dense axes, (B, B).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poptorch_emu.companions.poptorch_experimental_addons._impl import addon
from poptorch_emu.ops.named.sparse_products import MODES
from poptorch_emu.trace.places import blocks

__all__ = [
    "StaticSparseLinear",
    "StaticSparseMatrix",
    "block_coo_spmm",
    "block_coo_spmm_gs",
    "block_coo_spmm_ipu",
    "block_coo_to_dense",
    "block_coo_transpose",
    "magnitude_prune",
]


def block_coo_transpose(t: torch.Tensor) -> torch.Tensor:
    """Returns the transpose of a block-sparse matrix (exact).

    Raises:
        ValueError: `t` is not a block-sparse matrix.
    """
    _check_blocks(t)
    t = t.coalesce()
    values = t.values().transpose(1, 2)
    rows, cols, height, width = t.shape
    shape = (cols, rows, width, height)
    return torch.sparse_coo_tensor(
        t.indices().flip(0), values, shape, check_invariants=False
    ).coalesce()


def block_coo_to_dense(t: torch.Tensor) -> torch.Tensor:
    """Returns a block-sparse tensor as a dense one (exact).

    Args:
        t: tensor with equal numbers of sparse and dense axes.

    Returns:
        A tensor whose size on each axis is the number of blocks times the size of a block.

    Raises:
        ValueError: the numbers of sparse and dense axes differ.

    Example:
        >>> from poptorch_emu.companions.poptorch_experimental_addons import sparse
        >>> values, shape = torch.ones(1, 1, 2), (1, 2, 1, 2)
        >>> block = torch.sparse_coo_tensor([[0], [1]], values, shape, check_invariants=True)
        >>> sparse.block_coo_to_dense(block)
        tensor([[0., 0., 1., 1.]])
    """
    if t.layout is not torch.sparse_coo or t.sparse_dim() != t.dense_dim():
        raise ValueError(
            f"block_coo_to_dense was given {_text(t)}; expected a sparse COO tensor with as many "
            "sparse axes as dense ones"
        )
    rank = t.sparse_dim()
    order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    shape = [t.shape[axis] * t.shape[rank + axis] for axis in range(rank)]
    return t.to_dense().permute(order).reshape(shape)


def block_coo_spmm(sparse: torch.Tensor, dense: torch.Tensor, mode: str) -> torch.Tensor:
    """Multiplies a block-sparse and a dense matrix, on the IPU inside a trace (exact).

    Args:
        sparse: block-sparse matrix, which is constant when the model is traced.
        dense: dense matrix.
        mode: "sparse_dense" for `sparse @ dense`, "dense_sparse" for `dense @ sparse`.

    Raises:
        ValueError: a layout, a size or the mode is wrong.
    """
    product = block_coo_spmm_ipu if blocks.is_tracing() else block_coo_spmm_gs
    return product(sparse, dense, mode)


def block_coo_spmm_gs(sparse: torch.Tensor, dense: torch.Tensor, mode: str) -> torch.Tensor:
    """Gathers rows, multiplies blocks, and adds up; blocks need not be square (exact).

    Args:
        sparse: block-sparse matrix.
        dense: dense matrix.
        mode: "sparse_dense" for `sparse @ dense`, "dense_sparse" for `dense @ sparse`.

    Raises:
        ValueError: a layout, a size or the mode is wrong.
    """
    _check(sparse, dense, mode)
    if mode == "dense_sparse":
        return block_coo_spmm_gs(block_coo_transpose(sparse), dense.t(), "sparse_dense").t()
    sparse = sparse.coalesce()
    rows, cols, height, width = sparse.shape
    to, origin = sparse.indices()
    taken = dense.reshape(cols, width, -1).index_select(0, origin)
    products = sparse.values().to(dense.dtype) @ taken
    result = torch.zeros(rows, height, dense.size(1), dtype=dense.dtype, device=dense.device)
    return result.index_add(0, to, products).reshape(rows * height, -1)


def block_coo_spmm_ipu(sparse: torch.Tensor, dense: torch.Tensor, mode: str) -> torch.Tensor:
    """Multiplies by the operator `StaticSparseMatmul`, which sums in float32 (exact).

    Args:
        sparse: matrix of square blocks, which is constant when the model is traced.
        dense: dense matrix.
        mode: "sparse_dense" for `sparse @ dense`, "dense_sparse" for `dense @ sparse`.

    Raises:
        ValueError: a layout, a size or the mode is wrong, or blocks are not square.
    """
    _check(sparse, dense, mode)
    rows, cols, size, width = sparse.shape
    if size != width:
        raise ValueError(f"blocks have shape {size} by {width}; expected square blocks")
    sparse = sparse.coalesce()
    corners = sparse.indices().numpy() * size
    attributes = {
        "mode": mode,
        "n_rows": rows * size,
        "n_cols": cols * size,
        "block_size": size,
        "rows": corners[0].tolist(),
        "cols": corners[1].tolist(),
        "values": sparse.values().float().numpy().flatten().tolist(),
    }
    is_left = mode == "sparse_dense"
    shape = (rows * size, dense.size(1)) if is_left else (dense.size(0), cols * size)
    return addon("StaticSparseMatmul", [dense], dense.new_empty(shape), attributes)


@dataclass
class StaticSparseMatrix:
    """A constant block-sparse matrix that `@` multiplies from either side (exact)."""

    matrix: torch.Tensor

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        """Returns `sparse @ dense`."""
        return block_coo_spmm(self.matrix, dense, "sparse_dense")

    def __rmatmul__(self, dense: torch.Tensor) -> torch.Tensor:
        """Returns `dense @ sparse`."""
        return block_coo_spmm(self.matrix, dense, "dense_sparse")


class StaticSparseLinear(torch.nn.Module):
    """A linear layer without bias whose weight is a constant block-sparse matrix (exact)."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Stores the weight, (out, in) in blocks; it is not a parameter."""
        super().__init__()
        self.weight = StaticSparseMatrix(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of shape (N, out) for an input of shape (N, in)."""
        return (self.weight @ x.T).T


def magnitude_prune(
    matrix: torch.Tensor, block_size: int, density: float, ord: int | float | str = 2
) -> torch.Tensor:
    """Keeps the blocks of a dense matrix that have the largest norms (exact).

    Args:
        matrix: dense matrix whose sizes are multiples of `block_size`.
        block_size: B, the size of a block.
        density: share of the elements that is kept, in [0, 1].
        ord: order of the norm, as in `torch.linalg.norm`.

    Returns:
        (rows / B, columns / B, B, B), sparse, with the dtype of `matrix`.

    Raises:
        ValueError: `matrix` is not a matrix, or `block_size` does not divide its sizes.
    """
    if matrix.dim() != 2 or block_size < 1 or any(size % block_size for size in matrix.shape):
        raise ValueError(
            f"a matrix of shape {list(matrix.shape)} has no blocks of {block_size} by {block_size}"
        )
    rows, cols = (size // block_size for size in matrix.shape)
    parts = matrix.reshape(rows, block_size, cols, block_size).transpose(1, 2)
    parts = parts.reshape(-1, block_size, block_size)
    norms = torch.linalg.norm(parts.float(), ord=ord, dim=(1, 2))
    count = int(density * matrix.numel() / block_size**2)
    kept = norms.topk(count).indices
    indices = torch.stack([kept // cols, kept % cols])
    shape = (rows, cols, block_size, block_size)
    return torch.sparse_coo_tensor(indices, parts[kept], shape, check_invariants=False).coalesce()


def _check(sparse: torch.Tensor, dense: torch.Tensor, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}; expected one of {list(MODES)}")
    _check_blocks(sparse)
    rows, cols, height, width = sparse.shape
    inner, axis = (cols * width, 0) if mode == "sparse_dense" else (rows * height, -1)
    if dense.dim() != 2 or dense.layout is not torch.strided or dense.size(axis) != inner:
        raise ValueError(
            f"the dense matrix is {_text(dense)}; for mode {mode!r} and blocks "
            f"{list(sparse.shape)} expected {inner} {'rows' if axis == 0 else 'columns'}"
        )


def _check_blocks(t: torch.Tensor) -> None:
    if t.layout is not torch.sparse_coo or (t.sparse_dim(), t.dense_dim()) != (2, 2):
        raise ValueError(
            f"the matrix of blocks is {_text(t)}; expected a sparse COO tensor with two sparse "
            "axes and two dense ones"
        )


def _text(t: torch.Tensor) -> str:
    return f"of {t.layout} with shape {list(t.shape)}"
