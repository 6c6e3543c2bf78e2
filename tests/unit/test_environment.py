"""Facts about the host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poptorch_emu import environment

# Two processors as Linux lists them, of which the first counts; a name may hold a colon.
LISTED = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some: Xeon
flags\t\t: fpu avx512f

processor\t: 1
vendor_id\t: Other
"""


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("vendor_id", "GenuineIntel"),
        ("model name", "Some: Xeon"),
        ("flags", "fpu avx512f"),
        ("model", None),
    ],
)
def test_processor_then_is_the_first_of_those_listed(
    monkeypatch: pytest.MonkeyPatch, field: str, expected: str | None
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: LISTED)
    assert environment.processor.__wrapped__(field) == expected


def test_processor_when_the_host_lists_none_then_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert environment.processor.__wrapped__("vendor_id") is None


def test_processor_of_this_host_then_has_the_flags_that_it_lists() -> None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        pytest.skip("this host lists no processors")
    listed = re.search(r"^flags\s*: (.*)$", path.read_text(), re.MULTILINE)
    assert environment.processor("flags") == (listed and listed[1])
