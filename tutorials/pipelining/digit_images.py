"""Handwritten digits for the tutorial: scikit-learn's, or MNIST from a folder of IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import torch
from torch.utils.data import Dataset, TensorDataset, random_split

_SIDE = 28
# Mean and standard deviation of MNIST's training images.
_MEAN, _STD = 0.1307, 0.3081
_SPLIT_SEED = 0


def load_digits_28() -> TensorDataset:
    """Returns the 1,797 digits that come with scikit-learn, scaled from 8x8 to 28x28."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    images = torch.nn.functional.interpolate(images, size=(_SIDE, _SIDE), mode="bilinear")
    return TensorDataset((images - _MEAN) / _STD, torch.tensor(digits.target, dtype=torch.long))


def load_idx(folder: Path, part: str) -> TensorDataset:
    """Returns the images and labels in `folder` whose files begin with `part` ("train", "t10k").

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not in IDX format.
    """
    images = _read_idx(_find(folder, f"{part}-images-idx3-ubyte"), dimensions=3)
    labels = _read_idx(_find(folder, f"{part}-labels-idx1-ubyte"), dimensions=1)
    pixels = images.unsqueeze(1).float() / 255.0
    return TensorDataset((pixels - _MEAN) / _STD, labels.long())


def train_and_test(data_dir: str | None) -> tuple[Dataset, Dataset]:
    """Returns training and test set; one fifth of a set that is not split is for testing."""
    if data_dir is None:
        return _split(load_digits_28())
    folder = Path(data_dir)
    if _exists(folder, "train-images-idx3-ubyte"):
        return load_idx(folder, "train"), load_idx(folder, "t10k")
    return _split(load_idx(folder, "t10k"))


def _split(whole: TensorDataset) -> tuple[Dataset, Dataset]:
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    num_test = len(whole) // 5
    train, test = random_split(whole, [len(whole) - num_test, num_test], generator)
    return train, test


def _exists(folder: Path, name: str) -> bool:
    return (folder / name).exists() or (folder / f"{name}.gz").exists()


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"{folder} has neither {name} nor {name}.gz. Name a folder with MNIST's IDX files, or "
        "leave --data-dir out to use the digits of scikit-learn."
    )


def _read_idx(path: Path, dimensions: int) -> torch.Tensor:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        content = file.read()
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    if magic != 0x0800 + dimensions:
        raise ValueError(f"{path} is not an IDX file of bytes with {dimensions} dimensions.")
    start = 4 * (1 + dimensions)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(*shape)
