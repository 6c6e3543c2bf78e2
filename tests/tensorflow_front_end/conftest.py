"""Shared by the tests of TensorFlow's names: data sets that TensorFlow does not tune."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package", autouse=True)
def _untuned() -> Iterator[None]:
    """Turns the tuning of iterators off, because a freed iterator waits seconds for its tuner."""
    tf = pytest.importorskip("tensorflow")
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    options, create = tf.data.Options(), OwnedIterator._create_iterator
    options.autotune.enabled = False

    def create_untuned(self: Any, dataset: Any) -> None:
        create(self, dataset.with_options(options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnedIterator, "_create_iterator", create_untuned)
        yield
