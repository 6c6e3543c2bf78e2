"""The path of a written file, which a notebook displays."""

from __future__ import annotations

import html
from pathlib import PosixPath

_FRAME_PIXELS = 760
FRAME_STYLE = f"width:100%;height:{_FRAME_PIXELS}px;box-sizing:border-box"


class WrittenFile(PosixPath):
    """The path of a file; notebooks show a page in a frame, and the size of other files."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the page in a frame that can reach neither the notebook nor the network."""
        name = html.escape(str(self))
        if not self.is_file():
            return f"<code>{name}</code>"
        if self.suffix != ".html":
            return f"<code>{name}</code> ({self.stat().st_size:,} bytes)"
        page = html.escape(self.read_text(encoding="utf-8"))
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{name}" style="{FRAME_STYLE}">'
            f"</iframe><code>{name}</code>"
        )
