"""From options about memory and strategies to the immutable configuration of a compilation."""

import numpy as np
import pytest
import torch

from poptorch_emu.config import (
    LocationConfig,
    MachineConfig,
    PipelineOrder,
    Recomputation,
    StrategyKind,
    TensorLocation,
)
from poptorch_emu.emulator import set_schedule
from poptorch_emu.enums import Liveness, OutputMode
from poptorch_emu.errors import Error
from poptorch_emu.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    SerialPhasedExecution,
    TensorLocationSettings,
)
from poptorch_emu.options.freeze import freeze


def frozen(options):
    return freeze(options.outputMode(OutputMode.All), is_training=True)


@pytest.mark.parametrize("mode", Recomputation)
def test_freeze_when_recomputation_is_set_then_has_its_kind(mode):
    options = Options()
    options._Popart.set("autoRecomputation", mode.value)
    assert frozen(options).recomputation is mode


def test_freeze_when_locations_are_set_then_each_kind_has_its_own():
    options = Options()
    away = TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(8)
    options.TensorLocations.setWeightLocation(away)
    options.TensorLocations.numIOTiles(32).setActivationLocation(
        TensorLocationSettings().useIOTilesToLoad().useIOTilesToStore()
    )
    assert frozen(options).locations == LocationConfig(
        activation=TensorLocation(uses_io_tiles_to_load=True, uses_io_tiles_to_store=True),
        weight=TensorLocation(is_on_chip=False, min_elements_off_chip=8),
    )


def test_freeze_when_there_are_no_io_tiles_then_nothing_is_stored_on_them(caplog):
    stored = TensorLocationSettings().useIOTilesToStore()
    options = Options()
    options.TensorLocations.setWeightLocation(stored)
    assert not frozen(options).locations.weight.uses_io_tiles_to_store
    assert "useIOTilesToStore has no effect on the weight location" in caplog.text
    caplog.clear()
    options._Popart.set("numIOTiles", 64)
    assert frozen(options).locations.weight.uses_io_tiles_to_store
    assert frozen(options).machine.num_io_tiles == 64
    assert not caplog.text


@pytest.mark.parametrize(("elements", "is_remote"), [(7, False), (8, True), (9, True)])
def test_location_when_tensor_is_small_then_stays_on_chip(elements, is_remote):
    assert (
        TensorLocation(is_on_chip=False, min_elements_off_chip=8).is_remote(elements) == is_remote
    )
    assert not TensorLocation(min_elements_off_chip=8).is_remote(elements)


@pytest.mark.feature("Options.setAvailableMemoryProportion", fidelity="modelled")
@pytest.mark.feature("enableOutlining, outlineThreshold", fidelity="modelled")
def test_freeze_when_machine_options_are_set_then_are_recorded():
    options = Options()
    options.TensorLocations.numIOTiles(64)
    options.setAvailableMemoryProportion({"IPU1": 0.2, "IPU0": 0.6})
    options._Popart.set("defaultPrefetchBufferingDepth", 3)
    options._Popart.set("enableOutlining", False)
    options._Popart.set("outlineThreshold", 10.0)
    assert frozen(options).machine == MachineConfig(
        num_io_tiles=64,
        available_memory_proportion=((0, 0.6), (1, 0.2)),
        buffering_depth=3,
        is_outlined=False,
        outline_threshold=10.0,
    )


@pytest.mark.parametrize(
    ("change", "has_half_products", "has_half_convolutions"),
    [
        (lambda o: None, False, False),
        (lambda o: o.Precision.setPartialsType(torch.half), True, True),
        (lambda o: o.Precision.setPartialsType(torch.float), False, False),
        (lambda o: o._Popart.set("partialsTypeMatMuls", "half"), True, False),
        (lambda o: o._Popart.set("convolutionOptions", {"partialsType": "half"}), False, True),
    ],
    ids=["default", "half", "float", "products", "convolutions"],
)
def test_freeze_when_sums_are_half_then_is_recorded(
    change, has_half_products, has_half_convolutions
):
    options = Options()
    change(options)
    machine = frozen(options).machine
    assert machine.has_half_products == has_half_products
    assert machine.has_half_convolutions == has_half_convolutions


@pytest.mark.parametrize(
    ("change", "environment", "version"),
    [
        (lambda o: None, {}, 2),
        (lambda o: None, {"POPTORCH_EMU_SYSTEM": "bow-pod16"}, 21),
        (lambda o: None, {"POPTORCH_EMU_SYSTEM": "none"}, 2),
        (lambda o: o.useOfflineIpuTarget(1), {"POPTORCH_EMU_SYSTEM": "bow-pod16"}, 1),
        (lambda o: o.useIpuModel(True), {"POPTORCH_IPU_MODEL_VERSION": "ipu21"}, 21),
    ],
    ids=["default", "system", "no system", "offline", "IPU Model"],
)
def test_freeze_then_knows_the_version_of_the_ipus(monkeypatch, change, environment, version):
    for name in ("POPTORCH_EMU_SYSTEM", "POPTORCH_IPU_MODEL", "POPTORCH_IPU_MODEL_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = Options()
    change(options)
    assert frozen(options).machine.version == version


def test_freeze_when_there_is_no_such_ipu_then_error():
    options = Options().useOfflineIpuTarget(7)
    with pytest.raises(Error, match="no IPU of version 7.*one of 1, 2, 21"):
        frozen(options)


@pytest.mark.parametrize("num_tiles", [-2, 1472, 2000])
def test_freeze_when_no_tile_would_compute_then_error(num_tiles):
    options = Options()
    options._Popart.set("numIOTiles", num_tiles)
    with pytest.raises(Error, match=f"numIOTiles is {num_tiles}, but an IPU has 1472"):
        frozen(options)


@pytest.mark.parametrize(
    "proportion",
    [1, 0.5, np.float32(0.5), torch.tensor(0.5)],
    ids=lambda value: type(value).__name__,
)
def test_proportion_when_it_is_any_number_then_is_recorded(proportion):
    options = Options()
    options.setAvailableMemoryProportion({"IPU0": proportion})
    assert frozen(options).machine.available_memory_proportion == ((0, float(proportion)),)


def test_proportion_when_it_is_no_number_then_error():
    with pytest.raises(AssertionError, match="proportion of IPU0 must be a number, not '0.2'"):
        Options().setAvailableMemoryProportion({"IPU0": "0.2"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("enableOutlining", 1, "Unknown uint64 option enableOutlining"),
        ("outlineThreshold", 10, "Unknown uint64 option outlineThreshold"),
        ("outlineSequenceBreakCost", "1", "Unknown string option outlineSequenceBreakCost"),
        ("outliningThreshold", 1.0, "Unknown floating point option outliningThreshold"),
    ],
)
def test_freeze_when_an_outlining_option_is_misspelt_or_of_another_kind_then_raises(
    name, value, message
):
    options = Options()
    options._Popart.set(name, value)
    with pytest.raises(Error, match=message):
        frozen(options)


def test_freeze_when_a_memory_proportion_is_no_float32_then_raises():
    options = Options()
    options.setAvailableMemoryProportion({"IPU0": 1e40})
    with pytest.raises(Error, match="is too high for a Popart float attribute"):
        frozen(options)


def test_freeze_when_buffering_depth_is_zero_then_raises():
    options = Options()
    options._Popart.set("defaultBufferingDepth", 0)
    options._Popart.set("defaultPrefetchBufferingDepth", 0)
    with pytest.raises(ValueError, match="defaultBufferingDepth.* at least 1, not 0"):
        frozen(options)


def test_freeze_when_phased_then_has_liveness_and_separate_backward():
    serial = SerialPhasedExecution(Phase("a"), Phase("b"))
    serial.setTensorsLiveness(Liveness.OffChipAfterEachPhase).useSeparateBackwardPhase()
    strategy = frozen(Options().setExecutionStrategy(serial)).strategy
    assert strategy.is_phased
    assert strategy.liveness is Liveness.OffChipAfterEachPhase
    assert strategy.has_separate_backward_phase

    parallel = ParallelPhasedExecution(Phase("a"), Phase("b")).sendTensorsOffChipAfterFwd()
    strategy = frozen(Options().setExecutionStrategy(parallel)).strategy
    assert strategy.kind is StrategyKind.PARALLEL_PHASED
    assert strategy.liveness is Liveness.OffChipAfterFwd
    assert not strategy.has_separate_backward_phase


def test_freeze_when_order_is_set_then_survives_a_clone():
    options = Options()
    set_schedule(options, "interleaved")
    assert frozen(options.clone()).strategy.order is PipelineOrder.INTERLEAVED
    assert frozen(Options()).strategy.order is PipelineOrder.GROUPED
