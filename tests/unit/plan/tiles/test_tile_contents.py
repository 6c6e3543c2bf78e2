"""Compares the memory of the tiles with closed formulas, for each setting that affects memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.machine.costs.gather import look_up
from poptorch_emu.machine.costs.product import Product, plan_product
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.costs.vertices import Precision
from poptorch_emu.machine.ipu import MK2
from poptorch_emu.machine.tile_memory import IpuMemory, TileMemory

ROWS, WIDTH, STAGES = 64, 256, 4
ACTIVATION_BYTES = ROWS * WIDTH * 4
WEIGHT_BYTES = (WIDTH * WIDTH + WIDTH) * 4

pytestmark = pytest.mark.feature("emulator.tile_memory", fidelity="modelled")

Change = Callable[[poptorch.Options], object]


class Layers(torch.nn.Module):
    """Square layers with tanh on a given number of IPUs."""

    def __init__(self, num_ipus: int, num_layers: int = STAGES) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(WIDTH, WIDTH) for _ in range(num_layers)]
        )
        self.num_ipus = num_ipus

    def forward(self, x: torch.Tensor):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"part{index}", ipu_id=index * self.num_ipus // len(self.layers)):
                x = torch.tanh(layer(x))
        with poptorch.Block("loss", ipu_id=self.num_ipus - 1):
            return x, poptorch.identity_loss(x, "sum")


def options(change: Change = lambda options: None) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    change(opts)
    return opts


def trained(
    model: torch.nn.Module, change: Change = lambda options: None, accumulation: int = 1, **more
) -> TileMemory:
    opts = options(change)
    opts.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.AdamW(model.parameters(), **more)
    training = poptorch.trainingModel(model, opts, optimizer)
    training.compile(torch.randn(ROWS * accumulation * opts.replication_factor, WIDTH))
    return emulator.tile_memory(training)


def inferred(
    model: torch.nn.Module, *inputs: torch.Tensor, change: Change = lambda options: None
) -> TileMemory:
    wrapped = poptorch.inferenceModel(model.eval(), options(change))
    wrapped.compile(*inputs)
    return emulator.tile_memory(wrapped)


def held(memory: IpuMemory, kind: str) -> int:
    return dict(memory.always_live)[kind]


def test_always_live_then_is_weights_two_moments_and_accumulators_if_any() -> None:
    (once,) = trained(Layers(1)).ipus
    assert held(once, "weight") == STAGES * WEIGHT_BYTES
    # AdamW has two moments for each weight; its step counters are scalars.
    assert held(once, "optimiser state") == pytest.approx(2 * STAGES * WEIGHT_BYTES, abs=64)
    assert "accumulator" not in dict(once.always_live)
    (accumulating,) = trained(Layers(1), accumulation=2).ipus
    assert held(accumulating, "accumulator") == STAGES * WEIGHT_BYTES


def test_stash_when_pipelined_then_has_the_published_depth() -> None:
    """Each stage stashes its input and its output; the last one stashes one micro-batch only."""
    tiles = trained(Layers(STAGES), accumulation=8)
    for stage, memory in enumerate(tiles.ipus):
        depth = 2 * (STAGES - 1 - stage) + 1
        items = 0 if depth == 1 else 2 * ACTIVATION_BYTES
        assert held(memory, "stash") == depth * items


def test_peak_when_nothing_is_recomputed_then_holds_what_backward_reads() -> None:
    """At the end of forward, the input and the four results of tanh are live; gradients follow."""
    (memory,) = trained(Layers(1)).ipus
    assert memory.peak.num_bytes >= 5 * ACTIVATION_BYTES
    assert memory.peak.num_bytes <= 7 * ACTIVATION_BYTES + 2 * WEIGHT_BYTES


@pytest.mark.parametrize(("mode", "num_kept"), [(0, 1 + 4), (3, 1 + 1)])
def test_stash_when_recomputed_then_is_smaller(mode: int, num_kept: int) -> None:
    """The stash holds the input and all four results of tanh, or only the last of them."""

    def recompute(opts: poptorch.Options) -> None:
        opts._Popart.set("autoRecomputation", mode)

    tiles = trained(Layers(2, num_layers=8), recompute, accumulation=4)
    assert held(tiles.ipus[0], "stash") == 3 * num_kept * ACTIVATION_BYTES


class InPlace(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x + 1) * 2).sigmoid()


def test_peak_when_operations_are_elementwise_then_they_share_memory() -> None:
    """Every operation computes in place in the memory of the input."""
    (memory,) = inferred(InPlace(), torch.randn(ROWS, WIDTH)).ipus
    assert memory.peak.num_bytes == ACTIVATION_BYTES


class Product256(torch.nn.Module):
    def __init__(self, proportion: float | None = None, serial: int = 0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(1024, 4096))
        self.proportion, self.serial = proportion, serial

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.serial:
            mode = poptorch.MatMulSerializationMode.OutputChannels
            return poptorch.serializedMatMul(x, self.weight, mode, self.serial)
        x = x @ self.weight
        return x if self.proportion is None else poptorch.set_available_memory(x, self.proportion)


def planned_bytes(columns: int, proportion: float, num_tiles: int = MK2.num_tiles) -> int:
    product = Product(1024, 1024, columns, Precision.FLOAT)
    plan = plan_product(product, MK2, num_tiles, proportion)
    return plan.temporary_bytes - plan.result_bytes


BATCH = torch.zeros(1024, 1024)


def test_temporary_memory_then_is_that_of_the_plan_for_the_ipus_proportion() -> None:
    for proportion in (0.6, 0.2, 0.05):
        (memory,) = inferred(
            Product256(),
            BATCH,
            change=lambda o, p=proportion: o.setAvailableMemoryProportion({"IPU0": p}),
        ).ipus
        assert memory.peak.temporary_bytes == planned_bytes(4096, proportion)
    assert planned_bytes(4096, 0.05) < planned_bytes(4096, 0.6) / 4


def test_temporary_memory_when_an_operation_has_a_proportion_then_that_counts() -> None:
    def set_ipu(opts: poptorch.Options) -> None:
        opts.setAvailableMemoryProportion({"IPU0": 0.5})

    (memory,) = inferred(Product256(0.05), BATCH, change=set_ipu).ipus
    assert memory.peak.temporary_bytes == planned_bytes(4096, 0.05)


def test_temporary_memory_when_a_product_is_cut_then_is_that_of_a_part() -> None:
    (memory,) = inferred(Product256(serial=4), BATCH).ipus
    assert memory.peak.temporary_bytes == planned_bytes(1024, 0.6)
    assert 0 < planned_bytes(1024, 0.6) < planned_bytes(4096, 0.6)
    whole = inferred(Product256(), BATCH)
    parts = inferred(Product256(serial=4), BATCH)
    assert parts.mean_bytes(parts.ipus[0]) < whole.mean_bytes(whole.ipus[0])


def test_io_tiles_then_are_not_there_for_computing() -> None:
    def reserve(opts: poptorch.Options) -> None:
        opts.TensorLocations.numIOTiles(128)

    tiles = inferred(Product256(), BATCH, change=reserve)
    assert tiles.num_compute_tiles == 1472 - 128
    (memory,) = tiles.ipus
    assert memory.peak.temporary_bytes == planned_bytes(4096, 0.6, 1472 - 128)
    assert tiles.parts(memory)["weight"] == -(-1024 * 4096 * 4 // (1472 - 128))


class Overlapping(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapDeviceIterationLoop)
        return torch.relu(x) + 1


@pytest.mark.parametrize("depth", [1, 3])
def test_overlapped_input_then_waits_on_the_tiles_for_io_and_on_the_host(depth: int) -> None:
    """The I/O tiles hold one copy more than the host, on 64 tiles with 5 % for code."""

    def overlap(opts: poptorch.Options) -> None:
        opts.TensorLocations.numIOTiles(64)
        opts.setExecutionStrategy(poptorch.ShardedExecution())
        opts._Popart.set("defaultPrefetchBufferingDepth", depth)

    tiles = inferred(Overlapping(), torch.randn(ROWS, WIDTH), change=overlap)
    (memory,) = tiles.ipus
    assert memory.io_bytes == (depth + 1) * ACTIVATION_BYTES
    assert tiles.io_tile_bytes(memory) == round(1.05 * memory.io_bytes / 64)
    assert memory.host_bytes == depth * ACTIVATION_BYTES


def test_outlining_when_it_is_off_then_each_layer_has_a_program_of_its_own() -> None:
    def wide(opts: poptorch.Options) -> None:
        opts._Popart.set("enableOutlining", False)

    class Wide(Layers):
        """Layers whose activations use all tiles, so that all layers are alike."""

    model = Wide(1, num_layers=6)
    inputs = torch.randn(1472, WIDTH)
    (outlined,) = inferred(model, inputs).ipus
    (separate,) = inferred(model, inputs, change=wide).ipus
    assert separate.code.exchange > 4 * outlined.code.exchange
    assert separate.code.vertex_code == outlined.code.vertex_code


def test_outlining_when_the_threshold_is_out_of_reach_then_is_off() -> None:
    def demand(opts: poptorch.Options) -> None:
        opts._Popart.set("outlineThreshold", 1e9)

    def forbid(opts: poptorch.Options) -> None:
        opts._Popart.set("enableOutlining", False)

    inputs = torch.randn(1472, WIDTH)
    model = Layers(1, num_layers=6)
    demanded, forbidden = (inferred(model, inputs, change=change) for change in (demand, forbid))
    assert demanded.ipus[0].code == forbidden.ipus[0].code


def test_state_off_chip_then_takes_no_tile_but_while_it_is_used() -> None:
    def move(opts: poptorch.Options) -> None:
        location = poptorch.TensorLocationSettings().useOnChipStorage(False)
        opts.TensorLocations.setOptimizerLocation(location)

    (memory,) = trained(Layers(1), move).ipus
    assert held(memory, "optimiser state") < 64


def test_sharded_state_then_each_replica_holds_its_part() -> None:
    def shard(opts: poptorch.Options) -> None:
        opts.replicationFactor(4)
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        opts.TensorLocations.setOptimizerLocation(location)

    (memory,) = trained(Layers(1), shard).ipus
    biases = STAGES * WIDTH * 4  # Below the threshold of sharding.
    assert held(memory, "optimiser state") == pytest.approx(
        2 * (STAGES * WIDTH * WIDTH + biases), abs=64
    )


class Half(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.half, Precision.HALF), (torch.float, Precision.MIXED)]
)
def test_half_convolution_then_is_one_on_the_machine(
    dtype: torch.dtype, precision: Precision
) -> None:
    """The engine runs it in float32 between casts that an IPU does not need."""
    (memory,) = inferred(
        Half().half(),
        torch.zeros(4, 16, 32, 32, dtype=torch.half),
        change=lambda opts: opts.Precision.setPartialsType(dtype),
    ).ipus
    plan = plan_product(Product(4 * 32 * 32, 16, 16, precision), MK2, MK2.num_tiles)
    assert memory.peak.temporary_bytes == plan.temporary_bytes - plan.result_bytes
    assert memory.peak.num_bytes == 2 * 4 * 16 * 32 * 32 * 2


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)


def test_attention_then_its_scores_are_there() -> None:
    query = torch.randn(2, 4, 512, 16)
    (memory,) = inferred(Attention(), query).ipus
    assert memory.peak.num_bytes >= 2 * 4 * 512 * 512 * 4


class Dropped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor):
        x = torch.nn.functional.dropout(x * self.weight, 0.5)
        return x, poptorch.identity_loss(x, "sum")


def test_dropout_then_no_mask_waits_for_backward() -> None:
    (memory,) = trained(Dropped()).ipus
    assert memory.peak.num_bytes % ACTIVATION_BYTES < 4 * WIDTH * 4


def test_tile_memory_when_not_compiled_then_error() -> None:
    with pytest.raises(poptorch.Error, match="compile"):
        emulator.tile_memory(poptorch.inferenceModel(InPlace(), options()))


def test_tile_memory_when_the_executable_is_loaded_then_the_same(tmp_path) -> None:
    model = Layers(2)
    opts = options()
    opts.Training.gradientAccumulation(4)
    first = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters()))
    first.compileAndExport(tmp_path / "model.poptorch", torch.randn(4 * ROWS, WIDTH))
    second = poptorch.load(tmp_path / "model.poptorch")
    assert emulator.tile_memory(second) == emulator.tile_memory(first)


@pytest.mark.parametrize(
    ("system", "num_tiles"), [("mk1-pod16", 1216), ("mk2-pod16", 1472), ("bow-pod16", 1472)]
)
def test_tile_memory_then_is_that_of_the_systems_ipus(
    monkeypatch: pytest.MonkeyPatch, system: str, num_tiles: int
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", system)
    tiles = inferred(InPlace(), torch.randn(ROWS, WIDTH))
    assert tiles.chip.num_tiles == num_tiles
    assert tiles.chip.name.lower() == system.partition("-")[0]


class Viewing(torch.nn.Module):
    """A model whose backward reads a view of the input of the first of two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH // 2, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.first(x.view(-1, WIDTH // 2))
        with poptorch.Block("second", ipu_id=1):
            x = self.second(x)
            return x, poptorch.identity_loss(x, "sum")


def test_stash_when_a_view_of_an_input_waits_then_the_input_does() -> None:
    def keep(opts: poptorch.Options) -> None:
        opts._Popart.set("autoRecomputation", 0)

    tiles = trained(Viewing(), keep, accumulation=4)
    assert held(tiles.ipus[0], "stash") == 3 * ACTIVATION_BYTES


def peak_bytes(num_layers: int, mode: int) -> int:
    """Returns the live bytes at the peak of some layers on one IPU."""

    def change(options: poptorch.Options) -> None:
        options._Popart.set("autoRecomputation", mode)

    (ipu,) = trained(Layers(1, num_layers), change, accumulation=2).ipus
    return ipu.peak.num_bytes


def test_recomputation_when_standard_then_a_peak_grows_with_the_root_of_layers() -> None:
    # Without recomputation each layer keeps its tanh. With it, the graph of three operations per
    # layer is cut into as many pieces as the square root of the number of operations.
    num_layers = 48
    assert peak_bytes(num_layers, 0) >= num_layers * ACTIVATION_BYTES
    num_operations = 3 * num_layers + 1
    piece = round(num_operations**0.5)
    num_kept, num_live_again = num_operations // piece, piece // 3 + 1
    most = (num_kept + num_live_again + 3) * ACTIVATION_BYTES + WEIGHT_BYTES
    assert peak_bytes(num_layers, 1) <= most < num_layers * ACTIVATION_BYTES / 1.5


class Around(Layers):
    """Layers with a residual connection, so that only its value is live between layers."""

    def forward(self, x: torch.Tensor):
        for layer in self.layers:
            x = x + torch.tanh(torch.tanh(layer(x)))
        return x, poptorch.identity_loss(x, "sum")


def test_recomputation_when_values_go_around_layers_then_saves_as_much() -> None:
    def change(options: poptorch.Options) -> None:
        options._Popart.set("autoRecomputation", 1)

    plain = trained(Around(1, 48), accumulation=2).ipus[0].peak.num_bytes
    again = trained(Around(1, 48), change, accumulation=2).ipus[0].peak.num_bytes
    assert plain >= 2 * 48 * ACTIVATION_BYTES
    assert again <= plain / 2


class Table(torch.nn.Module):
    """A model with a table that is larger than all other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(50_000, 64)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.rows(indices), "sum")


TABLE_BYTES = 50_000 * 64 * 4


def test_look_up_of_an_inference_then_takes_what_the_plan_of_its_time_takes() -> None:
    """Programs of an inference start sooner, but the plan with the least memory is the same."""
    model = poptorch.inferenceModel(torch.nn.Embedding(1000, 32), options())
    indices = torch.zeros(64, dtype=torch.long)
    (memory,) = emulator.tile_memory(model, indices).ipus
    training, inference = (
        look_up(1000, 32, 64, 4, Tiles.of(MK2, MK2.num_tiles, is_training))
        for is_training in (True, False)
    )
    assert memory.peak.temporary_bytes == inference.temporary_bytes == training.temporary_bytes
    (operation,) = emulator.estimate(model, indices).operations()
    assert operation.cycles == inference.cost.cycles


@pytest.mark.parametrize(
    ("optimizer", "accumulation", "replicas", "is_sharded", "sizes"),
    [
        # The update holds the gradient, and a sum or copy of it.
        (poptorch.optim.SGD, 1, 1, False, 2),
        (poptorch.optim.SGD, 2, 1, False, 2),
        # The update holds the step, and the gradient if that is not accumulated.
        (poptorch.optim.AdamW, 1, 1, False, 2),
        (poptorch.optim.AdamW, 2, 1, False, 1),
        (poptorch.optim.LAMB, 2, 4, False, 1),
        (poptorch.optim.RMSprop, 2, 1, False, 1),
        # The update holds a quarter of gradient and step, and the gathered weight.
        (poptorch.optim.AdamW, 2, 4, True, 2 / 4 + 1),
        (poptorch.optim.LAMB, 1, 4, True, 2 / 4 + 1),
    ],
)
def test_update_then_holds_what_its_largest_weight_needs(
    optimizer, accumulation, replicas, is_sharded, sizes
) -> None:
    opts = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    if is_sharded:
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        opts.TensorLocations.setOptimizerLocation(location)
    model = Table().to("meta")
    training = poptorch.trainingModel(model, opts, optimizer(model.parameters(), lr=0.1))
    indices = torch.empty(8 * accumulation * replicas, dtype=torch.long, device="meta")
    (memory,) = emulator.tile_memory(training, indices).ipus
    # For a factor of 1, the gradient that backward computes is equally large.
    assert memory.peak.num_bytes == pytest.approx(sizes * TABLE_BYTES, rel=0.01)
    assert sizes == 1 or memory.peak.at == "the update of rows.weight"
