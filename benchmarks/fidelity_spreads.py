"""The spread of each subject of the model of the machine, from errors in cross-validation.

The spread of a subject is the error that four of five rows do not exceed, if each row counts as
much as the subject's share of its time. All overheads together are one subject here. Rows of cards
count for the runtime of cards alone. Then
all spreads are multiplied by the same factor, so that four of five rows lie within their interval,
as in a conformal prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fidelity_cross_validation import Held
from fidelity_memory import MemoryCase

from poptorch_emu.machine.spread import OVERHEADS, Subject, spread

_COVERAGE = 0.8
_TIME_SUBJECTS = tuple(each for each in Subject if each not in (Subject.TENSOR, Subject.PROGRAM))


def fitted_spreads(rows: Sequence[Held]) -> dict[Subject, float]:
    """Returns the spread of each subject of time.

    Rows count with the settings that they have, because users know their settings. The factor also
    covers the errors of rows with the other setting, if their own figure chose one.
    """
    of_cards = [row for row in rows if Subject.SYSTEM in row.amounts]
    others = [row for row in rows if Subject.SYSTEM not in row.amounts]
    values = dict.fromkeys(Subject, 0.0)
    for subject in _TIME_SUBJECTS:
        own = of_cards if subject is Subject.SYSTEM else others
        together = OVERHEADS if subject in OVERHEADS else (subject,)
        weights = [sum(share_of(each, row.amounts) for each in together) for row in own]
        values[subject] = _quantile([abs(row.known_error) for row in own], weights, sum(weights))
    ratios = [abs(row.log_error) / spread(row.amounts, None, values) for row in rows]
    # One more row than there is: the prediction that the interval is for.
    factor = _quantile(ratios, [1.0] * len(ratios), len(ratios) + 1)
    return {subject: float(f"{factor * value:.2g}") for subject, value in values.items()}


def _quantile(values: Sequence[float], weights: Sequence[float], total: float) -> float:
    """Returns the smallest value that is not exceeded by the wanted fraction of all weights."""
    reached = 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if reached >= _COVERAGE * total:
            return value
    return max(values, default=0.0)


def share_of(subject: Subject, amounts: Mapping[Subject, float]) -> float:
    """Returns the share of a subject in a figure; 1 for the runtime of a card."""
    total = math.fsum(amount for each, amount in amounts.items() if each is not Subject.SYSTEM)
    return amounts.get(subject, 0.0) / total


def memory_spreads(cases: Sequence[MemoryCase]) -> dict[Subject, float]:
    """Returns the spread of both subjects of memory; each row counts as much as its bytes.

    Weighted by their shares, small programs would decide whether large ones fit.
    """
    known = [case for case in cases if case.row.total_bytes]
    errors = [abs(math.log(case.total_bytes / case.row.total_bytes)) for case in known]
    found = {}
    for subject in (Subject.TENSOR, Subject.PROGRAM):
        weights = [case.amounts[subject] for case in known]
        found[subject] = float(f"{_quantile(errors, weights, sum(weights)):.2g}")
    return found


def spread_figures(
    rows: Sequence[Held], cases: Sequence[MemoryCase]
) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_spreads.csv`, the spreads that all rows give together."""
    for subject, value in (fitted_spreads(rows) | memory_spreads(cases)).items():
        yield {"subject": subject.name.lower(), "spread": value}


def cross_validation_figures(rows: Sequence[Held]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_cross_validation.csv`, one for each published speed."""
    for family in dict.fromkeys(row.row.family for row in rows):
        spreads = fitted_spreads([row for row in rows if row.row.family != family])
        for row in (row for row in rows if row.row.family == family):
            own = row.row
            yield {
                "row": own.name,
                "family": family,
                "kind": own.kind.value,
                "published": round(own.published),
                "predicted": round(own.published * (1 + row.error)),
                "spread": f"{spread(row.amounts, None, spreads):.3f}",
                "error": f"{row.error:.4f}",
                "fitted anew": ", ".join(f"{name} {v:g}" for name, v in row.numbers.items()),
                **{s.name.lower(): f"{share_of(s, row.amounts):.3f}" for s in _TIME_SUBJECTS},
            }
