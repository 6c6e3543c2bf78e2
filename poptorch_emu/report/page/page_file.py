"""Puts styles, scripts, the charting library and the data of reports into one HTML file.

The file's data are opaque here; `view_model.py` and `report_check.py` define them. Text from the
user is never markup: it is JSON without any `<`, and the page's scripts insert it as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poptorch_emu.report.earlier_files import complete
from poptorch_emu.report.report_check import ReportError, check_report, damaged, refuses_damage
from poptorch_emu.report.terms import TERMS, ink_on
from poptorch_emu.untrusted.files import open_regular
from poptorch_emu.untrusted.texts import as_html
from poptorch_emu.version import __version__

_FOLDER = Path(__file__).parent
_LIBRARY = _FOLDER / "echarts" / "echarts.min.js"
_DATA_BEGIN = '<script type="application/json" id="report-data">'
# Scripts in the order of loading, because each may use the ones before it.
_SCRIPTS = (
    "format.js",
    "charts.js",
    "table.js",
    "timeline_events.js",
    "timeline_shapes.js",
    "panel_timeline.js",
    "panel_summary.js",
    "memory_steps.js",
    "memory_tile.js",
    "panel_memory.js",
    "panel_operations.js",
    "graph_layout.js",
    "panel_graph.js",
    "panel_numbers.js",
    "panel_texts.js",
    "compare_sentences.js",
    "panel_compare.js",
    "tabs.js",
    "main.js",
)

_LAB_SCRIPTS = (
    "format.js",
    "charts.js",
    "timeline_events.js",
    "timeline_shapes.js",
    "panel_timeline.js",
    "tabs.js",
    "lab_results.js",
    "lab.js",
)


def to_html(reports: Sequence[Mapping[str, Any]], files: Sequence[str] = ()) -> str:
    """Returns the page of one report, or of two that are compared.

    Args:
        reports: one or two values of `view_model.view_model`.
        files: paths of the reports, which tell two reports apart.

    Raises:
        ValueError: `reports` is empty or has more than two entries.
    """
    if not 1 <= len(reports) <= 2:
        raise ValueError(
            f"A page shows one report or compares two, but got {len(reports)}. "
            "Make a page for each."
        )
    names = " and ".join(str(report["name"]) for report in reports)
    data = {"reports": list(reports), "files": list(files), "foot": _foot()}
    return _page(f"{names} · report", data, _SCRIPTS)


def lab_to_html(view: Mapping[str, Any], *, is_live: bool = False) -> str:
    """Returns the page of a laboratory.

    Args:
        view: its name, and `benches` of `lab_view.bench_view`.
        is_live: whether the page may ask the server that it comes from.
    """
    title, data = f"{view['name']} · laboratory", {**view, "foot": _foot()}
    return _page(title, data, _LAB_SCRIPTS, is_live=is_live)


def _page(title: str, data: object, names: Sequence[str], *, is_live: bool = False) -> str:
    scripts = ((_FOLDER / name).read_text(encoding="utf-8") for name in names)
    script = "\n".join([f'"use strict";\nconst TERMS = {json.dumps(_terms())};', *scripts])
    library = _LIBRARY.read_text(encoding="utf-8")
    parts = {
        "policy": _policy(script, library) + ("; connect-src 'self'" if is_live else ""),
        "title": as_html(title),
        "style": (_FOLDER / "page.css").read_text(encoding="utf-8"),
        "data": to_script_json(data),
        "library": library,
        "script": script,
    }
    # Replacing all marks in one pass leaves a "{{" in the user's data as it is.
    pieces = (_FOLDER / "page.html").read_text(encoding="utf-8").split("{{")
    page = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        page += [parts[name], rest]
    return "".join(page)


def read_reports(path: Path) -> list[dict[str, Any]]:
    """Returns the reports in a page that `to_html` wrote.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
        ReportError: the file is not such a page, or its data are damaged.
    """
    with open_regular(path) as file:
        _, begin, rest = file.read().decode(errors="replace").partition(_DATA_BEGIN)
    if not begin:
        raise ReportError(
            f"{path} is not a page of a report: it holds no report. Give a file that "
            "emulator.page, emulator.report or Options.enableProfiling has written."
        )
    with refuses_damage(path):
        reports: list[dict[str, Any]] = json.loads(rest.partition("</script>")[0])["reports"]
        if not reports:
            raise damaged(path, "it has no reports")
        for report in reports:
            complete(report)
            check_report(report, path)
        return reports


def to_script_json(value: object) -> str:
    """Returns `value` as compact JSON that can stand within a script element.

    No text can end the element or begin a comment, because `<` is written as an escape.

    Raises:
            ValueError: a number is not finite; numbers that are not known must be None.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text = _writable(text)  # Lone surrogates become escapes, as JSON allows.
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _terms() -> dict[str, dict[str, str]]:
    """Returns the table of terms for the page's scripts."""
    return {
        word: {
            "meaning": term.meaning,
            "hatch": term.hatch,
            "light": term.colour,
            "ink_on_light": term.ink,
            "dark": term.colour_on_dark,
            "ink_on_dark": ink_on(term.colour_on_dark),
        }
        for word, term in TERMS.items()
    }


def _writable(text: str) -> str:
    """Returns text in UTF-8 form: a file name that is not valid UTF-8 has lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _policy(*scripts: str) -> str:
    """Returns the content policy: the browser may run these scripts, and load nothing."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"


def _foot() -> str:
    return (
        f"Made by poptorch_emu {__version__}. Cycles and bytes on tiles come from a model of the "
        "machine; seconds of the engine were measured on this computer. Charts by Apache ECharts "
        "(Apache License 2.0)."
    )
