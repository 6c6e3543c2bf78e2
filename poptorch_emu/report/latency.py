"""Performance counters and latencies, from the times of a call's inputs and outputs.

Times are wall-clock seconds of the engine on the host, with an arbitrary origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# For each tensor, the (begin, end) of each transfer of a piece, in nanoseconds.
Spans = list[list[tuple[int, int]]]
Counters = dict[str, list[list[float]]]

INPUT, INPUT_COMPLETE = "input", "input_complete"
OUTPUT, OUTPUT_COMPLETE = "output", "output_complete"

_NS_PER_SECOND = 1e9

# One end of a latency: the name of a counter, and the function that joins several tensors' times.
End = tuple[str, Callable[[Sequence[float]], float]]


def counters(inputs: Spans, outputs: Spans) -> Counters:
    """Returns, for each counter and tensor, the ascending times of its pieces; `[[]]` for none."""
    return {
        INPUT: _times(inputs, 0),
        INPUT_COMPLETE: _times(inputs, 1),
        OUTPUT: _times(outputs, 0),
        OUTPUT_COMPLETE: _times(outputs, 1),
    }


def latency(times: Counters, start: End, end: End) -> tuple[float, float, float]:
    """Returns the shortest, the longest and the mean time from `start` to `end`, in seconds.

    With more starts than ends, each end belongs to an equal share of the starts, and its time
    counts from the first of them. Without events all three times are 0.
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
    """Returns one time for each piece, joined over all tensors."""
    name, join = end
    return [join(ticks) for ticks in zip(*times[name], strict=False)]
