"""Reports of lines and tables, as printed text and in notebooks."""

import pytest

from poptorch_emu.report.printed_report import PrintedReport, Table


class Report(PrintedReport):
    def _parts(self, columns):
        yield f"{'word ' * 30}<b>"
        yield ""
        yield Table([["name", "value"], ["<i>\x1b[1m", "1"]], 1)
        yield f"below, {columns} columns"


def test_text_then_lines_are_wrapped_and_gaps_are_kept():
    lines = str(Report()).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2:] == ["", "name        value", "<i>\\x1b[1m      1", "below, 80 columns"]


def test_html_then_names_are_text_and_lines_stand_together():
    page = Report()._repr_html_()
    assert (page.count("<pre"), page.count("<table>")) == (2, 1)
    assert "&lt;b&gt;" in page and "&lt;i&gt;" in page and "<i>" not in page
    assert "below, 120 columns" in page


def test_report_without_parts_then_the_class_is_named():
    with pytest.raises(NotImplementedError, match="PrintedReport has no parts"):
        str(PrintedReport())
