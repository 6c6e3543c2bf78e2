"""Any sequence of exchanges between replicas trains like plain PyTorch on all replicas at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.replica_exchanges import EXCHANGES, compare

LAYERS = 3
some_exchanges = st.lists(st.sampled_from(sorted(EXCHANGES)), max_size=2).map(tuple)


@given(
    num_replicas=st.integers(2, 4),
    accumulation=st.sampled_from([1, 5, 6]),
    num_stages=st.integers(1, LAYERS),
    exchanges=st.lists(some_exchanges, min_size=LAYERS, max_size=LAYERS),
)
@settings(max_examples=12)
def test_exchanges_in_any_order_then_training_equals_plain_pytorch(
    num_replicas: int, accumulation: int, num_stages: int, exchanges: list[tuple[str, ...]]
) -> None:
    is_pipeline = num_stages > 1
    compare(
        num_replicas, max(accumulation, 5) if is_pipeline else accumulation, num_stages, exchanges
    )
