"""A file that was written, as a path that a notebook shows."""

from __future__ import annotations

import html
from pathlib import PosixPath

_FRAME_PIXELS = 760


class WrittenFile(PosixPath):
    """The path of a file; in a notebook a page is shown in a frame, of others there is the size."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the page in a frame of its own, which can reach neither notebook nor network."""
        name = html.escape(str(self))
        if not self.is_file():
            return f"<code>{name}</code>"
        if self.suffix != ".html":
            return f"<code>{name}</code> ({self.stat().st_size:,} bytes)"
        page = html.escape(self.read_text(encoding="utf-8"))
        style = f"width:100%;height:{_FRAME_PIXELS}px;box-sizing:border-box"
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{name}" style="{style}">'
            f"</iframe><code>{name}</code>"
        )
