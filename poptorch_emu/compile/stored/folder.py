"""Reads and writes files in a cache's folder, which others may be able to change.

A folder that is not writable causes one warning, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from poptorch_emu.compile.stored.container import pack, unpack
from poptorch_emu.errors import Error
from poptorch_emu.log import logger
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.untrusted.files import NotRegularError, read_own, write_whole

# Folders that have caused a warning.
_useless: set[Path] = set()


def read(path: Path) -> dict[str, bytes]:
    """Returns the sections of a file of this version; empty if there is no such file.

    A file that cannot be used causes a warning.
    """
    try:
        container = unpack(read_own(path), str(path))
        return container.sections if container.is_of_this_version else {}
    except (Error, NotRegularError) as fault:
        warn_of_file(path, fault)
    except OSError:
        pass  # The file does not exist, or a later write reports missing rights.
    return {}


def write(path: Path, sections: Mapping[str, bytes]) -> bool:
    """Writes a file, and returns whether that succeeded; warns once about a folder otherwise."""
    try:
        write_whole(path, pack(sections))
        return True
    except OSError as fault:
        warn_of_folder(path.parent, fault)
    return False


def warn_of_file(path: Path, fault: Exception) -> None:
    """Warns of a file that is damaged or not of this package."""
    logger.warning("Executable cache: %s cannot be used and will be replaced. %s", path, fault)


def warn_of_folder(folder: Path, fault: OSError) -> None:
    """Warns once of a folder that is not writable."""
    if folder not in _useless:
        _useless.add(folder)
        logger.warning("%s", text_of_folder(folder, fault, "Models are compiled each time."))


def text_of_folder(folder: Path, fault: OSError, consequence: str) -> str:
    """Returns a text with the fault of a folder, its consequence and a remedy."""
    return (
        f"Cache folder {folder} is not writable: {fault}. {consequence} Give "
        "enableExecutableCaching() or POPTORCH_CACHE_DIR a directory in which files can be made; "
        f"{Topic.CACHE_FOLDER}"
    )
