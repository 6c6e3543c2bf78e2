"""Devices (api.md §2.3, §5, §7.5, §16.3; semantics.md §9.2, §22), and the models that hold IPUs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.runtime import devices
from poptorch_emu.runtime.session import Session

FREE = "Failed to acquire {} IPU\\(s\\)"


@pytest.fixture(autouse=True)
def _fresh_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases IPUs of other tests' models, and clears their environment variables."""
    for name in ("POPTORCH_EMU_SYSTEM", "POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "_manager", devices._Manager())


class Doubled(nn.Module):
    """A model that uses IPUs 0 to `last_ipu`."""

    def __init__(self, last_ipu: int = 0) -> None:
        super().__init__()
        self.last_ipu = last_ipu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for ipu in range(self.last_ipu + 1):
            with poptorch.Block(str(ipu), ipu_id=ipu):
                x = x * 2
        return x


def options() -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    return opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))


def model(num_ipus: int = 1, opts: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(Doubled(num_ipus - 1), opts or options())


X = torch.ones(1)


@pytest.mark.feature("Device manager", fidelity="exact")
def test_attached_models_when_counted_then_hold_their_ipus_until_detached() -> None:
    first, second = model(4), model(2)
    first(X)
    assert devices.num_busy_ipus() == 4
    second(X)
    assert devices.num_busy_ipus() == 6
    first.detachFromDevice()
    assert devices.num_busy_ipus() == 2
    first.attachToDevice()
    assert devices.num_busy_ipus() == 6
    first.destroy()
    second.destroy()
    assert devices.num_busy_ipus() == 0


@pytest.mark.feature("Device manager", fidelity="exact")
def test_model_when_nobody_refers_to_it_then_gives_its_ipus_back() -> None:
    wrapped = model(16)
    wrapped(X)
    assert devices.num_busy_ipus() == 16
    del wrapped
    model(16)(X)  # Fails if the first model still holds the IPUs.


@pytest.mark.feature("Device manager", fidelity="exact")
@pytest.mark.parametrize(("replicas", "is_enough"), [(4, True), (8, False)])
def test_replicas_when_attached_then_each_takes_ipus(replicas: int, is_enough: bool) -> None:
    wrapped = model(4, options().replicationFactor(replicas))
    x = torch.ones(replicas)
    if is_enough:
        wrapped(x)
        assert devices.num_busy_ipus() == 16
        return
    with pytest.raises(poptorch.Error, match=FREE.format(32)):
        wrapped(x)
    assert not wrapped.isCompiled()


@pytest.mark.feature("Device manager", fidelity="exact")
def test_all_ipus_when_taken_then_the_next_model_fails_and_can_try_again() -> None:
    first, second = model(16), model(1)
    first(X)
    with pytest.raises(poptorch.Error, match=FREE.format(1)) as error:
        second(X)
    text = str(error.value)
    assert "16 of its 16 are in use" in text and "useIpuModel(True)" in text
    assert error.value.type == "poptorch_cpp_error"
    first.detachFromDevice()
    assert second(X).item() == 2


@pytest.mark.feature("Device manager", fidelity="exact")
@pytest.mark.parametrize("moment", ["first call", "attached again"])
def test_session_when_it_cannot_start_then_its_device_is_free_again(moment, monkeypatch) -> None:
    first, second = model(16), model(16)
    if moment == "attached again":
        first(X)
        first.detachFromDevice()

    def fail(session: Session, tensors: object) -> None:
        assert devices.num_busy_ipus() == 16
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "upload", fail)
        with pytest.raises(KeyboardInterrupt):
            first(X)
    assert devices.num_busy_ipus() == 0 and not first.isAttachedToDevice()
    assert first.isCompiled() is (moment == "attached again")
    assert second(X).item() == 2**16
    second.destroy()
    assert first(X).item() == 2**16


@pytest.mark.feature("Device manager", fidelity="exact")
def test_two_models_when_they_take_turns_then_one_device_is_enough(monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "mk2-pod4")
    first, second = model(4), model(4)
    for _ in range(2):
        first(X)
        first.detachFromDevice()
        second(X)
        second.detachFromDevice()
    assert devices.num_busy_ipus() == 0


@pytest.mark.feature("Device manager", fidelity="exact")
def test_ipus_when_no_aligned_device_is_free_then_fails() -> None:
    held = [model(8), model(4), model(1)]
    for each in held:
        each(X)
    with pytest.raises(poptorch.Error, match=FREE.format(4)):
        model(4)(X)
    model(2)(X)


@pytest.mark.feature("Options.autoRoundNumIPUs", fidelity="exact")
@pytest.mark.parametrize("is_rounded", [False, True])
def test_three_ipus_when_compiled_then_four_are_reserved_or_refused(is_rounded, caplog) -> None:
    wrapped = model(3, options().autoRoundNumIPUs(is_rounded))
    if not is_rounded:
        with pytest.raises(
            poptorch.Error, match="The model specifies the use of 3 IPUs.*must reserve a minimum"
        ) as error:
            wrapped(X)
        assert "poptorch.Options().autoRoundNumIPUs(True)" in str(error.value)
        return
    wrapped(X)
    assert "Reserving 4 IPUs when the model specifices the use of only 3" in caplog.text
    assert devices.num_busy_ipus() == 4


@pytest.mark.feature("Device manager", fidelity="exact")
def test_more_than_64_ipus_when_compiled_then_refused() -> None:
    wrapped = model(16, options().replicationFactor(8))
    with pytest.raises(
        poptorch.Error, match=r"Too many IPUs requested \(128\). Experiments that need"
    ):
        wrapped(torch.ones(8))


@pytest.mark.feature("POPTORCH_EMU_SYSTEM", fidelity="exact")
@pytest.mark.parametrize(
    ("name", "num_ipus", "version"),
    [
        ("mk2-pod4", 4, 2),
        ("mk2-pod16", 16, 2),
        ("mk2-pod64", 64, 2),
        ("bow-pod16", 16, 21),
        ("mk1-pod16", 16, 1),
    ],
)
def test_system_when_chosen_then_decides_size_and_version(
    name: str, num_ipus: int, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", name)
    assert poptorch.ipuHardwareIsAvailable(num_ipus)
    assert not poptorch.ipuHardwareIsAvailable(2 * num_ipus)
    assert not poptorch.ipuHardwareIsAvailable(3)
    assert poptorch.ipuHardwareVersion() == version
    wrapped = model(num_ipus)
    wrapped(X)
    assert devices.num_busy_ipus() == num_ipus


@pytest.mark.feature("POPTORCH_EMU_SYSTEM", fidelity="exact")
def test_system_when_unknown_then_error_lists_the_names(monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "mk3-pod16")
    for ask in (poptorch.ipuHardwareIsAvailable, lambda: model()(X)):
        with pytest.raises(poptorch.Error, match="'mk3-pod16'.*mk2-pod4, .*bow-pod64"):
            ask()


@pytest.mark.feature("ipuHardwareIsAvailable", fidelity="exact")
def test_hardware_when_there_is_no_system_then_unavailable_but_the_ipu_model_runs(
    monkeypatch,
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "none")
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(AssertionError, match="No IPU hardware available on this system"):
        poptorch.ipuHardwareVersion()
    with pytest.raises(poptorch.Error, match=FREE.format(1)) as error:
        model()(X)
    assert "useIpuModel(True)" in str(error.value)
    assert model(1, options().useIpuModel(True))(X).item() == 2


@pytest.mark.feature("POPTORCH_IPU_MODEL", fidelity="exact")
@pytest.mark.parametrize("variable", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_ipu_model_when_asked_for_by_the_environment_then_needs_no_device(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert not poptorch.ipuHardwareIsAvailable()
    wrapped = model(3)
    assert wrapped(X).item() == 8  # The IPU Model does not require a power of two.
    assert wrapped.isAttachedToDevice()
    assert devices.num_busy_ipus() == 0
    model(1, options().useIpuModel(False))(X)  # The option overrides the variable.


@pytest.mark.feature("POPTORCH_IPU_MODEL", fidelity="exact")
@pytest.mark.parametrize("value", ["yes", ""])
def test_ipu_model_when_the_variable_is_no_integer_then_error(value: str, monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_IPU_MODEL", value)
    with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL must be an integer"):
        poptorch.ipuHardwareIsAvailable()
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "0")
    assert poptorch.ipuHardwareIsAvailable()


@pytest.mark.feature("POPTORCH_IPU_MODEL_VERSION", fidelity="exact")
@pytest.mark.parametrize(
    ("version", "is_valid"), [("ipu1", True), ("ipu2", True), ("ipu21", True), ("mk2", False)]
)
def test_ipu_model_version_when_compiled_then_checked(version, is_valid, monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", version)
    wrapped = model(1, options().useIpuModel(True))
    if is_valid:
        wrapped(X)
    else:
        with pytest.raises(
            poptorch.Error,
            match="Invalid IPU model version. Valid versions: ipu1, ipu2, ipu21.",
        ):
            wrapped(X)
    model()(X)  # The virtual system does not read the version.


@pytest.mark.feature("Options.useIpuModel", fidelity="exact")
def test_ipu_model_when_combined_with_offline_or_cycles_then_refused() -> None:
    offline = options().useIpuModel(True).useOfflineIpuTarget()
    with pytest.raises(
        poptorch.Error,
        match="ConnectionType.Never / poptorch.Options.useOfflineIpuTarget not supported for",
    ):
        model(1, offline).compile(X)
    counting = options().useIpuModel(True).logCycleCount(True)
    with pytest.raises(
        poptorch.Error, match="Cycle count logging is only supported on actual IPU hardware."
    ):
        model(1, counting).compile(X)


@pytest.mark.feature("Options.useIpuId", fidelity="exact")
def test_ipu_id_when_named_then_that_device_is_taken(caplog) -> None:
    # With 16 IPUs, devices 0 to 15 have one IPU, 16 to 23 two, 24 to 27 four.
    first = model(1, options().useIpuId(3))
    first(X)
    with pytest.raises(
        poptorch.Error, match=FREE.format(1) + ".* device 3, which Options.useIpuId"
    ):
        model(1, options().useIpuId(3))(X)
    with pytest.raises(
        poptorch.Error, match="Expected at least replication factor \\* used IPUs = 2"
    ):
        model(2, options().useIpuId(5))(X)
    assert "some of them will not be used" not in caplog.text
    model(1, options().useIpuId(25))(X)
    assert "Expected replication factor * used IPUs = 1" in caplog.text
    assert caplog.records[-1].name == "poptorch:cpp"
    assert "some of them will not be used" in caplog.text
    with pytest.raises(poptorch.Error, match="has devices 0 to 30"):
        model(1, options().useIpuId(31))(X)
    offline = options().useIpuId(0).connectionType(poptorch.ConnectionType.Never)
    with pytest.raises(
        poptorch.Error, match="Offline compilation targeting a specific id not supported"
    ):
        model(1, offline).compile(X)


@pytest.mark.feature("POPTORCH_WAIT_FOR_IPU", fidelity="exact")
def test_no_free_device_when_asked_to_wait_then_asks_again_until_there_is(monkeypatch) -> None:
    holder, waiter = model(16), model(1)
    holder(X)
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.detachFromDevice()

    monkeypatch.setattr(devices.time, "sleep", sleep)
    monkeypatch.setattr(devices, "WAIT_INTERVAL_SECONDS", 0.25)
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "0")
    with pytest.raises(poptorch.Error, match=FREE.format(1)):
        waiter(X)
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    assert waiter(X).item() == 2
    assert pauses == [0.25] * 3
    with pytest.raises(poptorch.Error, match=FREE.format(32)):
        model(32)(X)  # Waiting would not help.


@pytest.mark.feature("Options.useOfflineIpuTarget", fidelity="exact")
def test_offline_model_when_compiled_then_never_takes_a_device() -> None:
    wrapped = model(3, options().useOfflineIpuTarget())
    wrapped.compile(X)
    assert wrapped.isCompiled() and not wrapped.isAttachedToDevice()
    assert devices.num_busy_ipus() == 0
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device") as error:
        wrapped(X)
    assert "ConnectionType.Never" in str(error.value)
    assert "model.compile(inputs)" in str(error.value)
    with pytest.raises(
        AssertionError, match="Trying to attach to an offline device \\(ConnectionType.Never\\)"
    ):
        wrapped.attachToDevice()


@pytest.mark.feature("Options.connectionType", fidelity="exact")
@pytest.mark.parametrize("connection", ["Always", "OnDemand"])
def test_connection_when_compiled_then_attached_within_compile(connection: str) -> None:
    wrapped = model(2, options().connectionType(poptorch.ConnectionType[connection]))
    assert devices.num_busy_ipus() == 0
    wrapped.compile(X)
    assert wrapped.isAttachedToDevice() and devices.num_busy_ipus() == 2


@pytest.mark.feature("Device manager", fidelity="exact")
def test_first_attach_in_a_process_then_says_once_that_this_is_an_emulator(
    caplog, monkeypatch
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "bow-pod16")
    caplog.set_level("INFO", logger="poptorch::python")
    devices._tell_once.cache_clear()  # As in a fresh process.
    for _ in range(2):
        model()(X)
    told = [record for record in caplog.records if "This is poptorch_emu" in record.message]
    assert [record.levelname for record in told] == ["INFO"]
    assert "'bow-pod16'" in told[0].message
