"""FlashAttentionQKVPacked: causal attention whose queries, keys and values are one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.ops.named.named_operator import Attributes


def packed_attention(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns `softmax(q k' + M) v` of (3, N, L, D); M is the causal mask, and scores are unscaled.

    Raises:
        ValueError: the tensor has another shape, or a number of chunks does not divide L.
    """
    (packed,) = inputs
    if packed.dim() != 4 or packed.size(0) != 3:
        raise ValueError(f"qkv has shape {list(packed.shape)}; expected (3, N, L, D)")
    for name in ("num_chunks_q", "num_chunks_kv"):
        if given[name] < 1 or packed.size(2) % given[name]:
            raise ValueError(
                f"the attribute {name!r} is {given[name]}, which does not divide the length "
                f"{packed.size(2)}"
            )
    q, k, v = packed.unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
