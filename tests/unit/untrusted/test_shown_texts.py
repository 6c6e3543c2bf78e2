"""Texts of others, as shown in a terminal and as names of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.untrusted.texts import as_html, file_name, printable

ANY = st.text(st.characters())  # Halves of characters, too.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, Größe 3 × 4", "plain text, Größe 3 × 4"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("two\nlines\r\tand", r"two\nlines\r\tand"),
        ("\x9b31m \u202eturned \u2028", r"\x9b31m \u202eturned \u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_text_then_nothing_in_it_controls_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANY)
def test_text_of_any_kind_then_prints(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and printable(shown) == shown
    shown.encode()


def test_text_in_a_page_then_controls_neither_browser_nor_terminal() -> None:
    assert as_html("\x1b[31m<b> & \n") == r"\x1b[31m&lt;b&gt; &amp; \n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", "bert"),
        ("ResNet 50, v1.5", "ResNet 50, v1.5"),
        ("../../x", "_.._x"),
        ("/etc/passwd", "_etc_passwd"),
        ("a\\b", "a_b"),
        ("..", "training"),
        (".", "training"),
        ("", "training"),
        ("a\0b\n", "a_b_"),
    ],
)
def test_name_then_is_one_part_of_a_path(name: str, expected: str) -> None:
    assert file_name(name, "training") == expected


@given(ANY)
def test_name_of_any_kind_then_a_file_can_have_it(tmp_path_factory, name: str) -> None:
    found = file_name(name, "training")
    folder = Path("/folder")
    assert (folder / found).resolve() == folder / found and found not in ("", ".", "..")
    assert len(found.encode()) <= 255 and "/" not in found


def test_names_when_long_then_differ_where_their_ends_do() -> None:
    names = {file_name("é" * 300 + end, "training") for end in ("a", "b")}
    assert len(names) == 2 and all(len(name.encode()) <= 255 for name in names)
