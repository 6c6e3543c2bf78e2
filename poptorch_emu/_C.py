"""Finds the C++ engine for the installed PyTorch and replaces itself by it.

The package has an engine for each minor version of PyTorch that it was built with, `_C_2_13` for
2.13, because PyTorch's binary interface changes between minor versions. This module replaces itself
in `sys.modules`, so that `from poptorch_emu import _C` is the engine. `_C.pyi` describes it.
"""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from poptorch_emu.log import logger

# Versions that passed the whole test suite. Other versions load with a warning if an engine exists.
TRIED = ((2, 13), (2, 14))
_REPAIR = (
    "pip install --force-reinstall --no-deps --no-build-isolation --no-binary poptorch_emu "
    "poptorch_emu (in a checkout: pip install --no-deps --no-build-isolation -e .)"
)


def load(version: str, folder: Path) -> object:
    """Returns the engine in a folder for a version of PyTorch.

    Raises:
        ImportError: the folder has no such engine, or it does not load with that PyTorch.
    """
    minor, built = minor_version(version), built_versions(folder)
    if minor not in built:
        what = f"was built with PyTorch {_joined(built)}" if built else "has not been built"
        raise ImportError(
            f"poptorch_emu {what}, but PyTorch {version} is installed. Build poptorch_emu with "
            f"that version: {_REPAIR}"
        )
    if minor not in TRIED:
        logger.warning(
            "This release of poptorch_emu was not tested with PyTorch %s, only with %s. Please "
            "report results that differ from those of plain PyTorch.",
            version,
            _joined(TRIED),
        )
    try:
        return import_module("poptorch_emu._C_{}_{}".format(*minor))
    except ImportError as cause:
        raise ImportError(
            f"The engine of poptorch_emu that was built with PyTorch {_joined([minor])} does not "
            f"fit PyTorch {version}, which is installed: {cause}. Build it again: {_REPAIR}"
        ) from cause


def built_versions(folder: Path) -> list[tuple[int, int]]:
    """Returns the versions of PyTorch for which a folder has an engine, in order."""
    suffix = EXTENSION_SUFFIXES[0]  # Suffix that this version of Python uses for engines.
    names = [path.name.removesuffix(suffix) for path in folder.glob(f"_C_*{suffix}")]
    return sorted(minor_version(name.removeprefix("_C_").replace("_", ".")) for name in names)


def _joined(versions: Sequence[tuple[int, int]]) -> str:
    return " and ".join("{}.{}".format(*each) for each in versions)


def minor_version(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version.

    Raises:
        ImportError: the version does not begin with two numbers.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ImportError(
            f"torch.__version__ is {version!r}, but poptorch_emu chooses its engine by the two "
            "numbers that a version begins with, such as '2.13.0'. Install a release of PyTorch, "
            "or give your build such a version."
        )
    return int(found[1]), int(found[2])


sys.modules[__name__] = load(torch.__version__, Path(__file__).parent)  # type: ignore[assignment]
