"""Paths, names, disks and import hooks that are not as expected."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from support.forked_programs import run_forked
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import empty_library, emulator
from poptorch_emu.untrusted import files

X = torch.ones(2, 3)
NUL = "folder\0name"

WRITERS = {
    "cache": lambda _: options().enableExecutableCaching(NUL),
    "profile": lambda _: options().enableProfiling(NUL),
    "log": lambda _: options().logDir(NUL),
    "save": lambda model: model.save(NUL),
    "export": lambda model: model.compileAndExport(NUL, X),
    "load": lambda _: poptorch.load(NUL),
    "page": lambda model: emulator.page(model, NUL),
    "lab": lambda model: emulator.lab(model, NUL),
    "report": lambda model: emulator.report(model, NUL),
}


@pytest.mark.parametrize("name", WRITERS)
def test_path_with_a_nul_character_then_named_with_its_argument(name: str) -> None:
    model = poptorch.inferenceModel(nn.Linear(3, 3), options())
    model.compile(X)
    with pytest.raises(ValueError, match=r"is 'folder\\x00name', but no path can have a NUL"):
        WRITERS[name](model)


class Coloured(nn.Module):
    """A model with names that would change the colour and the title of a terminal."""

    LAYER = "layer\x1b[31m"

    def __init__(self) -> None:
        super().__init__()
        self.add_module(self.LAYER, nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block = poptorch.Block("block\x1b]0;title\x07", ipu_id=0)
        with block, poptorch.NameScope("scope\x1b[1m"):
            return poptorch.identity_loss(self.get_submodule(self.LAYER)(x), "sum")


def test_names_with_control_characters_then_no_report_holds_them(tmp_path: Path) -> None:
    opts = options().modelName("name\x1b[31m")
    model = poptorch.trainingModel(Coloured(), opts)
    model.compile(X)
    reports = (
        emulator.summary(model),
        emulator.estimate(model),
        emulator.memory(model),
        emulator.tile_memory(model),
        emulator.schedule(model),
        emulator.timeline(model),
    )
    texts = [text for report in reports for text in (str(report), report._repr_html_())]
    for write in (emulator.page, emulator.lab):
        write(model, tmp_path / "page.html")
        texts.append((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not [text for text in texts if "\x1b" in text or "\x07" in text]
    assert any(r"layer\x1b[31m" in text for text in texts)


def test_name_with_control_characters_then_an_error_shows_escapes() -> None:
    model = Coloured()
    model.get_submodule(Coloured.LAYER).weight = nn.Parameter(torch.ones(3, 3) * 1j)
    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(model, options())(X)
    assert r"layer\x1b[31m.weight" in str(caught.value) and "\x1b" not in str(caught.value)


def test_empty_library_when_the_disk_is_full_then_the_old_file_stays(tmp_path, monkeypatch) -> None:
    library = tmp_path / "ops.so"
    library.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fdopen", full)
    with pytest.raises(OSError, match="No space left"):
        empty_library.main([str(library)])
    assert library.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [library]


def test_export_when_the_disk_is_full_then_the_old_program_stays(tmp_path, monkeypatch) -> None:
    executor = poptorch.trainingModel(Coloured(), options())
    executor.compile(X)
    exported = emulator.export_pipeline(executor)
    exported.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_text, written = Path.write_text, []

    def full(path: Path, text: str) -> int:
        written.append(path.name)
        if path.name == "rules.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text[:-1])

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        exported.save(tmp_path)
    assert "pipeline.json" in written
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


HOOK = """
import importlib.machinery, sys
from poptorch_emu import emulator

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name in ("cppimport", "examples_utils", "horovod"):
            emulator.install()
            import poptorch

sys.meta_path.insert(0, Hook())
emulator.install()
import horovod, poptorch
from poptorch_emu.names.aliases import _Finder
print(len([each for each in sys.meta_path if isinstance(each, _Finder)]), horovod.__name__)
"""


def test_install_when_an_import_hook_calls_it_then_one_finder() -> None:
    done = run_forked(["-c", HOOK])
    assert done.stdout.split() == ["1", "poptorch_emu.companions.horovod"], done.stderr
