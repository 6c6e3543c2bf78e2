"""The files of a cache's folder: read and written with care, since others may reach the folder.

A folder that takes no files costs one warning, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from poptorch_emu.compile.stored.container import pack, unpack
from poptorch_emu.errors import Error
from poptorch_emu.log import logger
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.untrusted.files import NotRegularError, read_own, write_whole

# Folders that a warning was about.
_useless: set[Path] = set()


def read(path: Path) -> dict[str, bytes]:
    """Returns the sections of a file that this version wrote; none, if there is no such file.

    A file that cannot be used is reported.
    """
    try:
        container = unpack(read_own(path), str(path))
        return container.sections if container.is_of_this_version else {}
    except (Error, NotRegularError) as fault:
        warn_of_file(path, fault)
    except OSError:
        pass  # As of a file that is not there; of rights, writing tells.
    return {}


def write(path: Path, sections: Mapping[str, bytes]) -> bool:
    """Writes a file, and returns whether it could; where it could not, a warning says so once."""
    try:
        write_whole(path, pack(sections))
        return True
    except OSError as fault:
        warn_of_folder(path.parent, fault)
    return False


def warn_of_file(path: Path, fault: Exception) -> None:
    """Says that a file is damaged, or is none of ours."""
    logger.warning("Executable cache: %s cannot be used and will be replaced. %s", path, fault)


def warn_of_folder(folder: Path, fault: OSError) -> None:
    """Says, once for each folder, that it is of no use."""
    if folder not in _useless:
        _useless.add(folder)
        logger.warning("%s", text_of_folder(folder, fault, "Models are compiled each time."))


def text_of_folder(folder: Path, fault: OSError, consequence: str) -> str:
    """Returns what is wrong with a folder, what that means, and what to do."""
    return (
        f"Cache folder {folder} is not writable: {fault}. {consequence} Give "
        "enableExecutableCaching() or POPTORCH_CACHE_DIR a directory in which files can be made; "
        f"{Topic.CACHE_FOLDER}"
    )
