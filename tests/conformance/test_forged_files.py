"""Executables on disk with a correct digest and impossible contents."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu.compile.stored.container import pack, unpack

pytestmark = pytest.mark.feature("Options.enableExecutableCaching", fidelity="exact")


def without(key: str):
    def change(plan: dict) -> None:
        del plan[key]

    return change


def with_value(key: str, value: object):
    def change(plan: dict) -> None:
        plan[key] = value

    return change


CHANGES = {
    "no variables": without("variables"),
    "no schedule": without("schedule"),
    "variables are a number": with_value("variables", 3),
    "an unknown type": lambda plan: plan["variables"][0].update(dtype="float13"),
    "a name for a number": with_value("ipus_per_replica", "2"),
    "too many outputs": with_value("num_outputs", 9),
    "no number of IPUs": with_value("ipus_per_replica", 0),
    "a variable twice": lambda plan: plan["variables"].append(plan["variables"][0] | {"name": "x"}),
    "an unknown action": lambda plan: plan["schedule"]["rows"][0].append(["9Q9"]),
}


def forge(path: Path, change) -> None:
    """Changes the plan in a file, and corrects its digest."""
    sections = dict(unpack(path.read_bytes(), str(path)).sections)
    plan = json.loads(sections["plan"])
    change(plan)
    path.write_bytes(pack({**sections, "plan": json.dumps(plan).encode()}))


def options(folder: Path) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    return opts.enableExecutableCaching(str(folder))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_cached_file_when_forged_then_compiled_again_and_replaced(tmp_path, change, caplog) -> None:
    model, batch = FAMILIES["mlp"].make(1), FAMILIES["mlp"].batch(4)
    expected = poptorch.inferenceModel(model, options(tmp_path))(*batch)
    (path,) = tmp_path.glob("*.executable")
    genuine = path.read_bytes()
    forge(path, change)
    forged = path.read_bytes()
    for actual, value in zip(
        poptorch.inferenceModel(model, options(tmp_path))(*batch), expected, strict=True
    ):
        torch.testing.assert_close(actual, value)
    assert "cannot be used and will be replaced" in caplog.text
    assert path.read_bytes() not in (forged, b"") and len(path.read_bytes()) == len(genuine)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_exported_file_when_forged_then_error(tmp_path, change) -> None:
    model, batch = FAMILIES["mlp"].make(1), FAMILIES["mlp"].batch(4)
    opts = poptorch.Options().showCompilationProgressBar(False)
    path = tmp_path / "exported"
    poptorch.inferenceModel(model, opts).compileAndExport(path, *batch, export_model=False)
    forge(path, change)
    with pytest.raises(poptorch.Error, match="Invalid executable: .*Compile the model again"):
        poptorch.inferenceModel(model, opts).loadExecutable(path)


def test_results_that_the_program_lacks_when_forged_then_error_at_the_call(tmp_path) -> None:
    model, batch = FAMILIES["mlp"].make(1), FAMILIES["mlp"].batch(4)
    opts = poptorch.Options().showCompilationProgressBar(False)
    path = tmp_path / "exported"
    poptorch.inferenceModel(model, opts).compileAndExport(path, *batch, export_model=False)
    forge(path, with_value("anchors", ["something"]))
    inference = poptorch.inferenceModel(model, opts)
    inference.loadExecutable(path)
    with pytest.raises(poptorch.Error, match="2 results, but the model has 3"):
        inference(*batch)


# Forms of forged metadata. Fuzzing found that one of them ended the process.
FORMS = {
    "one too many": lambda metadata: [*metadata, metadata[0]],
    "one too few": lambda metadata: metadata[:1],
    "none at all": lambda metadata: [None, None],
    "no list": lambda metadata: metadata[0],
    "written": lambda _: "written",
    "larger than any memory": lambda metadata: [{**metadata[0], "shape": [2**40] * 3}, metadata[1]],
}


@pytest.mark.parametrize("change", FORMS.values(), ids=FORMS)
def test_metadata_of_a_result_when_forged_then_worked_out_anew(tmp_path, change) -> None:
    model, batch = FAMILIES["mlp"].make(1), FAMILIES["mlp"].batch(4)
    expected = poptorch.inferenceModel(model, options(tmp_path))(*batch)
    (path,) = tmp_path.glob("*.metadata")
    metadata = json.loads(unpack(path.read_bytes(), "metadata").sections["results"])
    (loss,) = (text for text in metadata if "nll_loss_forward" in text)
    metadata[loss] = change(metadata[loss])
    path.write_bytes(pack({"results": json.dumps(metadata).encode()}))
    for executable in tmp_path.glob("*.executable"):
        executable.unlink()
    for actual, value in zip(
        poptorch.inferenceModel(model, options(tmp_path))(*batch), expected, strict=True
    ):
        torch.testing.assert_close(actual, value)


def test_header_when_forged_then_error(tmp_path) -> None:
    forged = pack({"plan": b"{}"})
    header = b'{"version": 1}'
    data = unpack(forged, "it")
    assert data.sections == {"plan": b"{}"}
    with pytest.raises(poptorch.Error, match="its header is not what this package writes"):
        unpack(with_header(header), "it")


def with_header(header: bytes) -> bytes:
    """Returns a whole file of no sections with this header."""

    lengths = pack({})[: struct.calcsize("<8sI")] + struct.pack("<IQ", len(header), 0)
    return lengths + hashlib.sha256(lengths + header).digest() + header
