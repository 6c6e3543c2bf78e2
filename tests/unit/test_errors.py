"""The two layouts of error texts, and the attributes that programs read."""

import pickle
import re

import pytest

from poptorch_emu.errors import (
    ConfigFileError,
    Error,
    RecoverableError,
    UnrecoverableError,
    compiler_error,
    make_error,
    require,
)

pytestmark = pytest.mark.feature("Errors", fidelity="exact")


def test_make_error_text_then_type_is_in_front():
    error = make_error("7 is not a shape.")
    assert type(error) is Error
    assert str(error) == "'poptorch_py_error': 7 is not a shape."
    assert error.message == "7 is not a shape."
    assert error.type == "poptorch_py_error"
    assert error.location == ""


def test_names_with_control_characters_then_texts_hold_escapes_and_their_own_lines():
    name = "layer\x1b[31m\x9b"
    for error in (make_error(f"{name}\n\tend"), compiler_error(f"{name}\n\tend", location=name)):
        assert error.message == r"layer\x1b[31m\x9b" + "\n\tend"
        assert "\x1b" not in f"{error}{error.location}" and "\x9b" not in f"{error}{error.location}"


def test_compiler_error_text_then_has_file_type_and_contexts():
    error = compiler_error("Too many IPUs.", location="place_blocks\ncompile_model")
    lines = str(error).splitlines()
    assert re.fullmatch(r"In test_errors\.py:\d+: 'poptorch_cpp_error': Too many IPUs\.", lines[0])
    assert lines[1:] == ["Error raised in:", "  [0] place_blocks", "  [1] compile_model"]
    assert error.message == "Too many IPUs."
    assert error.type == "poptorch_cpp_error"
    assert error.location == "place_blocks\ncompile_model"


def test_compiler_error_without_location_then_names_the_caller():
    assert "test_compiler_error_without_location" in compiler_error("x").location


@pytest.mark.parametrize(
    ("type_", "expected_class"),
    [
        ("poptorch_cpp_error", Error),
        ("popart_exception", Error),
        ("poplar_link_error", Error),
        ("poplar_recoverable_runtime_error", RecoverableError),
        ("poplar_unrecoverable_runtime_error", UnrecoverableError),
    ],
)
def test_compiler_error_class_follows_type(type_, expected_class):
    error = compiler_error("x", type=type_)
    assert type(error) is expected_class
    assert error.type == type_


def test_recoverable_error_then_text_names_the_action():
    error = compiler_error(
        "x", type="poplar_recoverable_runtime_error", recovery_action="FULL_RESET"
    )
    assert isinstance(error, RecoverableError)
    assert error.recovery_action == "FULL_RESET"
    assert str(error).splitlines()[1] == "Recovery action required: FULL_RESET"


def test_attributes_when_two_errors_exist_then_stay_apart():
    first, second = make_error("first"), make_error("second")
    assert (first.message, second.message) == ("first", "second")


# The text adds "In ...", "Error raised in:" and one context to the lines of the message.
@pytest.mark.parametrize(("message_lines", "is_cut"), [(78, False), (79, True)], ids=["80", "81"])
def test_compiler_error_beyond_80_lines_then_goes_to_a_file(
    message_lines, is_cut, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    message = "\n".join(f"line {n}" for n in range(message_lines))
    error = compiler_error(message, location="here")
    log = tmp_path / "poptorch_error.log"
    assert log.exists() == is_cut
    assert error.message == message
    assert len(str(error).splitlines()) == 80
    if is_cut:
        assert str(error).endswith("See poptorch_error.log for details")
        assert log.read_text().rstrip().endswith("[0] here")
        assert message in log.read_text()


def test_error_pickled_then_keeps_text_and_attributes():
    error = compiler_error("x", location="here")
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is Error
    assert str(restored) == str(error)
    assert vars(restored) == vars(error)


def test_class_tree_then_only_two_kinds_of_error_below_error():
    assert issubclass(RecoverableError, Error) and issubclass(UnrecoverableError, Error)
    assert not issubclass(RecoverableError, UnrecoverableError)
    assert not issubclass(Error, RuntimeError)
    assert not issubclass(ConfigFileError, Error)


def test_require_when_false_then_asserts_with_the_message():
    require(True, "unused")
    with pytest.raises(AssertionError, match="3 is odd"):
        require(False, "3 is odd")
