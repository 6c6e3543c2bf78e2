"""`options.Emulator` and the order of a pipeline: settings that PopTorch does not have."""

import pytest

from poptorch_emu import PipelinedExecution, ShardedExecution, emulator
from poptorch_emu.config import HostRecomputation, PipelineOrder
from poptorch_emu.emulator import schedules
from poptorch_emu.enums import OutputMode
from poptorch_emu.options import Options
from poptorch_emu.options.freeze import freeze

pytestmark = pytest.mark.feature("Settings of the emulator", fidelity="exact")


def test_settings_when_functions_of_the_emulator_set_them_then_options_have_them():
    options = Options()
    emulator.set_latencies(options, "modelled")
    emulator.set_recomputation(options, "executed")
    emulator.set_value_guards(options, max_programs=3)
    copied = options.clone().Emulator
    assert copied.has_modelled_latencies
    assert copied.host_recomputation is HostRecomputation.EXECUTED
    assert copied.max_guarded_programs == 3
    assert "Emulator=EmulatorOptions(host_recomputation=" in repr(options)


def test_settings_when_the_options_are_frozen_then_are_refused():
    options = Options()
    options._freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        emulator.set_latencies(options, "modelled")
    assert not options.Emulator.has_modelled_latencies


@pytest.mark.parametrize("strategy", [PipelinedExecution("a"), ShardedExecution("a")])
def test_order_when_set_then_a_table_replaces_it(strategy):
    table = schedules.NAMED["one_f_one_b"]()
    strategy.set_order(PipelineOrder.SEQUENTIAL)
    assert strategy.order is PipelineOrder.SEQUENTIAL
    strategy.set_order(table)
    options = Options().outputMode(OutputMode.All)
    options.setExecutionStrategy(strategy)
    config = freeze(options, is_training=True).strategy
    assert (config.order, config.table) == (PipelineOrder.GROUPED, table)
