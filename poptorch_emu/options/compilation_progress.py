"""Progress bar of a compilation, and the time that the compilation took."""

from __future__ import annotations

import time

from tqdm import tqdm

from poptorch_emu.runtime.progress import write_plain_line


class ProgressBar:
    """Shows the progress of one compilation after another on stderr, if that is a terminal.

    Otherwise it writes a line at the end of each compilation.

    Attributes:
        compilation_seconds: duration of the last compilation; `None` before the first one ends.
    """

    def __init__(self) -> None:
        """Creates the object without showing a bar."""
        self.compilation_seconds: float | None = None
        self._start_seconds = 0.0
        self._bar: tqdm | None = None

    def __call__(self, progress: int, total: int) -> None:
        """Moves the bar to `progress` of `total`; it opens at the first call, closes at `total`."""
        if self._bar is None:
            self._start_seconds = time.perf_counter()
            layout = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
            self._bar = tqdm(desc="Graph compilation", total=total, bar_format=layout, disable=None)
        self._bar.update(progress - self._bar.n)
        if progress >= total:
            self.compilation_seconds = time.perf_counter() - self._start_seconds
            if self._bar.disable:
                write_plain_line(self.compilation_seconds)
            self._bar.close()
            self._bar = None
