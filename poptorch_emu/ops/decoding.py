"""Decoding of CTC outputs."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.ops.custom_operators import register_custom_op
from poptorch_emu.trace.places import blocks


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds the most probable labellings by prefix beam search (exact).

    Outside a trace it returns zeros of the right shapes, as in PopTorch.

    Args:
        probs: (T, N, C), logarithms of the probabilities of each label at each step.
        lengths: (N), the number of steps of each sequence.
        blank: index of the blank label.
        beam_width: number of prefixes that are kept after each step.
        top_paths: number of labellings that are returned.

    Returns:
        The logarithm of each labelling's probability (N, top_paths), its length (N, top_paths) and
        its labels (N, top_paths, T), padded with `blank`. If a sequence has fewer labellings, the
        missing ones have probability minus infinity and length 0.

    Raises:
        Error: an argument is not a tensor or has the wrong shape.
    """
    for name, value in (("probs", probs), ("lengths", lengths)):
        if not isinstance(value, torch.Tensor):
            raise make_error(
                f"ctc_beam_search_decoder: {name} must be a torch.tensor argument. {type(value)} "
                "is not supported."
            )
    if probs.dim() != 3:
        raise compiler_error(
            "Incorrect shape for first input to CTC beam search decoder. It is "
            f"{list(probs.shape)}; expected (time, sequences, labels)."
        )
    if not blocks.is_tracing():
        time, sequences, _ = probs.shape
        sizes = torch.zeros(sequences, top_paths, dtype=torch.int32)
        paths = torch.zeros(sequences, top_paths, time, dtype=torch.int32)
        return torch.zeros(sequences, top_paths, dtype=probs.dtype), sizes, paths
    scores, sizes, paths = _decode(probs, lengths, blank, beam_width, top_paths)
    return scores, sizes, paths


def _decode(probs: torch.Tensor, lengths: torch.Tensor, *settings: int) -> Any:
    return torch.ops.poptorch_emu.ctc_beam_search_decoder(
        probs.detach(), lengths.to(torch.int64), *settings
    )


def _decode_custom(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> Any:
    return _decode(probs, lengths, blank, beam_width, top_paths)


register_custom_op("CtcBeamSearchDecoder", "ai.graphcore", _decode_custom)
