"""The live laboratory: a page that asks Python for the plan of each choice of settings."""

from __future__ import annotations

import atexit
import html
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import wrapped
from poptorch_emu.emulator.lab import fine_sweep, view_of
from poptorch_emu.emulator.lab_points import answers
from poptorch_emu.emulator.what_ifs import checked_sweep
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.page.page_file import lab_to_html
from poptorch_emu.report.page.page_server import PageServer
from poptorch_emu.report.written_file import FRAME_STYLE


class LiveLab:
    """A running laboratory, which a notebook displays; `with` stops it at the end of its block.

    Attributes:
        address: address of its page, for a browser on this computer.
    """

    def __init__(self, server: PageServer) -> None:
        """Takes over a server, which the end of the program stops at the latest."""
        self._server = server
        self.address = server.address
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stops the laboratory after the plan that it computes; its page remains readable."""
        atexit.unregister(self.stop)
        self._server.stop()

    def wait(self) -> None:
        """Waits until the laboratory is stopped, or Ctrl-C stops it."""
        try:
            self._server.wait()
        except KeyboardInterrupt:
            self.stop()

    def __enter__(self) -> LiveLab:
        """Returns the laboratory."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops the laboratory."""
        self.stop()

    def __repr__(self) -> str:
        """Returns the address, or that the laboratory was stopped."""
        if not self._server.is_running:
            return "A laboratory that was stopped."
        return f"The laboratory is at\n{self.address}"

    def _repr_html_(self) -> str:
        """Returns the page in a frame, which cannot reach the notebook."""
        if not self._server.is_running:
            return f"<code>{self!r}</code>"
        address = html.escape(self.address)
        # The frame keeps its origin, because its script asks the page's own server for plans.
        return (
            f'<iframe src="{address}" sandbox="allow-scripts allow-same-origin" '
            f'title="Laboratory" style="{FRAME_STYLE}"></iframe><code>{address}</code>'
        )


def live_lab(
    model: PoplarExecutor,
    *inputs: Any,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    exercises: bool = False,
    **keywords: Any,
) -> LiveLab:
    """Starts a laboratory whose page asks this program for each plan (modelled).

    The page is that of `lab`, but every combination of its values has a plan, which takes about a
    tenth of a second for a large model. So its sliders are fine: each number of IPUs, replicas,
    rows and micro-batches. A server on 127.0.0.1 computes the plans in a thread of its own until
    `stop`, or until the program ends. Only this computer reaches it, and only by its address.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        sweep: values by setting, as for `what_if`; by default all values of important settings.
        exercises: whether to add the exercises of `lab`, which are planned first.
        keywords: `system` and `io` as for `estimate`, and inputs by name.

    Returns:
        the laboratory. A notebook displays it; a script prints it, which shows its address, and
        calls its `wait`.

    Raises:
        Error: the system or a setting is unknown, or the model cannot be captured.
        OSError: the system has no free port.
        TypeError: the model is not wrapped.

    Example:
        >>> model = poptorch.inferenceModel(torch.nn.Linear(64, 64))
        >>> with emulator.live_lab(model, torch.ones(4, 64)) as laboratory:
        ...     print(laboratory)
        The laboratory is at
        http://127.0.0.1:...
    """
    planner = planner_of(wrapped(model), inputs, keywords)
    settings = checked_sweep(fine_sweep(planner) if sweep is None else sweep)
    view = view_of(planner, settings, (), exercises=exercises)
    view["benches"][0]["is_live"] = True
    page = lab_to_html(view, is_live=True)
    return LiveLab(PageServer(page, answers(planner, settings)))
