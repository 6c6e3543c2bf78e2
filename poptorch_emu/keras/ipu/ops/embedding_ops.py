"""Look-ups of rows in tables."""

from __future__ import annotations

from typing import Any, NoReturn

from keras import ops

from poptorch_emu.errors import compiler_error

__all__ = ["create_host_embedding", "embedding_lookup"]


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
) -> Any:
    """Returns rows of a table (exact).

    Args:
        params: table with one embedding in each row.
        ids: numbers of the rows.
        name: accepted.
        serialization_factor: accepted, if it divides the number of rows.
        indices_are_sorted: accepted.

    Raises:
        ValueError: `serialization_factor` does not divide the number of rows.
    """
    if serialization_factor < 1 or params.shape[0] % serialization_factor:
        raise ValueError(
            f"serialization_factor={serialization_factor} does not divide the {params.shape[0]} "
            "rows of params. Choose one that does."
        )
    return ops.take(params, ids, axis=0)


def create_host_embedding(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises an error, because tables cannot stay on the host (refused).

    Raises:
        Error: always.
    """
    raise compiler_error(
        "Embeddings on the host are not offered. Use keras.layers.Embedding, and for the memory "
        "set_gradient_accumulation_options(offload_weight_update_variables=True)."
    )
