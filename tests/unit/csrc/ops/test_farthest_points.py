"""The kernel of `fps` reads nothing but its points, for any arguments."""

import pytest
import torch

import poptorch_emu  # noqa: F401

POINTS = torch.tensor([[0.0], [10.0], [1.0], [5.0]])


def sampled(points, starts, ptr, counts):
    return torch.ops.poptorch_emu.farthest_points(points, torch.tensor(starts), ptr, counts)


def test_farthest_points_when_started_anywhere_then_worked_example() -> None:
    assert sampled(POINTS, [0, 0], [0, 1, 4], [1, 3]).tolist() == [0, 1, 2, 3]
    assert sampled(POINTS, [3], [0, 4], [3]).tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    ("starts", "ptr", "counts", "text"),
    [
        ([0], [0, 2, 4], [1], "3 positions, 1 counts and 1 starts"),
        ([0], [0], [1], "1 positions, 1 counts and 1 starts"),
        ([0], [0, 2, 4], [1, 1], "3 positions, 2 counts and 1 starts"),
        ([0], [-1, 3], [1], r"cloud 0 is \[-1, 3\) of 4 points"),
        ([0, 0], [0, 3, 5], [1, 1], r"cloud 1 is \[3, 5\) of 4 points"),
        ([0], [2, 2], [0], r"cloud 0 is \[2, 2\) of 4 points"),
        ([0], [3, 1], [1], r"cloud 0 is \[3, 1\) of 4 points"),
        ([0], [1, 4], [4], "4 points of cloud 0 are to be taken, beginning with its 0; it has 3"),
        ([0], [1, 4], [-1], "-1 points of cloud 0"),
        ([3], [1, 4], [1], "beginning with its 3; it has 3"),
        ([-1], [1, 4], [1], "beginning with its -1; it has 3"),
    ],
)
def test_farthest_points_when_clouds_do_not_fit_then_error(starts, ptr, counts, text) -> None:
    with pytest.raises(ValueError, match=text):
        sampled(POINTS, starts, ptr, counts)


def test_farthest_points_of_one_number_then_error() -> None:
    with pytest.raises(ValueError, match="rows of points, not one number"):
        sampled(torch.tensor(1.0), [0], [0, 1], [1])
