"""Writes `docs/operators.md`: the counts, and the table of exceptions with its reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
from opinfo.check import Outcome
from opinfo.exceptions import (
    DIFFERENT,
    MODELS_THAT_READ,
    RANDOM,
    REFUSED,
    UNSPECIFIED,
    WITHOUT_OUT,
    Reason,
)

KINDS = {
    "forward": "results",
    "gradient": "gradients",
    "inplace": "changes of an argument",
    "out": "results written to `out=`",
}
STATUSES = ("passed", "refused", "skipped", "failed")


def page(outcomes: Sequence[Outcome]) -> str:
    """Returns the page for the outcomes of all entries."""
    return "\n\n".join(["# Operators", _counts(outcomes), exceptions()]) + "\n"


def exceptions() -> str:
    """Returns the part of the page that does not depend on outcomes."""
    entries: dict[Reason, list[str]] = defaultdict(list)
    for name, reasons in REFUSED.items():
        for reason in reasons:
            entries[reason].append(name)
    refused = [
        (reason.name, f"`` {reason.words} ``", reason.instead, _names(names))
        for reason, names in sorted(entries.items(), key=lambda item: item[0].name)
    ]
    different = [(reason.name, _names([name])) for name, reason in DIFFERENT.items()]
    return "\n\n".join(
        [
            "## What is refused",
            "Some samples of these entries get an error when the model is captured, before "
            "anything runs. The error names the line of the model; find it here by its words.",
            _table(("Why", "The error says", "Use instead", "Entries"), refused),
            "## What differs on purpose",
            _table(("How", "Entries"), different),
            "## What is compared by type and shape only",
            f"Random numbers: {_names(RANDOM)}.",
            f"Memory that nobody has written to: {_names(UNSPECIFIED)}.",
            "## What is not asked",
            "`out=` of operators that write to further arguments, or give float64 only, which the "
            f"device does not have: {_names(WITHOUT_OUT)}.",
            "## Models that read data in `forward`",
            "Tried with `transformers` 5.23, small random models, inference and one step of "
            "training; where something is to be done, the numbers equal PyTorch's after it.",
            _table(("Model", "What it does", "What to do"), MODELS_THAT_READ),
        ]
    )


def _counts(outcomes: Sequence[Outcome]) -> str:
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        kind = outcome.case.removeprefix(outcome.name).split()[0]
        by_kind[KINDS[kind]][outcome.status] += 1
    by_kind["**all**"] = sum(by_kind.values(), Counter())
    rows = [
        (kind, *(str(counts[status]) for status in STATUSES)) for kind, counts in by_kind.items()
    ]
    names = {outcome.name for outcome in outcomes}
    refused = {outcome.name for outcome in outcomes if outcome.status == "refused"}
    return "\n\n".join(
        [
            f"PyTorch {torch.__version__.partition('+')[0]} comes with databases of its operators "
            f"and modules. Samples of all {len(names)} entries run on virtual IPUs and in eager "
            "PyTorch, in float32, float16 and int32, and must agree in type, shape and numbers, "
            "or be refused, or differ, for a reason in the tables below; of "
            f"{len(refused)} entries some sample is (counted as refused). Skipped are samples that "
            "eager PyTorch refuses itself, or of which nothing can be compared.",
            _table(("Samples", *STATUSES), rows),
            "`make test-ops` asks all samples, `PYTHONPATH=tests python -m opinfo --jobs 2 "
            "--document` does and writes this page. Operators that pass here but that PopTorch's "
            "compiler refuses are reported in strict mode, see [compatibility](compatibility.md).",
        ]
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
