"""Pages of docs/ whose Python blocks are one program, and what it prints."""

from __future__ import annotations

import contextlib
import io
import re
import types
from dataclasses import dataclass
from pathlib import Path

# A block of code, and the block of text right after it: what it prints. A mark between them says
# that the numbers are those of a model, which change when it becomes better.
_MARK = "<!-- modelled -->\n\n"
_BLOCK = re.compile(
    rf"^```python\n(.*?)^```\n(?:\n({_MARK})?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        line: where its code begins, from 1.
        output: what the page says that it prints; `None` where it says nothing.
        is_modelled: whether the numbers in it are those of a model.
    """

    line: int
    code: str
    output: str | None
    is_modelled: bool = False

    def agrees(self, printed: str) -> bool:
        """Returns whether what was printed is what the page says, as far as it is to be."""
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
    """Runs the blocks of a page one after the other in `module`; returns what each prints."""
    found = []
    for block in blocks_of(path.read_text(encoding="utf-8")):
        stream = io.StringIO()
        # An error then names the page and its line.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        with contextlib.redirect_stdout(stream):
            exec(code, vars(module))
        lines = stream.getvalue().splitlines()
        found.append((block, "".join(f"{line.rstrip()}\n" for line in lines)))
    return found


def with_output(text: str, printed: list[str]) -> str:
    """Returns a page in which the blocks of text are what its program prints."""
    remaining = iter(printed)

    def replaced(match: re.Match[str]) -> str:
        output = next(remaining)
        if match[3] is None:
            return match[0]
        return f"```python\n{match[1]}```\n\n{match[2] or ''}```text\n{output}```\n"

    return _BLOCK.sub(replaced, text)


def _without_numbers(text: str) -> str:
    return re.sub(r"[ \t]+", " ", re.sub(r"\d[\d.,]*", "0", text))
