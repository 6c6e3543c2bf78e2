"""Annotations of operations, which change no value: api.md sections 12.1, 12.8 and 12.9."""

import pytest
import torch
from support.flow_models import FunctionModel, infer, quiet_options

import poptorch_emu as poptorch
from poptorch_emu.ir.graph import record_of

MatMulMode = poptorch.MatMulSerializationMode
X = torch.randn(1, 3, 8, 8)
WEIGHT = torch.randn(2, 3, 3, 3)
LHS, RHS = torch.randn(4, 8), torch.randn(8, 12)


@pytest.mark.feature("serializedMatMul", fidelity="exact")
@pytest.mark.parametrize("keep_precision", [False, True])
@pytest.mark.parametrize("factor", [0, 1, 2, 4])
@pytest.mark.parametrize("mode", list(MatMulMode))
def test_matmul_when_serialised_then_equals_matmul(mode, factor, keep_precision):
    lhs, rhs = torch.randn(2, 4, 8), torch.randn(8, 12)
    result = infer(
        lambda m, a, b: poptorch.serializedMatMul(a, b, mode, factor, keep_precision), lhs, rhs
    )
    torch.testing.assert_close(result, lhs @ rhs)


@pytest.mark.feature("serializedMatMul", fidelity="exact")
@pytest.mark.parametrize("mode", [MatMulMode.InputChannels, MatMulMode.ReducingDim])
@pytest.mark.parametrize("lhs_shape", [(4, 8), (3, 4, 8)])
def test_matmul_when_the_right_side_is_a_vector_then_equals_matmul(mode, lhs_shape):
    lhs, rhs = torch.randn(lhs_shape), torch.randn(8)
    result = infer(lambda m, a, b: poptorch.serializedMatMul(a, b, mode, 2), lhs, rhs)
    torch.testing.assert_close(result, lhs @ rhs)


@pytest.mark.feature("serializedMatMul", fidelity="exact")
def test_matmul_when_a_vector_has_no_columns_to_cut_then_error():
    with pytest.raises(poptorch.Error, match=r"cannot cut axis -1 of a tensor of shape \[8\]"):
        infer(
            lambda m, a, b: poptorch.serializedMatMul(a, b, MatMulMode.OutputChannels, 2),
            torch.randn(4, 8),
            torch.randn(8),
        )


@pytest.mark.feature("serializedMatMul", fidelity="exact")
@pytest.mark.parametrize(
    ("mode", "parts"),
    [(MatMulMode.InputChannels, 2), (MatMulMode.ReducingDim, 4), (MatMulMode.OutputChannels, 3)],
)
def test_matmul_when_serialised_then_it_really_runs_in_parts(mode, parts):
    model = FunctionModel(lambda m, a, b: poptorch.serializedMatMul(a, b, mode, parts))
    compiled = poptorch.inferenceModel(model, quiet_options())
    compiled(torch.randn(4, 8), torch.randn(8, 12))
    graph = compiled._executable.graph
    assert sum(node.target is torch.ops.aten.mm.default for node in graph.operations) == parts


@pytest.mark.feature("serializedMatMul", fidelity="exact")
@pytest.mark.parametrize("keep_precision", [False, True])
@pytest.mark.parametrize(
    ("mode", "parts", "sizes"),
    [
        # Numbers of elements in a part's result in forward, and in its gradients in backward.
        (MatMulMode.InputChannels, 2, {2 * 12, 2 * 8, 8 * 12}),
        (MatMulMode.ReducingDim, 4, {4 * 12, 4 * 2, 2 * 12}),
        (MatMulMode.OutputChannels, 3, {4 * 4, 4 * 8, 8 * 4}),
    ],
)
def test_matmul_when_serialised_then_its_gradients_run_in_parts_too(
    mode, parts, sizes, keep_precision
):
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lhs, self.rhs = torch.nn.Parameter(LHS.clone()), torch.nn.Parameter(RHS.clone())

        def forward(self, weights):
            product = poptorch.serializedMatMul(self.lhs, self.rhs, mode, parts, keep_precision)
            return product, poptorch.identity_loss(product * weights, "sum")

    model, weights = Product(), torch.randn(4, 12)
    training = poptorch.trainingModel(
        model, quiet_options(), poptorch.optim.SGD(model.parameters(), lr=1)
    )
    training(weights)
    graph = training._executable.graph
    products = [n for n in graph.operations if n.target is torch.ops.aten.mm.default]
    assert len(products) == 3 * parts
    assert {product.meta["val"].numel() for product in products} == sizes
    torch.testing.assert_close(model.lhs, LHS - weights @ RHS.T)
    torch.testing.assert_close(model.rhs, RHS - LHS.T @ weights)


@pytest.mark.feature("serializedMatMul", fidelity="exact")
def test_matmul_when_arguments_are_wrong_then_error():
    with pytest.raises(AssertionError):
        poptorch.serializedMatMul(1, X, MatMulMode.Disabled)
    with pytest.raises(AssertionError):
        poptorch.serializedMatMul(X, X, "disabled")
    with pytest.raises(AssertionError):
        poptorch.serializedMatMul(X, X, MatMulMode.Disabled, 2.0)
    with pytest.raises(poptorch.Error, match="into 3 parts"):
        infer(
            lambda m, a, b: poptorch.serializedMatMul(a, b, MatMulMode.ReducingDim, 3),
            torch.randn(4, 8), torch.randn(8, 12),
        )  # fmt: skip


def marked_inputs(mark, mode):
    def forward(model, x, y):
        x, y = mark((x, y), mode)
        return x * 2, y + 1

    return forward


def marked_outputs(mark, mode):
    return lambda model, x, y: mark((x * 2, y + 1), mode)


PLACES = {
    poptorch.set_overlap_for_input: marked_inputs,
    poptorch.set_overlap_for_output: marked_outputs,
}


@pytest.mark.feature("set_overlap_for_input / output", fidelity="modelled")
@pytest.mark.parametrize("mark", [poptorch.set_overlap_for_input, poptorch.set_overlap_for_output])
def test_overlap_when_set_then_structure_and_values_stay(mark):
    mode = poptorch.OverlapMode.OverlapDeviceIterationLoop
    structure = {"a": [X, 3], "b": (X + 1, None)}
    marked = mark(structure, mode)
    assert marked["a"][1] == 3 and marked["b"][1] is None
    assert torch.equal(marked["a"][0], X) and torch.equal(marked["b"][0], X + 1)
    assert mark(7, mode) == 7
    options = quiet_options().setExecutionStrategy(poptorch.ShardedExecution())
    options.TensorLocations.numIOTiles(32)
    model = poptorch.inferenceModel(FunctionModel(PLACES[mark](mark, mode)), options)
    first, second = model(X, X + 1)
    assert torch.equal(first, X * 2) and torch.equal(second, X + 1 + 1)


def records(function, *inputs):
    compiled = poptorch.inferenceModel(FunctionModel(function), quiet_options())
    compiled(*inputs)
    return [record_of(node) for node in compiled._executable.graph.operations]


@pytest.mark.feature("NameScope", fidelity="exact")
def test_scope_when_nested_then_operations_carry_the_names():
    def forward(model, x):
        with poptorch.NameScope("outer"):
            x = x + 1
            with poptorch.NameScope("inner"):
                x = x * 2
        return x - 3

    assert [record.scope for record in records(forward, X)] == ["outer", "outer/inner", ""]


@pytest.mark.feature("NameScope", fidelity="exact")
def test_scope_when_an_operation_fails_then_the_error_names_it():
    def forward(model, x, index):
        with poptorch.NameScope("lookup"):
            return torch.gather(x, 1, index)

    with pytest.raises(poptorch.Error, match="node 'lookup/gather"):
        infer(forward, torch.ones(1, 3), torch.tensor([[9]]))


@pytest.mark.feature("NameScope", fidelity="exact")
def test_scope_when_name_is_no_string_then_error():
    with pytest.raises(AssertionError, match="Parameter to NameScope must be a string"):
        poptorch.NameScope(3)


@pytest.mark.feature("Attribute", fidelity="accepted")
def test_attributes_when_nested_then_they_merge_and_are_restored():
    def forward(model, x):
        with poptorch.Attribute(__outline={"layer": "embedding", "depth": 1}):
            x = x + 1
            with poptorch.Attribute(__outline={"depth": 2}, other={"k": [1.0]}):
                x = x * 2
            x = x / 3
        return x - 3

    outer = {"__outline": {"layer": "embedding", "depth": 1}}
    inner = {"__outline": {"layer": "embedding", "depth": 2}, "other": {"k": [1.0]}}
    found = [record.attributes for record in records(forward, X)]
    assert found == [outer, inner, outer, {}]


@pytest.mark.feature("Attribute", fidelity="accepted")
def test_attributes_when_not_in_a_dictionary_then_error():
    with pytest.raises(ValueError, match="Attribute '__outline' must be a dictionary, not 3"):
        poptorch.Attribute(__outline=3)


@pytest.mark.feature("set_available_memory", fidelity="modelled")
def test_available_memory_when_set_then_the_record_of_the_operation_says_it():
    def forward(model, x):
        product = poptorch.set_available_memory(x @ x, 0.2)
        return poptorch.set_available_memory(product + 1, available_memory_proportion=0.5) * 2

    found = [record.available_memory_proportion for record in records(forward, X)]
    assert 0.2 in found and found[-2:] == [0.5, None]
    torch.testing.assert_close(infer(forward, X), (X @ X + 1) * 2)
    assert poptorch.set_available_memory(X, 0.1) is X
    with pytest.raises(poptorch.Error, match="You may only set available memory for torch.tensor"):
        poptorch.set_available_memory([X], 0.1)


@pytest.mark.feature("MultiConv", fidelity="accepted")
def test_multi_conv_when_used_then_results_stay():
    def forward(model, x, w):
        multi = poptorch.MultiConv()
        multi.availableMemoryProportions((0.1, 0.2)).partialsTypes([torch.half, torch.float])
        multi.planType(poptorch.MultiConvPlanType.Parallel).perConvReservedTiles(10)
        multi.cycleBackOff(0.3).enableConvDithering(True)
        with multi:
            return torch.conv2d(x, w), torch.conv2d(x + 1, w)

    first, second = infer(forward, X, WEIGHT)
    torch.testing.assert_close(first, torch.conv2d(X, WEIGHT))
    torch.testing.assert_close(second, torch.conv2d(X + 1, WEIGHT))


@pytest.mark.feature("MultiConv", fidelity="accepted")
def test_multi_conv_when_a_list_has_the_wrong_length_then_error():
    def forward(model, x, w):
        with poptorch.MultiConv().enableConvDithering([True, False]):
            return torch.conv2d(x, w)

    with pytest.raises(poptorch.Error, match="2 values for 1 convolutions"):
        infer(forward, X, WEIGHT)


@pytest.mark.feature("MultiConv", fidelity="accepted")
def test_multi_conv_when_nested_then_error_and_the_next_trace_works():
    def nested(model, x):
        with poptorch.MultiConv(), poptorch.MultiConv():
            return x

    def single(model, x, w):
        with poptorch.MultiConv():
            return torch.conv2d(x, w)

    with pytest.raises(poptorch.Error, match=r"Nested poptorch.MultiConv is not supported\."):
        infer(nested, X)
    torch.testing.assert_close(infer(single, X, WEIGHT), torch.conv2d(X, WEIGHT))


@pytest.mark.feature("MultiConv", fidelity="accepted")
def test_multi_conv_when_it_holds_no_convolution_then_error_says_so() -> None:
    def forward(model, x):
        with poptorch.MultiConv():
            return x + 1

    with pytest.raises(poptorch.Error, match=r"no convolution within this poptorch\.MultiConv"):
        infer(forward, X)


@pytest.mark.feature("MultiConv", fidelity="accepted")
@pytest.mark.parametrize(
    ("method", "value", "error", "text"),
    [
        ("availableMemoryProportions", "a", AssertionError, "Invalid available memory proportion!"),
        ("availableMemoryProportions", [], AssertionError, "Invalid available memory proportion!"),
        ("partialsTypes", torch.int, ValueError, "Expecting torch.float or torch.half"),
        ("enableConvDithering", 1, ValueError, "value must be bool or list of bools"),
        ("planType", 0, AssertionError, "Invalid plan type!"),
        ("perConvReservedTiles", 1.0, AssertionError, "not an integer"),
        ("cycleBackOff", "x", AssertionError, "not a float"),
    ],
)
def test_multi_conv_when_a_setting_is_wrong_then_error(method, value, error, text):
    with pytest.raises(error, match=text):
        getattr(poptorch.MultiConv(), method)(value)
