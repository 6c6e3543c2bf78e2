"""The parts that compute moving averages of weights, once a window before the weights change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from poptorch_emu.ir.graph import Average, Graph, Source, SourceKind
from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.parts.update_parts import Part
from poptorch_emu.update.recorded import record_average


def average_parts(
    ipu: int, averages: Sequence[Average], variables: Mapping[str, VariableInfo]
) -> list[Part]:
    """Returns the parts of an IPU's averages, one for all averages of the same replicas."""
    parts: dict[tuple[int, ...], Part] = {}
    templates: dict[object, Graph] = {}
    for average in averages:
        weight, own = variables[average.weight], variables[average.average]
        runners = own.leaders
        if runners not in parts:
            parts[runners] = Part(Segment(f"averages {ipu} of {runners}"), runners)
        key = weight.dtype, own.dtype
        if key not in templates:
            templates[key] = record_average(*key)
        sources = {
            "weight": Source(SourceKind.VARIABLE, average.weight),
            "average": Source(SourceKind.VARIABLE, average.average),
            "factor": average.factor,
        }
        code = parts[runners].code
        results = code.inline(templates[key], partial(_bound, sources))
        parts[runners].stores |= dict.fromkeys(results.values(), average.average)
    return list(parts.values())


def _bound(sources: Mapping[str, Source], source: Source) -> Source:
    return sources[source.name]
