"""The stand-in for PopTorch's C++ module."""

import logging

import pytest

from poptorch_emu import errors
from poptorch_emu.log import logger
from poptorch_emu.names import native_core
from poptorch_emu.trace.places.blocks import tracing

pytestmark = pytest.mark.feature("poptorch.poptorch_core", fidelity="exact")


@pytest.mark.parametrize(
    ("name", "expected_class", "expected_type"),
    [
        ("Poptorch", errors.Error, "poptorch_cpp_error"),
        ("Popart", errors.Error, "popart_exception"),
        ("PopartInternal", errors.Error, "popart_internal_exception"),
        ("Poplibs", errors.Error, "poplibs_exception"),
        ("PoplarUnknown", errors.Error, "poplar_unknown_runtime_error"),
        ("PoplarLinkError", errors.Error, "poplar_link_error"),
        (
            "PoplarUnrecoverable",
            errors.UnrecoverableError,
            "poplar_unrecoverable_runtime_error",
        ),
        (
            "PoplarRecoverableFullReset",
            errors.RecoverableError,
            "poplar_recoverable_runtime_error",
        ),
    ],
)
def test_throw_test_error_then_raises_its_kind(name, expected_class, expected_type):
    with pytest.raises(errors.Error) as caught:
        native_core._throwTestError(getattr(native_core.TestErrorType, name))
    assert type(caught.value) is expected_class
    assert caught.value.type == expected_type
    assert f"'{expected_type}'" in str(caught.value)


def test_throw_recoverable_then_names_the_reset():
    with pytest.raises(native_core.RecoverableError) as caught:
        native_core._throwTestError(native_core.TestErrorType.PoplarRecoverableFullReset)
    assert caught.value.recovery_action == "FULL_RESET"


def test_is_compiling_then_only_in_a_trace():
    assert not native_core.isCompilingWithDispatcher()
    with tracing(lambda block_id, ipu_id: None):
        assert native_core.isCompilingWithDispatcher()
    assert not native_core.isCompilingWithDispatcher()


def test_validate_options_then_refuses_the_unknown():
    native_core._validateOptions({"enableOutlining": True})
    with pytest.raises(native_core.Error, match="Unknown bool option enableInlining"):
        native_core._validateOptions({"enableInlining": True})


def test_set_log_level_then_logger_follows():
    native_core.setLogLevel(4)
    assert logger.level == logging.ERROR
