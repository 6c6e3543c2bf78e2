"""Keras models on IPUs with settings that IPUs refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from support import keras_models as models


def on_ipus(make: Callable[[], keras.Model] = models.mlp) -> keras.Model:
    """Returns a model for IPUs."""
    with models.SCOPE():
        return make()


def fit(model: keras.Model, rows: int = models.ROWS, batch_size: int = 4, **settings: Any) -> Any:
    """Trains the model for an epoch; `settings` are those of `compile`."""
    models.compiled(model, **settings)
    x, labels = models.data(rows=rows)
    return model.fit(x, labels, batch_size=batch_size, shuffle=False, verbose=0)


def refuses(message: str, kind: type[Exception] = ValueError) -> Any:
    """Expects an error whose message matches a pattern."""
    return pytest.raises(kind, match=message)
