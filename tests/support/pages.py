"""Pages of docs/ whose Python blocks form one program, and the program's output."""

from __future__ import annotations

import contextlib
import io
import re
import types
from dataclasses import dataclass
from pathlib import Path

# A block of code and the block of text right after it, its output. A mark between them says that
# the numbers come from a model and change when the model is improved.
_MARK = "<!-- modelled -->\n\n"
_BLOCK = re.compile(
    rf"^```python\n(.*?)^```\n(?:\n({_MARK})?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        line: line at which its code begins, from 1.
        output: output that the page shows; `None` if it shows none.
        is_modelled: whether the numbers in the output come from a model.
    """

    line: int
    code: str
    output: str | None
    is_modelled: bool = False

    def agrees(self, printed: str) -> bool:
        """Returns whether the printed text agrees with the page, except for modelled numbers."""
        if self.output is None:
            return True
        if self.is_modelled:
            return _without_numbers(self.output) == _without_numbers(printed)
        return self.output == printed


def blocks_of(text: str) -> list[Block]:
    """Returns the Python blocks of a page, in order."""
    return [
        Block(text.count("\n", 0, match.start(1)) + 1, match[1], match[3], bool(match[2]))
        for match in _BLOCK.finditer(text)
    ]


def printed_by(path: Path, module: types.ModuleType) -> list[tuple[Block, str]]:
    """Runs the blocks of a page one after another in `module`; returns the output of each."""
    found = []
    for block in blocks_of(path.read_text(encoding="utf-8")):
        stream = io.StringIO()
        # Empty lines before the code make an error name the page and its line.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        with contextlib.redirect_stdout(stream):
            exec(code, vars(module))
        lines = stream.getvalue().splitlines()
        found.append((block, "".join(f"{line.rstrip()}\n" for line in lines)))
    return found


def with_output(text: str, printed: list[str]) -> str:
    """Returns the page with the blocks of text replaced by the program's output."""
    remaining = iter(printed)

    def replaced(match: re.Match[str]) -> str:
        output = next(remaining)
        if match[3] is None:
            return match[0]
        return f"```python\n{match[1]}```\n\n{match[2] or ''}```text\n{output}```\n"

    return _BLOCK.sub(replaced, text)


def _without_numbers(text: str) -> str:
    return re.sub(r"[ \t]+", " ", re.sub(r"\d[\d.,]*", "0", text))
