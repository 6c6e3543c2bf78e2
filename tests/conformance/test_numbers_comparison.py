"""`emulator.compare` and `emulator.record`: mistakes are named where they are, and nothing else is.

The list of mistakes is `support/numbers_models.py`. A golden run of the model without a mistake is
what each of them is held against, as a user holds a port against the original.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from support.numbers_models import HARMLESS, MISTAKES, Language, batch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import observed_runs
from poptorch_emu.errors import Error
from poptorch_emu.numbers.run import Direction
from poptorch_emu.numbers.run_file import RunWriter, opened
from poptorch_emu.numbers.verdicts import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")

ROWS = 2


def options(accumulation=1, replicas=1):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(accumulation)
    return opts.replicationFactor(replicas)


def adam(parameters, **settings):
    return poptorch.optim.AdamW(parameters, lr=0.01, **settings)


def sgd(parameters, **settings):
    return poptorch.optim.SGD(parameters, lr=0.1, **settings)


def training(change="", opts=None, optimizer=adam, **settings):
    model = Language(change)
    chosen = opts or options()
    return poptorch.trainingModel(model, chosen, optimizer(model.parameters(), **settings))


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return emulator.record(training(), tmp_path_factory.mktemp("runs") / "golden", *batch(ROWS))


@pytest.fixture(scope="module")
def golden_half(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "golden half"
    return emulator.record(in_half(training()), path, *batch(ROWS))


def in_half(executor):
    executor.model.half()
    return executor


def suspects(report):
    first = report.first
    return [first.value, *first.only_ours, *first.only_theirs]


def is_named(report, mistake):
    """Returns whether a report names the operation of a mistake."""
    module, kind = MISTAKES[mistake]
    return any(
        value.kind == kind and (value.module == module or value.module.startswith(f"{module}."))
        for value in suspects(report)
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_when_a_golden_run_is_there_then_its_operation_is_named(mistake, golden):
    report = emulator.compare(training(mistake), *batch(ROWS), against=golden)
    assert report.verdict is Verdict.DIFFERENT
    assert is_named(report, mistake)
    direction = Direction.BACKWARD if mistake == "gradient stopped" else Direction.FORWARD
    assert report.first.value.direction is direction


# The bias is less than what a norm may lose in float16.
SEEN_IN_HALF = [mistake for mistake in MISTAKES if mistake != "norm without bias"]
# In forward these change numbers by less than float16 may; their gradients are further apart.
BACKWARD_IN_HALF = ("gradient stopped", "norm of another weight", "smoothed labels")


@pytest.mark.parametrize("mistake", SEEN_IN_HALF)
def test_mistake_when_the_model_is_of_half_precision_then_its_operation_is_named(
    mistake, golden_half
):
    report = emulator.compare(in_half(training(mistake)), *batch(ROWS), against=golden_half)
    assert report.verdict is Verdict.DIFFERENT
    assert is_named(report, mistake)
    direction = Direction.BACKWARD if mistake in BACKWARD_IN_HALF else Direction.FORWARD
    assert report.first.value.direction is direction


@pytest.mark.parametrize("change", HARMLESS)
def test_harmless_change_when_a_golden_run_is_there_then_it_is_not_called_different(change, golden):
    report = emulator.compare(training(change), *batch(ROWS), against=golden)
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_compare_when_the_model_is_right_then_plain_pytorch_agrees():
    report = emulator.compare(training(opts=options(4)), *batch(4 * ROWS))
    assert report.verdict is Verdict.REORDERED
    directions = {row.direction for row in report.modules if row.num_values}
    assert directions == set(Direction)
    assert {row.module for row in report.modules} >= {"norm", "attention.qkv", "mlp.down", "head"}


class Normed(torch.nn.Module):
    """Batch norm, whose buffers change, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(0.4)
        self.last = torch.nn.Linear(4, 5)

    def forward(self, x, target):
        x = torch.relu_(self.norm(self.first(x)))
        x = self.last(self.drop(torch.nn.functional.avg_pool2d(x, 6).flatten(1)))
        return x, torch.nn.functional.cross_entropy(x, target)


def images(rows):
    return torch.randn(rows, 3, 8, 8), torch.randint(5, (rows,))


def normed(opts):
    model = Normed()
    return poptorch.trainingModel(model, opts.broadcastBuffers(False), sgd(model.parameters()))


def test_compare_when_there_are_buffers_dropout_and_replicas_then_plain_pytorch_agrees():
    report = emulator.compare(normed(options(2, 2)), *images(16))
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert any(row.module == "norm" and row.direction is Direction.GIVEN for row in report.modules)


def test_compare_when_the_model_is_not_in_training_then_only_forward_is_compared():
    model = Normed().eval()

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model.last(self.model.norm(self.model.first(x)).mean((2, 3)))

    report = emulator.compare(
        poptorch.inferenceModel(Scores(), poptorch.Options().deviceIterations(2)), images(4)[0]
    )
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert {row.direction for row in report.modules} == {Direction.GIVEN, Direction.FORWARD}


class Lost(torch.nn.Module):
    """Takes the loss of what a module makes."""

    def __init__(self, module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x, target):
        y = self.module(x)
        y = y[0] if isinstance(y, tuple) else y
        return y, torch.nn.functional.mse_loss(y, target)


class Noisy(torch.nn.Module):
    """Draws random numbers of several kinds; nobody needs the mask of its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(torch.nn.functional.dropout(x + 0.1 * torch.randn_like(x), 0.5))
        return y * torch.bernoulli(torch.full_like(y, 0.7))


class Tied(torch.nn.Module):
    """Uses a module twice, and a weight for two things."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 4, bias=False)
        self.inside = torch.nn.Linear(4, 4)
        self.inside.weight = self.out.weight

    def forward(self, x):
        return self.out(torch.tanh(self.inside(self.inside(x))))


@pytest.mark.parametrize(
    ("make", "shape", "out"),
    [
        (lambda: torch.nn.LSTM(4, 3, batch_first=True), (4, 5, 4), (4, 5, 3)),
        (lambda: torch.nn.GRU(4, 3, num_layers=2, batch_first=True), (4, 5, 4), (4, 5, 3)),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.2), (4, 5, 8), (4, 5, 8)),
        (Noisy, (4, 4), (4, 4)),
        (Tied, (4, 4), (4, 4)),
        (
            lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)),
            (4, 4),
            (4, 3),
        ),
    ],
    ids=["lstm", "gru", "encoder", "noisy", "tied", "weight norm"],
)
def test_compare_when_modules_are_of_many_kinds_then_plain_pytorch_agrees(make, shape, out):
    model = Lost(make())
    executor = poptorch.trainingModel(model, options(2, 2), sgd(model.parameters()))
    report = emulator.compare(executor, torch.randn(shape), torch.randn(out))
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_compare_when_the_model_computes_nothing_then_nothing_differs():
    report = emulator.compare(poptorch.inferenceModel(torch.nn.Identity()), torch.ones(2))
    assert (report.verdict, report.num_operations) == (Verdict.EQUAL, 0)


class Applied(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x * 2)


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (torch.sin, Verdict.DIFFERENT),
        (lambda x: x.exp() / x.exp().sum(-1, keepdim=True), Verdict.REORDERED),
    ],
    ids=["another", "the same"],
)
def test_output_when_its_operation_is_another_then_it_is_judged_all_the_same(function, verdict):
    x = torch.randn(3, 4)
    ours = poptorch.inferenceModel(Applied(lambda x: x.softmax(-1)))
    report = emulator.compare(ours, x, against=poptorch.inferenceModel(Applied(function)))
    assert report.verdict is verdict


def test_setting_when_nothing_after_it_tells_then_it_is_named_all_the_same():
    def clamped(least):
        return poptorch.inferenceModel(Applied(lambda x: torch.relu(x.clamp(least))))

    x = torch.randn(3, 4)
    report = emulator.compare(clamped(-0.1), x, against=clamped(-0.2))
    assert (report.verdict, report.first.value.kind) == (Verdict.DIFFERENT, "clamp")
    assert "min is -0.1 here and -0.2 there." in str(report)


def test_step_when_only_one_run_has_it_then_it_has_no_counterpart_and_is_not_equal(golden):
    right, other = (
        emulator.compare(training(change), *batch(ROWS), against=golden)
        for change in ("", "mask of infinity")
    )
    assert (right.num_missing, other.num_missing) == (0, 1)
    assert other.num_operations == right.num_operations - 1


def test_compare_when_weights_are_rounded_at_random_then_it_is_no_more_than_less_precision():
    model = Lost(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))).half()
    opts = options(2)
    opts.Precision.enableStochasticRounding(True)
    executor = poptorch.trainingModel(model, opts, sgd(model.parameters()))
    report = emulator.compare(executor, torch.randn(8, 4).half(), torch.randn(8, 4).half())
    assert report.verdict <= Verdict.LESS_PRECISION
    assert "weights are rounded at random" in str(report).replace("\n  ", " ")


def test_compare_when_a_loop_runs_once_in_plain_pytorch_then_a_note_says_so():
    class Loop(torch.nn.Module):
        def forward(self, x):
            return poptorch.for_loop(3, lambda y: (torch.tanh(y) + 1,), [x])[0] * 2

    report = emulator.compare(poptorch.inferenceModel(Loop()), torch.randn(4))
    assert report.verdict is Verdict.DIFFERENT
    assert "poptorch.for_loop runs its body once" in "".join(report.notes)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_compare_then_model_optimizer_and_device_stay_as_they_are(is_compiled):
    twins = [training(opts=options(2)), training(opts=options(2))]
    data = batch(2 * ROWS)
    if is_compiled:
        for twin in twins:
            twin(*data)
    emulator.compare(twins[0], *data)
    assert twins[0].isCompiled() == is_compiled
    losses = [[twin(*data)[1] for _ in range(3)] for twin in twins]
    torch.testing.assert_close(losses[0], losses[1], rtol=0.0, atol=0.0)
    for ours, theirs in zip(twins[0].model.parameters(), twins[1].model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_compare_when_the_model_has_trained_then_its_present_weights_count():
    model, data = training(), batch(ROWS)
    for _ in range(3):
        model(*data)
    assert emulator.compare(model).verdict is Verdict.REORDERED


def test_options_when_stages_are_others_then_all_bits_are_equal():
    one, two = options(8), options(8)
    two.setExecutionStrategy(poptorch.ShardedExecution())
    model = Language(num_ipus=2)
    executor = poptorch.trainingModel(model, one, adam(model.parameters()))
    assert emulator.compare(executor, *batch(16), against=two).verdict is Verdict.EQUAL


def test_options_when_replicas_take_over_micro_batches_then_sums_are_reordered():
    # Each replica has a running mean of its own, which sees other rows.
    model = training("buffer left alone", options(4))
    report = emulator.compare(model, *batch(8), against=options(2, 2))
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def with_schedule(opts):
    emulator.set_schedule(opts, emulator.schedules.gpipe())
    return opts


def with_shared_state(opts):
    place = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    opts.TensorLocations.setOptimizerLocation(place.minElementsForReplicatedTensorSharding(2))
    return opts


def with_half_partials(opts):
    opts.Precision.setPartialsType(torch.half)
    return opts


# Changes of options that do no harm: how, over how many IPUs, on how many replicas.
HARMLESS_OPTIONS = {
    "another order": (with_schedule, 2, 1),
    "shared states": (with_shared_state, 1, 2),
    "half partials": (with_half_partials, 1, 1),
}


@pytest.mark.parametrize("change", HARMLESS_OPTIONS)
def test_options_when_their_change_is_harmless_then_it_is_not_called_different(change):
    changed, num_ipus, replicas = HARMLESS_OPTIONS[change]
    model = Language(num_ipus=num_ipus)
    executor = poptorch.trainingModel(model, options(4, replicas), adam(model.parameters()))
    others = changed(options(4, replicas))
    report = emulator.compare(executor, *batch(8 * replicas), against=others)
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_stage_split_when_it_is_another_then_it_is_not_called_different(golden):
    model = Language(num_ipus=2)
    opts = options().setExecutionStrategy(poptorch.ShardedExecution())
    executor = poptorch.trainingModel(model, opts, adam(model.parameters()))
    report = emulator.compare(executor, *batch(ROWS), against=golden)
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_channels_last_then_it_is_not_called_different(tmp_path):
    x, target = images(4)
    twins = [normed(options(2)), normed(options(2))]
    twins[1].model.load_state_dict(twins[0].model.state_dict())
    path = emulator.record(twins[0], tmp_path / "run", x, target)
    twins[1].model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    report = emulator.compare(twins[1], x, target, against=path)
    # The dropout is the same, since the seed is.
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_lists_then_they_are_as_long_as_they_should_be():
    # Beside them: other parameters and optimisers, other sums, no all-reduce; stages, replicas,
    # the layout of tensors.
    assert len(MISTAKES) >= 38
    assert len(HARMLESS) + len(HARMLESS_OPTIONS) >= 40


def test_all_reduce_when_another_machine_left_it_out_then_the_update_is_different(tmp_path):
    data, rate = batch(2 * ROWS), 0.1
    model = training("buffer left alone", options(1, 2), sgd)
    path = emulator.record(model, tmp_path / "right", *data)
    with opened(path) as run, RunWriter(tmp_path / "wrong") as writer:
        numbers = {value.name: number for number, value in enumerate(run.values) if value.name}
        for number, value in enumerate(run.values):
            writer.declare(value)
            weight = value.name.removeprefix("update of ")
            for place in run.places:
                tensor = run.read(number, place)
                if tensor is not None and weight != value.name:
                    # Each replica steps by its own gradient alone.
                    before = run.read(numbers[weight], (0, 0))
                    own = run.read(numbers[f"gradient of {weight}"], (0, 0))
                    tensor = before - rate * own
                if tensor is not None:
                    writer.add(number, place, tensor)
    assert emulator.compare(model, *data, against=path).verdict is Verdict.EQUAL
    report = emulator.compare(model, *data, against=tmp_path / "wrong")
    assert report.verdict is Verdict.DIFFERENT
    assert report.first.value.direction is Direction.UPDATE
    assert "The other run's weight is not what the optimizer makes" in report.first.reason


def test_options_when_gradients_are_added_up_then_the_update_is_different():
    summed = options(4)
    summed.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    report = emulator.compare(training(opts=options(4), optimizer=sgd), *batch(8), against=summed)
    assert report.verdict is Verdict.DIFFERENT
    assert report.first.value.direction is Direction.UPDATE
    assert "what the optimizer makes" in report.first.reason


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [(adam, {"eps": 1e-4}), (adam, {"weight_decay": 0.1}), (sgd, {"loss_scaling": 8.0})],
    ids=["eps", "weight decay", "loss scaling"],
)  # fmt: skip
def test_optimizer_when_a_setting_is_another_then_the_update_or_the_gradient_says_so(
    optimizer, settings
):
    report = emulator.compare(
        training(optimizer=optimizer, **settings),
        *batch(ROWS),
        against=training(optimizer=optimizer),
    )
    assert report.verdict is Verdict.DIFFERENT
    expected = Direction.BACKWARD if "loss_scaling" in settings else Direction.UPDATE
    assert report.first.value.direction is expected


def test_accumulators_when_they_are_half_then_it_is_less_precision_from_the_update_on():
    report = emulator.compare(
        training(opts=options(8), accum_type=torch.float16),
        *batch(8 * ROWS),
        against=training(opts=options(8)),
    )
    assert report.verdict is Verdict.LESS_PRECISION
    assert report.first.value.direction is Direction.UPDATE


def test_weights_when_they_are_others_then_the_parameter_is_named():
    other = training()
    with torch.no_grad():
        other.model.mlp.up.weight[3, 4] += 1e-3
    report = emulator.compare(training(), *batch(ROWS), against=other)
    assert report.verdict is Verdict.DIFFERENT
    assert report.first.value.name == "mlp.up.weight"
    assert report.first.sample.numbers[0][0] == (3, 4)


@pytest.mark.parametrize("shadow", [torch.float32, torch.float64], ids=str)
def test_half_when_a_shadow_is_wider_then_it_is_less_precision_and_no_more(shadow):
    executor = training(opts=options(2))
    executor.model.half()
    report = emulator.compare(executor, *batch(2 * ROWS), against=shadow)
    assert report.verdict is Verdict.LESS_PRECISION
    assert 1e-4 < max(row.relative for row in report.modules if row.module == "norm") < 0.1


class Logarithms(torch.nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, x):
        y = (x * x).clamp(min=self.least)
        return torch.log(y).sum(-1) + 1


@pytest.mark.parametrize(("least", "verdict"), [(1e-3, Verdict.EQUAL), (0.0, Verdict.NOT_FINITE)])
def test_numbers_when_they_are_not_finite_then_the_first_operation_is_named(
    least, verdict, tmp_path
):
    x = torch.tensor([[0.5, 0.0], [2.0, 3.0]])
    path = emulator.record(poptorch.inferenceModel(Logarithms(1e-3)), tmp_path / "run", x)
    report = emulator.compare(poptorch.inferenceModel(Logarithms(least)), x, against=path)
    if least:
        assert report.verdict is verdict
    else:
        # The clamp is where the numbers part, and the logarithm where they are not finite.
        assert report.verdict is Verdict.NOT_FINITE
        assert report.first.value.kind == "log"
        assert "This run is not finite here, of finite inputs." in str(report)


def hooked(model, *inputs):
    """Returns the outputs of all modules, as forward hooks give them."""
    outputs = {}
    for path, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, output, path=path: outputs.__setitem__(path, output)
        )
    model(*inputs)
    return outputs


PATHS = ["attention.qkv", "attention", "norm", "mlp.square", "mlp", "head"]


def test_outputs_of_modules_when_hooks_give_them_then_they_agree():
    outputs = hooked(Language(), *batch(ROWS))
    report = emulator.compare(
        training(), *batch(ROWS), against={path: outputs[path] for path in PATHS}
    )
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert report.num_operations == len(PATHS)


def test_outputs_of_modules_when_all_micro_batches_are_joined_then_each_is_compared():
    outputs = hooked(Language(), *batch(3 * ROWS))
    report = emulator.compare(
        training(opts=options(3)), *batch(3 * ROWS), against={"norm": outputs["norm"]}
    )
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert [row.num_values for row in report.modules] == [3]


@pytest.mark.parametrize("mistake", ["wrong eps", "mask shifted", "another activation", "negated"])
def test_outputs_of_modules_when_one_is_wrong_then_it_is_the_first(mistake):
    outputs = hooked(Language(mistake), *batch(ROWS))
    report = emulator.compare(
        training(), *batch(ROWS), against={path: outputs[path] for path in PATHS}
    )
    assert report.verdict is Verdict.DIFFERENT
    module, _ = MISTAKES[mistake]
    assert any(value.module.split(".")[0] == module for value in suspects(report))


def test_outputs_of_modules_when_they_are_half_then_it_is_less_precision():
    outputs = hooked(Language(), *batch(ROWS))
    half = {path: outputs[path].half() for path in PATHS}
    report = emulator.compare(training(), *batch(ROWS), against=half)
    assert report.verdict is Verdict.LESS_PRECISION


@pytest.mark.parametrize(
    ("against", "text"),
    [
        ({"nowhere": torch.ones(2)}, "No operation of the model runs in a module 'nowhere'"),
        ({"head": torch.ones(2, 7)}, r"The output of 'head' has the shape \[2, 7\], and in a"),
        ({"head": "text"}, "The output of 'head' is of type str"),
    ],
)
def test_outputs_of_modules_when_they_cannot_be_then_the_error_says_why(against, text):
    with pytest.raises(Error, match=text):
        emulator.compare(training(), *batch(ROWS), against=against)


def test_compare_when_bars_are_shown_then_each_ends_where_it_should(monkeypatch):
    bars = {}

    @contextmanager
    def counting(count, description, is_shown):
        assert is_shown
        bars[description] = [count, 0]

        def on_item():
            bars[description][1] += 1

        yield on_item

    monkeypatch.setattr(observed_runs, "counting", counting)
    opts = options(2).showCompilationProgressBar(True)
    emulator.compare(training(opts=opts), *batch(2 * ROWS))
    assert bars.keys() == {"This run", "Plain PyTorch", "Comparison"}
    assert all(count == done > 0 for count, done in bars.values())


def test_compare_when_it_is_given_something_else_then_the_error_lists_what_it_takes():
    with pytest.raises(TypeError, match="against is of type int; give None, torch.float32"):
        emulator.compare(training(), *batch(ROWS), against=3)


def test_compare_when_there_are_no_inputs_then_the_error_says_so():
    with pytest.raises(Error, match="The model is not compiled, so the shapes"):
        emulator.compare(training())


def test_record_when_the_model_goes_on_then_the_file_stays_what_it_was(tmp_path):
    model, data = training(), batch(ROWS)
    path = emulator.record(model, tmp_path / "run", *data)
    assert emulator.compare(training(), *data, against=path).verdict is Verdict.EQUAL
    model(*data)
    report = emulator.compare(model, *data, against=path)
    assert report.first.value.direction is Direction.GIVEN


class Failing(torch.nn.Module):
    """Fails on the host when it runs, after most of its values were made."""

    def __init__(self) -> None:
        super().__init__()
        self.host = poptorch.CPU(self.check, "check")

    def check(self, x):
        if x.sum() > 0:
            raise ValueError("found no way")
        return x

    def forward(self, x):
        return self.host(torch.tanh(x)) + 1


def test_record_when_the_run_fails_then_what_was_there_stays(tmp_path):
    path = emulator.record(training(), tmp_path / "run", *batch(ROWS))
    before = path.read_bytes()
    with pytest.raises(Error, match="check"):
        emulator.record(poptorch.inferenceModel(Failing()), path, torch.ones(3))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_record_then_it_can_be_read_with_other_weights_elsewhere(tmp_path):
    data, twin = batch(ROWS), copy.deepcopy(Language())
    path = emulator.record(training(), tmp_path / "run", *data)
    executor = poptorch.trainingModel(twin, options(), adam(twin.parameters()))
    assert emulator.compare(executor, *data, against=str(path)).verdict is Verdict.EQUAL


def test_report_when_it_is_printed_then_it_fits_the_terminal_and_is_text_in_a_notebook(golden):
    report = emulator.compare(training("scale left out"), *batch(ROWS), against=golden)
    lines = str(report).splitlines()
    assert lines[0].startswith("different: this run against golden")
    assert max(map(len, lines)) <= 80
    assert any("numbers_models.py" in line for line in lines)
    assert any("only there: mul in 'attention'" in line for line in lines)
    page = report._repr_html_()
    assert "<table>" in page
    assert "&#x27;attention&#x27;" in page


def test_report_when_a_module_has_a_name_like_markup_then_it_is_shown_as_text():
    model = torch.nn.Sequential()
    model.add_module("<b>\x1b[31m", torch.nn.Linear(2, 2))
    report = emulator.compare(poptorch.inferenceModel(model), torch.ones(1, 2))
    assert "<b>" not in report._repr_html_()
    assert "\x1b" not in str(report)
