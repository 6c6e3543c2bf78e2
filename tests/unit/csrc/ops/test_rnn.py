"""Recurrent networks: their recording on `ipu`, and the results of their operators on the CPU."""

import itertools
from copy import deepcopy
from functools import partial

import pytest
import torch
from recorder import Recorder, fake, record, run_recorded
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch_emu import _C

ops = torch.ops.poptorch_emu

STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 5, 4

# Class, mode of our operator, options of the class.
CELLS = {
    "lstm": (nn.LSTM, "lstm", {}),
    "lstm without bias": (nn.LSTM, "lstm", {"bias": False}),
    "lstm with projection": (nn.LSTM, "lstm", {"proj_size": 2}),
    "gru": (nn.GRU, "gru", {}),
    "gru without bias": (nn.GRU, "gru", {"bias": False}),
    "rnn tanh": (nn.RNN, "rnn_tanh", {}),
    "rnn relu": (nn.RNN, "rnn_relu", {"nonlinearity": "relu"}),
    "rnn without bias": (nn.RNN, "rnn_tanh", {"bias": False}),
}

# PyTorch warns that its own projection does not run in oneDNN.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


HAS_VECTORS = _C.vector_width() > 0  # An LSTM by rows needs them.


def eager(cell, dtype=torch.float32):
    """Returns a bidirectional layer of PyTorch, an input and initial states that need gradients."""
    network_class, _, options = CELLS[cell]
    network = network_class(INPUTS, HIDDEN, bidirectional=True, dtype=dtype, **options)
    x = torch.randn(STEPS, BATCH, INPUTS, dtype=dtype, requires_grad=True)
    sizes = [options.get("proj_size", HIDDEN)] + [HIDDEN] * (network_class is nn.LSTM)
    state = [torch.randn(2, BATCH, size, dtype=dtype, requires_grad=True) for size in sizes]
    return network, x, state


def flat_results(network, x, state):
    output, last = network(x, tuple(state) if len(state) == 2 else state[0])
    return [output, *last] if len(state) == 2 else [output, last]


def by_layers(cell, network, x, state, *, by_rows=False):
    """Computes the same as `network`, with one call of our operator for each direction."""
    mode = CELLS[cell][1]
    weights = list(network.parameters())
    half = len(weights) // 2
    directions = [
        ops.rnn_layer(
            x,
            [initial[index] for initial in state],
            weights[index * half : (index + 1) * half],
            mode,
            index == 1,
            True,
            by_rows,
        )
        for index in (0, 1)
    ]
    outputs, *last = zip(*directions, strict=True)
    return [torch.cat(outputs, -1), *(torch.stack(part) for part in last[: len(state)])]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rnn_layer_results_equal_eager(cell, dtype):
    network, x, state = eager(cell, dtype)
    expected = flat_results(network, x, state)
    for ours, theirs in zip(by_layers(cell, network, x, state), expected, strict=True):
        if dtype is torch.float32:
            assert torch.equal(ours, theirs)
        else:
            # On some processors, float64 products of the library have other bits if the same
            # numbers lie elsewhere in memory. This is also true in eager PyTorch.
            torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rnn_layer_gradients_equal_eager(cell, dtype):
    network, x, state = eager(cell, dtype)
    leaves = [x, *state, *network.parameters()]
    expected_results = flat_results(network, x, state)
    seeds = [torch.randn_like(result) for result in expected_results]
    expected = torch.autograd.grad(expected_results, leaves, seeds)
    actual = torch.autograd.grad(by_layers(cell, network, x, state), leaves, seeds)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn tanh"])
def test_rnn_layer_gradient_of_the_last_state_alone_equals_eager(cell):
    network, x, state = eager(cell)
    leaves = [x, *state, *network.parameters()]
    expected = torch.autograd.grad(flat_results(network, x, state)[-1].sum(), leaves)
    actual = torch.autograd.grad(by_layers(cell, network, x, state)[-1].sum(), leaves)
    torch.testing.assert_close(actual, expected)


def test_rnn_layer_on_float32_lstm_has_the_gradient_bits_of_eager():
    """Both implementations run in oneDNN."""
    network, x, state = eager("lstm")
    leaves = [x, *state, *network.parameters()]
    expected = torch.autograd.grad(flat_results(network, x, state)[0].sum(), leaves)
    actual = torch.autograd.grad(by_layers("lstm", network, x, state)[0].sum(), leaves)
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("hidden", [32, 96])
@pytest.mark.parametrize("batch", [16, 21])
@pytest.mark.parametrize(("steps", "inputs"), [(1, INPUTS), (9, INPUTS), (40, 1500)])
@pytest.mark.parametrize("bias", [False, True])
def test_lstm_of_many_rows_is_as_near_to_float64_as_eager(hidden, batch, steps, inputs, bias):
    """On most processors it is trained by blocks of rows."""
    network = nn.LSTM(inputs, hidden, bidirectional=True, bias=bias)
    x = torch.randn(steps, batch, inputs, requires_grad=True)
    state = [torch.randn(2, batch, hidden, requires_grad=True) for _ in range(2)]
    seeds = [torch.randn(steps, batch, 2 * hidden), *(torch.randn(2, batch, hidden),) * 2]

    def everything(compute, dtype):
        wide = deepcopy(network).to(dtype)
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (x, *state)]
        results = compute(wide, leaves[0], leaves[1:])
        grads = torch.autograd.grad(
            results, [*leaves, *wide.parameters()], [seed.to(dtype) for seed in seeds]
        )
        return [*results, *grads]

    exact = everything(flat_results, torch.float64)
    eagers = everything(flat_results, torch.float32)
    ours = everything(partial(by_layers, "lstm", by_rows=HAS_VECTORS), torch.float32)
    for mine, theirs, value in zip(ours, eagers, exact, strict=True):
        error, error_of_eager = ((v - value).abs().max() for v in (mine, theirs))
        assert error <= 4 * error_of_eager + 1e-6 * value.abs().max()


@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden"),
    [(7, 40, INPUTS, 64), (64, 16, 64, 256), (64, 16, 300, 64)],
)
def test_lstm_of_many_rows_has_the_same_bits_on_any_number_of_threads(steps, batch, inputs, hidden):
    """Products of a thousand rows and more have other bits in MKL on several threads.

    Four threads and more share a block of 8 rows out of two.
    """
    network = nn.LSTM(inputs, hidden, bidirectional=True)
    x = torch.randn(steps, batch, inputs, requires_grad=True)
    state = [torch.randn(2, batch, hidden) for _ in range(2)]

    def trained():
        results = by_layers("lstm", network, x, state, by_rows=HAS_VECTORS)
        leaves = [x, *network.parameters()]
        return [*results, *torch.autograd.grad(results[0].square().sum(), leaves)]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = trained()
        for num_threads, shares in itertools.product((2, 3, 4, 7, 16), (True, False)):
            torch.set_num_threads(num_threads)
            _C.set_shares_work(shares)
            assert all(map(torch.equal, trained(), expected)), (num_threads, shares)
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
        _C.set_shares_work(True)


def test_rnn_layer_on_transposed_arguments_equals_contiguous_ones():
    network, x, state = eager("lstm")
    expected = by_layers("lstm", network, x, state)

    def transposed(tensor):
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)

    actual = by_layers("lstm", network, transposed(x), [transposed(part) for part in state])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("cell", ["gru", "lstm with projection", "lstm"])
def test_layer_that_cannot_run_by_rows_then_is_refused(cell):
    network, x, state = eager(cell)
    with pytest.raises(ValueError, match=f"multiple of 32 hidden units; it has {HIDDEN}"):
        by_layers(cell, network, x, state, by_rows=True)


@pytest.mark.parametrize("cell", ["lstm", "lstm with projection", "gru", "rnn tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rnn_layer_in_half_is_the_float32_result_rounded(cell, dtype):
    network, x, state = eager(cell)
    network.to(dtype)
    x, state = x.detach().to(dtype), [part.detach().to(dtype) for part in state]
    narrow = by_layers(cell, network, x, state)
    wide = by_layers(cell, network.float(), x.float(), [part.float() for part in state])
    for ours, reference in zip(narrow, wide, strict=True):
        assert ours.dtype is dtype
        assert torch.equal(ours, reference.to(dtype))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_rnn_layer_in_half_has_gradients_of_its_type(cell):
    network, x, state = eager(cell)
    network.to(torch.float16)
    x = x.detach().half().requires_grad_()
    leaves = [x, *network.parameters()]
    results = by_layers(cell, network, x, [part.half() for part in state])
    gradients = torch.autograd.grad(results[0].sum(), leaves)
    assert [g.dtype for g in gradients] == [torch.float16] * len(leaves)
    wide = torch.autograd.grad(
        by_layers(cell, network.float(), x.float(), [part.half().float() for part in state])[
            0
        ].sum(),
        [x],
    )
    torch.testing.assert_close(gradients[0], wide[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("cell", CELLS)
def test_rnn_layer_without_training_gives_the_same_and_keeps_nothing(cell):
    network, x, state = eager(cell)
    weights = list(network.parameters())[: len(list(network.parameters())) // 2]
    arguments = (x.detach(), [part[0].detach() for part in state], [w.detach() for w in weights])
    mode = CELLS[cell][1]
    trained = ops.rnn_layer(*arguments, mode, False, True)
    plain = ops.rnn_layer(*arguments, mode, False, False)
    for ours, reference in zip(plain[:3], trained[:3], strict=True):
        torch.testing.assert_close(ours, reference)
    assert plain[3].numel() == 0


@pytest.mark.parametrize("is_grad_enabled", [True, False], ids=["grad mode", "no grad mode"])
def test_backward_below_autograd_equals_autograd_whatever_the_grad_mode(is_grad_enabled):
    """The engine runs both operators below autograd; the grad mode affects oneDNN's workspace."""
    network, x, state = eager("lstm")
    weights = list(network.parameters())[:4]
    expected = torch.autograd.grad(
        ops.rnn_layer(x, [part[0] for part in state], weights, "lstm", False, True)[0].sum(),
        [x, *weights],
    )
    plain_state = [part[0].detach() for part in state]
    plain = [weight.detach() for weight in weights]
    with torch.set_grad_enabled(is_grad_enabled), torch._C._AutoDispatchBelowAutograd():
        results = ops.rnn_layer(x.detach(), plain_state, plain, "lstm", False, True)
        actual = ops.rnn_layer_backward(
            torch.ones_like(results[0]), None, None, x.detach(), plain_state, plain, *results,
            "lstm", False, True,
        )  # fmt: skip
    assert torch.equal(actual[0], expected[0])
    torch.testing.assert_close(actual[3:], list(expected[1:]))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_rnn_layer_on_meta_infers_shapes_and_types(cell, training):
    network, x, state = eager(cell)
    weights = list(network.parameters())[: len(list(network.parameters())) // 2]
    arguments = [x.detach(), [part[0].detach() for part in state], [w.detach() for w in weights]]
    real = ops.rnn_layer(*arguments, CELLS[cell][1], False, training)
    meta = ops.rnn_layer(
        arguments[0].to("meta"),
        *([tensor.to("meta") for tensor in tensors] for tensors in arguments[1:]),
        CELLS[cell][1],
        False,
        training,
    )
    for inferred, result in zip(meta[:3], real[:3], strict=True):
        assert inferred.shape == result.shape and inferred.dtype is result.dtype
    # Only oneDNN knows how large its workspace is.
    assert meta[3].dtype is real[3].dtype
    if meta[3].dtype is not torch.uint8:
        assert meta[3].shape == real[3].shape


def network_on_ipu(network_class, **options):
    def make():
        network = network_class(INPUTS, HIDDEN, device="ipu:0", **options)
        return network, [fake(STEPS, BATCH, INPUTS)]

    return make


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("options", "num_nodes"),
    [
        ({}, 1),
        ({"bidirectional": True}, 2),
        ({"num_layers": 2}, 2),
        ({"num_layers": 3, "bidirectional": True, "batch_first": True}, 6),
    ],
    ids=["single", "bidirectional", "two layers", "three layers, bidirectional, batch first"],
)
def test_network_on_ipu_records_one_node_a_layer_and_direction(cell, options, num_nodes):
    network_class, _, cell_options = CELLS[cell]
    forward, backward = record(network_on_ipu(network_class, **cell_options, **options))
    assert forward.count("poptorch_emu.rnn_layer") == num_nodes
    assert backward.count("poptorch_emu.rnn_layer_backward") == num_nodes
    others = {name.split(".")[1] for name in forward} - {"rnn_layer"}
    assert others <= {"zeros", "select", "cat", "stack", "transpose", "unsqueeze", "squeeze"}


def test_network_on_ipu_with_dropout_records_it_between_layers_only():
    forward, _ = record(network_on_ipu(nn.GRU, num_layers=3, dropout=0.5))
    nodes = [name for name in forward if "rnn_layer" in name or "dropout" in name]
    layer, dropout = "poptorch_emu.rnn_layer", "aten.native_dropout"
    assert nodes == [layer, dropout, layer, dropout, layer]


@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
def test_network_on_ipu_has_the_shapes_of_eager(batch_first):
    options = {"num_layers": 2, "bidirectional": True, "batch_first": batch_first, "proj_size": 2}
    output, (h, c) = nn.LSTM(INPUTS, HIDDEN, **options)(torch.randn(STEPS, BATCH, INPUTS))
    with FakeTensorMode(), Recorder():
        network = nn.LSTM(INPUTS, HIDDEN, device="ipu:0", **options)
        fake_output, (fake_h, fake_c) = network(fake(STEPS, BATCH, INPUTS))
        shapes = [tuple(tensor.shape) for tensor in (fake_output, fake_h, fake_c)]
        assert fake_output.device == torch.device("ipu:0")
    assert shapes == [tuple(tensor.shape) for tensor in (output, h, c)]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [{"bidirectional": True}, {"num_layers": 2, "batch_first": True}],
    ids=["bidirectional", "two layers, batch first"],
)
def test_network_recorded_on_ipu_equals_eager(cell, options):
    network_class, _, cell_options = CELLS[cell]
    network = network_class(INPUTS, HIDDEN, **cell_options, **options)
    names = [name for name, _ in network.named_parameters()]

    def results_and_gradients(x, *parameters):
        named = dict(zip(names, parameters, strict=True))
        output, _ = torch.func.functional_call(network, named, (x,))
        return (output, *torch.autograd.grad(output.square().sum(), [x, *parameters]))

    inputs = [torch.randn(STEPS, BATCH, INPUTS, requires_grad=True), *network.parameters()]
    expected = results_and_gradients(*inputs)
    torch.testing.assert_close(run_recorded(results_and_gradients, *inputs), expected)


@pytest.mark.parametrize("network_class", [nn.LSTM, nn.GRU], ids=["lstm", "gru"])
def test_network_on_ipu_given_a_packed_sequence_says_to_pad(network_class):
    with FakeTensorMode(), Recorder():
        network = network_class(INPUTS, HIDDEN, device="ipu:0")
        lengths = torch.tensor([6, 4, 2], device="cpu")
        with pytest.raises(RuntimeError, match="Packed sequences are not supported.*Pad the"):
            network(nn.utils.rnn.pack_padded_sequence(fake(STEPS, BATCH, INPUTS), lengths))


def test_second_derivative_of_rnn_layer_is_refused():
    network, x, state = eager("gru")
    results = by_layers("gru", network, x, state)
    (gradient,) = torch.autograd.grad(results[0].sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="rnn_layer_backward"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "peephole"}, "peephole"),
        ({"x": torch.zeros(STEPS, BATCH, INPUTS + 1)}, r"input of shape \[6, 3, 6\]"),
        ({"x": torch.zeros(0, BATCH, INPUTS)}, "no steps"),
        ({"state": [torch.zeros(BATCH, HIDDEN + 1)]}, r"initial state of shape \[3, 5\]"),
        ({"state": []}, "0 initial states"),
        ({"weights": [torch.zeros(12, INPUTS)]}, "1 weights"),
    ],
    ids=["mode", "input size", "no steps", "state size", "no state", "weights"],
)
def test_rnn_layer_with_a_bad_argument_names_it(change, message):
    arguments = {
        "x": torch.zeros(STEPS, BATCH, INPUTS),
        "state": [torch.zeros(BATCH, HIDDEN)],
        "weights": [torch.zeros(12, INPUTS), torch.zeros(12, HIDDEN)],
        "mode": "gru",
    }
    with pytest.raises(ValueError, match=message):
        ops.rnn_layer(*(arguments | change).values(), False, True)
