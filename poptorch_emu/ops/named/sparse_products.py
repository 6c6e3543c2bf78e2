"""Products of a constant block-sparse matrix and a dense matrix, which multiply stored blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ops.named.named_operator import Attributes

MODES = ("sparse_dense", "dense_sparse")


def static_sparse_matmul(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns `sparse @ dense` or `dense @ sparse`; `rows` and `cols` are corners of blocks.

    Raises:
        ValueError: a number is out of range or does not match the others.
    """
    (dense,) = inputs
    if given["mode"] not in MODES:
        raise ValueError(f"the attribute 'mode' is {given['mode']!r}; expected one of {MODES}")
    rows, cols = (_blocks_of(name, given) for name in ("rows", "cols"))
    if given["mode"] == "sparse_dense":
        return _product(dense, given, rows, cols)
    # (dense @ sparse) is the transpose of (sparse' @ dense').
    swapped = {**given, "n_rows": given["n_cols"], "n_cols": given["n_rows"]}
    return _product(dense.t(), swapped, cols, rows, are_transposed=True).t()


def static_dyn_sparse(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns `sparse @ dense`; `rows` and `cols` are positions of blocks.

    Raises:
        ValueError: a number is out of range or does not match the others.
    """
    return _product(inputs[0], given, list(given["rows"]), list(given["cols"]))


def _blocks_of(name: str, given: Attributes) -> list[int]:
    """Returns positions of blocks, computed from the positions of their first elements."""
    size = given["block_size"]
    if size < 1 or any(position % size for position in given[name]):
        raise ValueError(
            f"the attribute {name!r} has an element that is no multiple of block_size {size}"
        )
    return [position // size for position in given[name]]


def _product(
    dense: torch.Tensor,
    given: Attributes,
    rows: Sequence[int],
    cols: Sequence[int],
    are_transposed: bool = False,
) -> torch.Tensor:
    size = given["block_size"]
    _check(dense, given, rows, cols)
    blocks = torch.tensor(given["values"], dtype=torch.float32).reshape(-1, size, size)
    if are_transposed:
        blocks = blocks.transpose(1, 2)
    to, origin = (
        torch.tensor(each, dtype=torch.int64, device=dense.device) for each in (rows, cols)
    )
    width = dense.size(1)
    taken = dense.float().reshape(-1, size, width).index_select(0, origin)
    products = blocks.contiguous().to(dense.device) @ taken
    result = torch.zeros(given["n_rows"] // size, size, width, device=dense.device)
    return result.index_add(0, to, products).reshape(-1, width).to(dense.dtype)


def _check(
    dense: torch.Tensor, given: Attributes, rows: Sequence[int], cols: Sequence[int]
) -> None:
    size, sizes = given["block_size"], (given["n_rows"], given["n_cols"])
    if size < 1 or any(each < 0 or each % size for each in sizes):
        raise ValueError(f"a matrix of {sizes} elements has no blocks of {size} by {size}")
    if dense.dim() != 2 or dense.size(0) != sizes[1]:
        raise ValueError(
            f"the dense matrix has shape {list(dense.shape)}; the sparse one is of {sizes}"
        )
    counts = (len(rows), len(cols), len(given["values"]) / size**2)
    if len(set(counts)) > 1:
        raise ValueError(f"rows, columns and values are of {counts} blocks; expected the same")
    for name, positions, most in (("row", rows, sizes[0]), ("column", cols, sizes[1])):
        if positions and not (min(positions) >= 0 and max(positions) < most // size):
            raise ValueError(
                f"a block is in {name} {max(positions)} of blocks; there are {most // size}"
            )
