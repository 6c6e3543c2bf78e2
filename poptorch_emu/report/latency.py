"""From the times at which inputs and outputs crossed to performance counters and latencies.

Times are wall-clock seconds of the engine on the host, with an arbitrary origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# For each tensor, when each of its pieces began to cross and had crossed, in nanoseconds.
Spans = list[list[tuple[int, int]]]
Counters = dict[str, list[list[float]]]

INPUT, INPUT_COMPLETE = "input", "input_complete"
OUTPUT, OUTPUT_COMPLETE = "output", "output_complete"

_NS_PER_SECOND = 1e9

# One end of a latency: which counter, and how those of several tensors come together.
End = tuple[str, Callable[[Sequence[float]], float]]


def counters(inputs: Spans, outputs: Spans) -> Counters:
    """Returns for each counter and tensor the times of its pieces, ascending; `[[]]` for none."""
    return {
        INPUT: _times(inputs, 0),
        INPUT_COMPLETE: _times(inputs, 1),
        OUTPUT: _times(outputs, 0),
        OUTPUT_COMPLETE: _times(outputs, 1),
    }


def latency(times: Counters, start: End, end: End) -> tuple[float, float, float]:
    """Returns the shortest, the longest and the mean time from `start` to `end`, in seconds.

    Where there are more starts than ends, an equal share of them belongs to each end, and counts
    from its first. Without events all three are 0.
    """
    starts, ends = _ticks(times, start), _ticks(times, end)
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    share = max(1, len(starts) // len(ends))
    firsts = [min(starts[index : index + share]) for index in range(0, len(starts), share)]
    durations = [last - first for first, last in zip(firsts, ends, strict=False)]
    return min(durations), max(durations), sum(durations) / len(durations)


def _times(spans: Spans, end: int) -> list[list[float]]:
    return [sorted(span[end] / _NS_PER_SECOND for span in tensor) for tensor in spans] or [[]]


def _ticks(times: Counters, end: End) -> list[float]:
    """Returns one time for each piece: those of several tensors come together."""
    name, join = end
    return [join(ticks) for ticks in zip(*times[name], strict=False)]
