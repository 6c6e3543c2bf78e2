"""Display of values and figures in a notebook, on a screen, or as files."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_DOTS_PER_INCH = 110


def show(value: Any = None) -> None:
    """Shows a value of the emulator, and all open figures (exact).

    A notebook displays the table or picture of the value; a program prints its text. Figures of
    matplotlib are shown if there is a screen. Otherwise each one is saved in the working
    directory, and its path is printed.

    Args:
        value: result of a function of the emulator; by default only figures are shown.

    Example:
        >>> emulator.show(emulator.schedules.gpipe())
        gpipe, 1 stage on each IPU; plan(num_ipus, num_micro_batches) shows it
    """
    display = _display_of_notebook()
    if value is not None:
        if display is None or not hasattr(type(value), "_repr_html_"):
            print(value)
        else:
            # A notebook that cannot display HTML shows the text instead of a `repr`.
            display({"text/html": value._repr_html_(), "text/plain": str(value)}, raw=True)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not pyplot.get_fignums():
        return
    if display is not None or _has_screen(pyplot):
        pyplot.show()
    else:
        _save_figures(pyplot)


def _display_of_notebook() -> Any:
    """Returns the function that displays a value in a notebook; `None` outside a notebook."""
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    return importlib.import_module("IPython.display").display


def _has_screen(pyplot: Any) -> bool:
    backends = importlib.import_module("matplotlib.backends").backend_registry
    filters = importlib.import_module("matplotlib.backends").BackendFilter
    interactive = backends.list_builtin(filters.INTERACTIVE)
    return pyplot.get_backend().lower() in {name.lower() for name in interactive}


def _save_figures(pyplot: Any) -> None:
    name = Path(sys.argv[0]).stem
    if not name or name.startswith("-"):  # `python`, `python -c` and `python -` have no script.
        name = "figure"
    for number in pyplot.get_fignums():
        path = _unused(name)
        pyplot.figure(number).savefig(path, dpi=_DOTS_PER_INCH)
        pyplot.close(number)
        print(f"figure: {path}")


# Number of figures that this process has saved, by name.
_saved: dict[str, int] = {}


def _unused(name: str) -> Path:
    """Returns the path of the next figure; files of an earlier run are overwritten."""
    _saved[name] = _saved.get(name, 0) + 1
    return Path.cwd() / f"{name}_{_saved[name]}.png"
