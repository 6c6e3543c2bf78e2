"""Numbers that `forward` changes in Python, for example `self.step += 1`.

A model is captured once, so that each call would compute with the numbers of the first one. If
`forward` changed a number, the model is captured a second time, as in a second call. Where the
second capture computes the same, the number decides nothing in the next call. A number that changes
in both may decide later (`if self.step > 1000`), so the model is also captured with the opposite of
each decision that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.log import logger, muted
from poptorch_emu.trace.model_state.number_search import Change, Values, values_in
from poptorch_emu.trace.model_state.watched_numbers import Decisions, Site, watched
from poptorch_emu.troubleshooting import Topic

_MAX_NAMED = 3
# Largest number of decisions that are tried, each by a capture.
_MAX_DECISIONS = 16
_REMEDY = (
    "on the device: self.register_buffer('step', torch.zeros(1)) in __init__, self.step += 1 in "
    "forward, and torch.where(self.step < 10, a, b) for decisions"
)

# Returns the texts of a capture, as `compared_captures.computed`.
Texts = Callable[[], list[Any]]


class HeldNumbers:
    """Numbers, texts and flags that a model, its objects and the globals of its files hold."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Notes the present values."""
        self._model = model
        self._before = values_in(model)

    def check_later_calls(self, first: Texts, capture: Texts) -> None:
        """Checks that later calls, with other numbers, would compute the same.

        Args:
            first: returns the texts of the first capture, which has changed the numbers.
            capture: captures the model again, and returns the texts of that capture.

        Raises:
            Error: a later call would compute something else.
        """
        after = values_in(self._model)
        if advanced := after.advanced_since(self._before):
            raise _refused_iterators(advanced)
        changes = after.changes_since(self._before)
        if not changes:
            return
        texts, log = first(), Decisions()
        with _watching(after, changes, log):
            is_same = capture() == texts
            again = {each.location.path for each in values_in(self._model).changes_since(after)}
        if not is_same:
            raise _refused(changes, "a second call computes something else with it")
        if again:
            counters = [each for each in changes if each.location.path in again]
            _check_decisions(after, counters, log, lambda: capture() == texts)
            _warn(changes)


def _check_decisions(
    after: Values, counters: list[Change], log: Decisions, is_same: Callable[[], bool]
) -> None:
    """Captures the model once for each decision that depends on a counter, with its opposite.

    A decision that is found after another one was turned is tried together with it.
    """
    paths = {each.location.path for each in counters}
    pending, seen = [log], set[Site]()
    while pending:
        before = pending.pop()
        for site, decision in before.made.items():
            if site in seen or not paths & decision.origins:
                continue
            seen.add(site)
            log = Decisions(before.turned | {site})
            is_known = len(seen) <= _MAX_DECISIONS
            if not (is_known and _is_same_when_turned(after, counters, log, is_same)):
                reason = f"the decision at {decision.line} may change what a later call computes"
                raise _refused(counters, reason)
            pending.append(log)


def _is_same_when_turned(
    after: Values, counters: list[Change], log: Decisions, is_same: Callable[[], bool]
) -> bool:
    with _watching(after, counters, log):
        try:
            return is_same()
        except Exception:  # The code after a turned decision may be impossible to capture.
            return False


@contextmanager
def _watching(after: Values, changes: list[Change], log: Decisions) -> Iterator[None]:
    """Replaces numbers by watched ones, and puts all values back at the end.

    A capture meanwhile repeats no message of the first one.
    """
    try:
        for location in (each.location for each in changes):
            number = watched(location.value, frozenset({location.path}), log)
            if number is not location.value:
                location.put(number)
        with muted():
            yield
    finally:
        log.is_over = True
        after.restore()


def _named(changes: list[Change]) -> str:
    rest = len(changes) - _MAX_NAMED
    named = ", ".join(map(str, changes[:_MAX_NAMED]))
    return f"{named} and {rest} more" if rest > 0 else named


def _refused(changes: list[Change], reason: str) -> Exception:
    return compiler_error(
        f"forward changes {_named(changes)}, and {reason}. A model is captured in its first call, "
        f"and later calls would repeat that one. Keep a count {_REMEDY}. Or change it outside of "
        f"forward, and call destroy() to capture the model anew; {Topic.INTEGER_STATE}"
    )


def _refused_iterators(paths: list[str]) -> Exception:
    return compiler_error(
        f"forward advances the iterator {', '.join(paths[:_MAX_NAMED])}. A model is captured in "
        "its first call, and later calls would repeat the values of that one. Pass the next value "
        f"to the model as an input, or keep a count {_REMEDY}; {Topic.INTEGER_STATE}"
    )


def _warn(changes: list[Change]) -> None:
    logger.warning(
        "forward changes %s, and no result seems to depend on it. A model is captured in its first "
        "call, so that later calls neither change it nor decide by it. Count in the program that "
        "calls the model, or %s; %s",
        _named(changes),
        _REMEDY,
        Topic.INTEGER_STATE,
    )
