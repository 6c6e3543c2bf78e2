"""A file of named sections, with a digest and the versions of its writer.

The file has a head (magic word, layout version, lengths, digest), a JSON header (versions of this
package and of PyTorch, list of sections), and the sections. Reading executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.errors import Error, make_error
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.version import __version__

_MAGIC = b"POPEMU\r\n"
_LAYOUT = 6
# Format of magic word, layout version, length of the header and length of the sections.
_LENGTHS = struct.Struct(f"<{len(_MAGIC)}sIIQ")
_HEAD_SIZE = _LENGTHS.size + hashlib.sha256().digest_size


@dataclass(frozen=True)
class Container:
    """The content of a file.

    Attributes:
        version: version of the package that wrote the file.
        torch_version: version of PyTorch at that time.
        sections: content of each section, by name.
    """

    version: str
    torch_version: str
    sections: dict[str, bytes]

    @property
    def is_of_this_version(self) -> bool:
        """Whether this package, with this PyTorch, wrote the file."""
        return (self.version, self.torch_version) == (__version__, torch.__version__)


def pack(sections: Mapping[str, bytes]) -> bytes:
    """Returns the bytes of a file with these sections, in order."""
    header = json.dumps(
        {
            "version": __version__,
            "torch": torch.__version__,
            "sections": [[name, len(content)] for name, content in sections.items()],
        }
    ).encode()
    body = b"".join(sections.values())
    lengths = _LENGTHS.pack(_MAGIC, _LAYOUT, len(header), len(body))
    return b"".join((lengths, _digest(lengths, header, body), header, body))


def unpack(data: bytes, name: str) -> Container:
    """Returns the content of a file.

    Args:
        data: all bytes of the file.
        name: name of the file for messages.

    Raises:
        Error: the data are no such file, are cut short or damaged, or have another layout version.
    """
    start = data[: len(_MAGIC)]
    if start != _MAGIC[: len(start)] or not data:
        raise make_error(
            f"Invalid file {name}: it is not an executable made by PopTorch (it begins with "
            f"{start!r} instead of {_MAGIC!r}); {Topic.INVALID_FILE}"
        )
    if len(data) < _HEAD_SIZE:
        raise _cut_short(name, len(data), _HEAD_SIZE)
    _, layout, header_size, body_size = _LENGTHS.unpack_from(data)
    if layout != _LAYOUT:
        raise make_error(
            f"Invalid file {name}: PopTorch version mismatch: its layout is of version {layout}, "
            f"and this PopTorch ({__version__}) reads version {_LAYOUT}. Compile the model again; "
            f"{Topic.INVALID_FILE}"
        )
    total = _HEAD_SIZE + header_size + body_size
    if len(data) < total:
        raise _cut_short(name, len(data), total)
    view = memoryview(data)
    header, body = view[_HEAD_SIZE:][:header_size], view[_HEAD_SIZE + header_size :]
    lengths, digest = view[: _LENGTHS.size], view[_LENGTHS.size : _HEAD_SIZE]
    if len(data) > total or _digest(lengths, header, body) != digest:
        raise make_error(
            f"Invalid file {name}: it is damaged, since its digest is not that of its content. "
            f"Compile the model again; {Topic.INVALID_FILE}"
        )
    try:
        return _container(json.loads(bytes(header)), body)
    except (LookupError, TypeError, ValueError, RecursionError) as cause:
        raise make_error(
            f"Invalid file {name}: its header is not what this package writes ({cause!r}). Compile "
            f"the model again; {Topic.INVALID_FILE}"
        ) from cause


def _container(described: Any, body: memoryview) -> Container:
    sections, start_of = {}, 0
    for section, size in described["sections"]:
        sections[section] = bytes(body[start_of : start_of + size])
        start_of += size
    return Container(described["version"], described["torch"], sections)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _cut_short(name: str, size: int, expected: int) -> Error:
    return make_error(
        f"Invalid file {name}: it is cut short: {size} bytes instead of {expected}. Write or copy "
        f"it again; {Topic.INVALID_FILE}"
    )
