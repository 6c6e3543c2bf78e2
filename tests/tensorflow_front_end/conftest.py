"""What the tests of TensorFlow's names share: iterators for which TensorFlow tunes nothing."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package", autouse=True)
def _untuned() -> Iterator[None]:
    """Has no thread of TensorFlow tune an iterator: one that goes waits seconds for that thread."""
    tf = pytest.importorskip("tensorflow")
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    options, create = tf.data.Options(), OwnedIterator._create_iterator
    options.autotune.enabled = False

    def create_untuned(self: Any, dataset: Any) -> None:
        create(self, dataset.with_options(options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnedIterator, "_create_iterator", create_untuned)
        yield
