"""`python -m poptorch_emu script.py`: runs a program that imports `poptorch` on virtual IPUs."""

from __future__ import annotations

import argparse
import logging
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType

from poptorch_emu import troubleshooting
from poptorch_emu.log import logger
from poptorch_emu.names.aliases import install
from poptorch_emu.names.failure import (
    drop_inner_causes,
    explanation,
    is_explained,
    is_of_dataset,
    is_of_forward,
    without_inner_frames,
)
from poptorch_emu.version import __version__

_OWN_FILES = frozenset({__file__, runpy.__file__, "<frozen runpy>"})

# Environment variable that Keras's part reads; it is named here because few programs load that
# part.
_DATASETS_VARIABLE = "POPTORCH_EMU_DATASETS"

_WAY_TO_EXTRAS = {
    "keras": "Keras is an extra, for Python 3.11 or newer: pip install 'poptorch_emu[keras]'.",
    "tensorflow": "TensorFlow is an extra, for Python 3.11 to 3.13, beside PyTorch: "
    "pip install 'poptorch_emu[tensorflow]'.",
}

_DESCRIPTION = (
    "Runs a program on virtual IPUs. In the program, `import poptorch` and imports of the other "
    "modules of PopTorch's SDK import this package's modules. Arguments that follow the program "
    "are passed to it."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program that the command line names as Python would, with the names installed.

    An exception of the program is passed to `sys.excepthook` without the frames above the program,
    and the exit status is 1. Frames of this package are left out, too, unless no other frames
    explain a fault, or POPTORCH_LOG_LEVEL is DEBUG. If this package refused something, the line of
    the program, the rule of PopTorch, and the change to make follow.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.explain is not None:
        try:
            print(troubleshooting.explanation(given.explain))
        except LookupError as fault:
            parser.error(str(fault))
        return
    if not (given.module or given.code or given.script):
        parser.error("name a script, or a module after -m, or code after -c")
    if given.script and not os.path.exists(given.script[0]):
        parser.error(f"can't open file {given.script[0]!r}: no such file")
    if given.datasets is not None:
        os.environ[_DATASETS_VARIABLE] = given.datasets
    install()
    sys.modules["__mp_main__"] = _program_by_its_other_name()
    try:
        _run(given)
    except Exception as error:
        _report(error)
        sys.exit(1)


def _report(error: Exception) -> None:
    """Shows an exception of the program, without frames of this package if others explain it."""
    trace = _without_own_frames(error.__traceback__)
    is_said = is_explained(error, trace)
    is_short = (is_said or is_of_forward(trace)) and not logger.isEnabledFor(logging.DEBUG)
    if is_short:
        trace = without_inner_frames(trace)
        drop_inner_causes(error)
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, ModuleNotFoundError) and error.name in _WAY_TO_EXTRAS:
        print(f"What to change: {_WAY_TO_EXTRAS[error.name]}", file=sys.stderr)
    if is_short and is_said and not is_of_dataset(error):
        print(explanation(error, trace), file=sys.stderr)


def _run(given: argparse.Namespace) -> None:
    if given.module:
        sys.argv = given.module
        runpy.run_module(given.module[0], run_name="__main__", alter_sys=True)
    elif given.code:
        sys.argv = ["-c", *given.code[1:]]
        _run_code(given.code[0])
    else:
        sys.argv = given.script
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.realpath(given.script[0]))
        runpy.run_path(given.script[0], run_name="__main__")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m poptorch_emu",
        usage="%(prog)s [-h] [--version] [--datasets FOLDER] "
        "(script | -m module | -c code) [argument ...]\n"
        "       %(prog)s --explain id",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"poptorch_emu {__version__}")
    parser.add_argument(
        "--explain",
        metavar="id",
        help='print the explanation of a message that ends with "see troubleshooting: id"',
    )
    parser.add_argument(
        "--datasets",
        metavar="FOLDER",
        help="folder with files for keras.datasets, such as mnist.npz",
    )
    rest = argparse.REMAINDER
    way = parser.add_mutually_exclusive_group()
    way.add_argument("-m", dest="module", nargs=rest, help="run a module")
    way.add_argument("-c", dest="code", nargs=rest, help="run a line of code")
    parser.add_argument("script", nargs=rest, help="a file to run, and its arguments")
    return parser


def _run_code(code: str) -> None:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "<string>", "exec"), module.__dict__)


def _program_by_its_other_name() -> ModuleType:
    """Returns the module `__mp_main__`, which finds the program's classes in `__main__`.

    Other processes pickle the classes under this name, because Python gives it to its first module;
    here that would be the runner.
    """
    module = ModuleType("__mp_main__")
    setattr(module, "__getattr__", lambda name: getattr(sys.modules["__main__"], name))  # noqa: B010
    return module


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
