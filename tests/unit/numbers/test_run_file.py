"""Runs in files: written runs are read back, and files from elsewhere do no harm."""

import json
import os
import zipfile

import pytest
import torch

from poptorch_emu.errors import Error
from poptorch_emu.numbers.run import FIRST, Direction, Value, given
from poptorch_emu.numbers.run_file import VERSION, RunWriter, opened

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def written(path, tensor=None, value=None):
    tensor = torch.arange(6.0).reshape(2, 3) if tensor is None else tensor
    with RunWriter(path) as writer:
        writer.add(writer.declare(value or given("x", tensor)), FIRST, tensor)
    return path


def rewritten(path, change, packing=zipfile.ZIP_STORED):
    """Writes the archive again with entries that `change` has modified."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    content = json.loads(entries["run.json"])
    change(content, entries)
    entries["run.json"] = json.dumps(content).encode()
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 4), (3,), (2, 3, 4)], ids=str)
def test_run_when_it_is_written_then_it_is_read_bit_by_bit(tmp_path, dtype, shape):
    tensor = (torch.randn(shape) * 50).to(dtype)
    with opened(written(tmp_path / "run", tensor)) as run:
        found = run.read(0, FIRST)
    assert found.dtype == dtype
    torch.testing.assert_close(found, tensor, rtol=0.0, atol=0.0)


def test_run_when_a_value_is_a_view_then_its_own_numbers_are_written(tmp_path):
    tensor = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)[:, 1:]
    with opened(written(tmp_path / "run", tensor)) as run:
        assert torch.equal(run.read(0, FIRST), tensor)


def test_run_when_numbers_are_not_finite_then_they_stay(tmp_path):
    tensor = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    with opened(written(tmp_path / "run", tensor)) as run:
        found = run.read(0, FIRST)
    assert found.view(torch.int32).tolist() == tensor.view(torch.int32).tolist()


def test_run_then_it_knows_where_its_values_come_from(tmp_path):
    value = Value("layer_norm", 1, Direction.BACKWARD, "a.b", "file.py:3", torch.float32, (2, 3),
                  "", {"eps": 1e-5, "big": float("inf")}, True)  # fmt: skip
    with opened(written(tmp_path / "run", value=value)) as run:
        (found,) = run.values
        assert found == value
        assert found.settings == value.settings
        assert run.positions == (FIRST,)
        assert run.read(0, (1, 0)) is None


def test_run_when_the_writer_fails_then_the_file_is_no_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunWriter(tmp_path / "run"):
        raise KeyboardInterrupt
    with pytest.raises(Error, match="no run that emulator.record has written"):
        with opened(tmp_path / "run"):
            pass


def set_version(content, entries):
    content["version"] = VERSION + 1


def set_format(content, entries):
    content["format"] = "another"


def drop_list(content, entries):
    content.clear()


def set_type(content, entries):
    content["values"][0]["dtype"] = "float12"


def set_direction(content, entries):
    content["values"][0]["direction"] = "sideways"


def set_shape(content, entries):
    content["values"][0]["shape"] = [-1]


def set_kind(content, entries):
    content["values"][0]["kind"] = ["aten", "mm"]


def set_places(content, entries):
    content["values"][0]["positions"] = [[0]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (set_version, f"its format is of version {VERSION + 1}, and this package"),
        (set_format, "its list is of another kind"),
        (drop_list, "its list is of another kind"),
        (set_type, "'float12' is not a dtype of PyTorch"),
        (set_direction, "'sideways' is not a valid Direction"),
        (set_shape, "shape"),
        (set_kind, "kind"),
        (set_places, "positions"),
    ],
)
def test_list_when_somebody_else_made_it_then_the_error_says_what_is_wrong(tmp_path, change, text):
    path = rewritten(written(tmp_path / "golden.run"), change)
    with pytest.raises(Error, match=r"golden\.run is no run that emulator\.record") as error:
        with opened(path):
            pass
    assert text in str(error.value)
    assert "Record it again." in str(error.value)


def longer(content, entries):
    content["values"][0]["shape"] = [2**40, 2**40]


def shorter(content, entries):
    entries["0/0.0"] = entries["0/0.0"][:-1]


def missing(content, entries):
    del entries["0/0.0"]


@pytest.mark.parametrize("change", [longer, shorter, missing])
def test_value_when_its_bytes_do_not_fit_then_the_error_names_it(tmp_path, change):
    with opened(rewritten(written(tmp_path / "run"), change)) as run:
        with pytest.raises(Error, match="'x' cannot be read"):
            run.read(0, FIRST)


def test_entries_when_they_are_packed_then_they_are_refused(tmp_path):
    path = rewritten(written(tmp_path / "run"), lambda *_: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(Error, match=r"run\.json is packed"):
        with opened(path):
            pass


def test_value_when_a_bit_of_it_changed_then_its_check_sum_says_so(tmp_path):
    path = written(tmp_path / "run", torch.full((64,), 7.0))
    data = bytearray(path.read_bytes())
    position = data.index(torch.full((2,), 7.0).numpy().tobytes())
    data[position] ^= 1
    path.write_bytes(data)
    with opened(path) as run, pytest.raises(Error, match="cannot be read"):
        run.read(0, FIRST)


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06" + bytes(18), b"no archive" * 9], ids=len)
def test_file_when_it_is_no_archive_then_it_is_refused(tmp_path, data):
    (tmp_path / "run").write_bytes(data)
    with pytest.raises(Error, match="no run that emulator.record has written"):
        with opened(tmp_path / "run"):
            pass


def test_file_when_it_is_cut_anywhere_then_it_is_refused_in_words(tmp_path):
    data = written(tmp_path / "run").read_bytes()
    for length in range(0, len(data), 7):
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(Error, match="no run"):
            with opened(tmp_path / "cut") as run:
                run.read(0, FIRST)


def test_file_when_it_is_none_then_nothing_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "absent"):
        with pytest.raises(OSError, match=str(path)):
            with opened(path):
                pass
