"""`poptorch-emu view REPORT [REPORT2]`: writes a page of one report, or of two to compare.

A report is a `profile.pop` of `emulator.report` or `Options.enableProfiling`, the folder that
contains it, or a page of `emulator.page`, because each page contains its data.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poptorch_emu.report.page.page_file import read_reports, to_html
from poptorch_emu.report.page.profile_view import profile_view
from poptorch_emu.report.profile_file import FILE_NAME
from poptorch_emu.report.profile_reader import is_profile_file
from poptorch_emu.untrusted.files import write_named


def main(
    arguments: Sequence[str] | None = None, program: str = "python -m poptorch_emu.report.view"
) -> None:
    """Writes the page that the command line asks for, and prints its path."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument(
        "report",
        type=Path,
        help="report to show: a file profile.pop, the folder that holds it, or a page",
    )
    parser.add_argument(
        "second", type=Path, nargs="?", help="second report, which is compared with the first"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("page.html"))
    parser.add_argument("--open", action="store_true", help="show the page in the browser")
    given = parser.parse_args(arguments)
    try:
        paths = [_file(path) for path in (given.report, given.second) if path is not None]
        # If a given page compares two reports, only its first one is used.
        reports = [_read(path) for path in paths]
        write_named(given.output, to_html(reports, _names(paths)))
    except OSError as error:
        fault = f"{error.filename}: {error.strerror}." if error.filename else str(error)
        parser.error(
            f"{fault} Give a {FILE_NAME} that emulator.report or Options.enableProfiling has "
            "written, the folder in which it is, or a page of emulator.page."
        )
    except ValueError as error:
        parser.error(str(error))
    print(given.output)
    if given.open:
        webbrowser.open(given.output.resolve().as_uri())


def _file(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns the shortest ends of some paths that tell them apart; at least the file names."""
    parts = [path.resolve().parts for path in paths]
    most = max(map(len, parts))
    lengths = (n for n in range(1, most) if len({each[-n:] for each in parts}) == len(parts))
    length = next(lengths, most)
    return [str(Path(*each[-length:])) for each in parts]


def _read(path: Path) -> dict[str, Any]:
    return profile_view(path) if is_profile_file(path) else read_reports(path)[0]


def command() -> None:
    """Runs `poptorch-emu`, whose only command is `view`.

    Raises:
        SystemExit: the command is missing or is not `view`.
    """
    if sys.argv[1:2] != ["view"]:
        found = f"found {sys.argv[1]!r}" if sys.argv[1:] else "found none"
        sys.exit(f"usage: poptorch-emu view REPORT [REPORT2] [-o PAGE] [--open] ({found})")
    main(sys.argv[2:], "poptorch-emu view")


if __name__ == "__main__":
    main()
