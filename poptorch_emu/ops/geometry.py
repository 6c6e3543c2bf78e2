"""Operations on point clouds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from poptorch_emu.errors import make_error

Batch = torch.Tensor | Sequence[int]


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Samples points that are far apart: each next point is the farthest from all before (exact).

    Args:
        src: points, of shape (N, F).
        ptr: first position of each cloud, then N, so that cloud i is [ptr[i], ptr[i + 1]).
        ratio: share of the points of each cloud to sample; their number is rounded up.
        random_start: whether to begin with a random point of each cloud instead of its first one.

    Returns:
        Positions in `src` of the sampled points, cloud by cloud.

    Raises:
        Error: an argument has the wrong type.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
        >>> poptorch.fps(points, [0, 4], ratio=0.5)
        tensor([0, 3])
    """
    if not isinstance(src, torch.Tensor):
        raise make_error(f"`fps` must take a torch.tensor input. {type(src)} is not supported.")
    if not isinstance(ptr, list) or not all(isinstance(item, int) for item in ptr):
        raise make_error(f"`ptr` must be a list of integers. It is {ptr!r}.")
    if len(ptr) < 2:
        raise make_error(f"`ptr` must containt at least 2 elements. It has {len(ptr)}.")
    if not isinstance(ratio, float):
        raise make_error(f"`ratio` must be of float type. It is {type(ratio)}.")
    if not isinstance(random_start, bool):
        raise make_error(f"`random_start` must be of bool type. It is {type(random_start)}.")
    sizes = [end - begin for begin, end in zip(ptr, ptr[1:], strict=False)]
    if ptr[0] < 0 or min(sizes) < 1 or ptr[-1] > src.size(0) or not 0 < ratio <= 1:
        raise make_error(
            f"`ptr` is {ptr} and `ratio` {ratio} for {src.size(0)} points; expected ascending "
            "positions from 0 up to the number of points, and a ratio above 0 and at most 1."
        )
    counts = [math.ceil(ratio * size) for size in sizes]
    starts = [torch.zeros((), dtype=torch.int64, device=src.device) for _ in sizes]
    if random_start:
        starts = [torch.randint(0, size, (), device=src.device) for size in sizes]
    points = src.detach()
    result: torch.Tensor = torch.ops.poptorch_emu.farthest_points(
        points, torch.stack(starts), ptr, counts
    )
    return result


def nearest(
    x: torch.Tensor,
    y: torch.Tensor,
    batch_x: Batch | None = None,
    batch_y: Batch | None = None,
) -> torch.Tensor:
    """Returns the position in `y` of the point nearest to each point of `x` (exact).

    Args:
        x: points, of shape (N, F), or numbers, of shape (N).
        y: points, of shape (M, F), or numbers, of shape (M).
        batch_x: (N), index of the cloud of each point of `x`; points of different clouds are never
            compared.
        batch_y: (M), index of the cloud of each point of `y`.

    Returns:
        (N) integers; if several points are equally near, the position of the first.

    Raises:
        Error: an argument has the wrong type.

    Example:
        >>> poptorch.nearest(torch.tensor([0.2, 0.9]), torch.tensor([0.0, 1.0]))
        tensor([0, 1])
    """
    if not isinstance(x, torch.Tensor):
        raise make_error(f"`nearest` must take a torch.tensor `x` input. It is {type(x)}.")
    if not isinstance(y, torch.Tensor):
        raise make_error(f"`nearest` must take a torch.tensor `y` input. It is {type(y)}.")
    points = x.detach().reshape(x.size(0), 1, -1)
    targets = y.detach().reshape(1, y.size(0), -1)
    distances = (points - targets).square().sum(-1)
    if batch_x is None and batch_y is None:
        return distances.argmin(1)
    of_x, of_y = _batch(batch_x, batch_x, batch_y, x), _batch(batch_y, batch_x, batch_y, y)
    is_other = of_x.reshape(-1, 1) != of_y.reshape(1, -1)
    return distances.masked_fill(is_other, math.inf).argmin(1)


def _batch(
    batch: Batch | None, batch_x: Batch | None, batch_y: Batch | None, points: torch.Tensor
) -> torch.Tensor:
    """Returns batch indices as a tensor; if there are none, all points belong to cloud 0."""
    if isinstance(batch, torch.Tensor):
        return batch
    if batch is None:
        return torch.zeros(points.size(0), dtype=torch.int64, device=points.device)
    if not isinstance(batch, (list, tuple)):
        raise make_error(
            "`batch_x` and `batch_y` must be torch.Tensors or lists while they are "
            f"{type(batch_x)} and {type(batch_y)}."
        )
    return torch.tensor(batch, device=points.device)
