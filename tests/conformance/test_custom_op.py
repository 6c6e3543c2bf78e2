"""Custom operators: api.md section 12.5."""

import pytest
import torch
from support.flow_models import infer, train_weight

import poptorch_emu as poptorch
from poptorch_emu.emulator import register_custom_op

pytestmark = pytest.mark.feature("custom_op", fidelity="exact")

X = torch.tensor([[1.0, -2.0, 3.0]])


def leaky(x, alpha=0.01):
    return torch.where(x > 0, x, x * alpha)


@pytest.fixture(autouse=True, scope="module")
def registered():
    register_custom_op("Cube", "test.python", lambda x: x**3)
    register_custom_op("Leaky", "test.python", leaky)
    register_custom_op("Both", "test.python", lambda x, y: (x + y, (x * y).int()), version=2)
    register_custom_op(
        "Backwards",
        "test.python",
        lambda x, factor: x * factor,
        backward=lambda gradient, x, factor: gradient * 100 * factor + x * 0,
    )
    library = torch.library.Library("test_native", "DEF")
    library.define("Scale(Tensor x, float by) -> Tensor")
    library.impl("Scale", lambda x, by: torch.mul(x, by), "CPU")
    library.impl("Scale", lambda x, by: torch.empty_like(x), "Meta")
    library.define("ScaleGrad(Tensor g, Tensor x, float by) -> Tensor")
    library.impl("ScaleGrad", lambda g, x, by: torch.mul(g, by), "CPU")
    library.impl("ScaleGrad", lambda g, x, by: torch.empty_like(x), "Meta")
    library.define("Forward(Tensor x) -> Tensor")
    library.impl("Forward", lambda x: torch.mul(x, 2), "CPU")
    library.impl("Forward", torch.empty_like, "Meta")
    library.define("Twice(Tensor x) -> Tensor")
    library.impl("Twice", lambda x: torch.mul(x, 2), "CPU")
    library.impl("Twice", torch.empty_like, "Meta")
    torch.library.register_autograd(
        "test_native::Twice", lambda ctx, gradient: gradient * 7, lib=library
    )
    yield
    library._destroy()


def custom(x, name, version=1, examples=None, domain="test.python", **attributes):
    examples = [x] if examples is None else examples
    return poptorch.custom_op([x], name, domain, version, examples, attributes or None)


def test_op_when_registered_then_it_runs_in_the_model():
    (result,) = infer(lambda m, x: custom(x + 1, "Cube"), X)
    torch.testing.assert_close(result, (X + 1) ** 3)


def test_op_when_given_attributes_then_they_arrive_by_keyword():
    (result,) = infer(lambda m, x: custom(x, "Leaky", alpha=0.25), X)
    torch.testing.assert_close(result, torch.nn.functional.leaky_relu(X, 0.25))


def test_op_when_it_has_several_outputs_then_all_come_back():
    def forward(model, x):
        return poptorch.custom_op([x, x + 1], "Both", "test.python", 2, (x, x.int()))

    total, product = infer(forward, X)
    torch.testing.assert_close(total, 2 * X + 1)
    assert torch.equal(product, (X * (X + 1)).int())


def test_op_when_trained_then_its_operations_are_differentiated():
    def forward(model, x):
        return poptorch.identity_loss(custom(x * model.weight, "Cube")[0].sum(), "none")

    weight = torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(train_weight(forward, X), 3 * (X[0] * weight) ** 2 * X[0])


def test_op_when_registered_with_a_backward_then_that_is_the_gradient():
    def forward(model, x):
        return poptorch.identity_loss(
            custom(x * model.weight, "Backwards", factor=2.0)[0].sum(), "none"
        )

    torch.testing.assert_close(train_weight(forward, X), 200 * X[0])


def test_op_when_defined_in_a_library_then_the_engine_calls_it():
    (result,) = infer(lambda m, x: custom(x, "Scale", domain="test.native", by=3.0), X)
    torch.testing.assert_close(result, 3 * X)


def test_op_when_a_library_has_its_grad_then_training_calls_it():
    def forward(model, x):
        y = custom(x * model.weight, "Scale", domain="test.native", by=3.0)[0]
        return poptorch.identity_loss(y.sum(), "none")

    torch.testing.assert_close(train_weight(forward, X), 3 * X[0])


def test_op_when_a_library_has_an_autograd_kernel_then_training_uses_it():
    def forward(model, x):
        y = custom(x * model.weight, "Twice", domain="test.native")[0]
        return poptorch.identity_loss(y.sum(), "none")

    torch.testing.assert_close(train_weight(forward, X), 7 * X[0])


def test_op_when_a_library_has_no_gradient_then_only_training_is_refused():
    def forward(model, x):
        y = custom(x * model.weight, "Forward", domain="test.native")[0]
        return poptorch.identity_loss(y.sum(), "none")

    torch.testing.assert_close(infer(forward, X), (X * 2 * torch.tensor([0.5, -1.0, 2.0])).sum())
    with pytest.raises(poptorch.Error, match="Define test_native::ForwardGrad in its library"):
        train_weight(forward, X)


def test_op_when_called_outside_a_trace_then_it_runs():
    torch.testing.assert_close(custom(X, "Cube")[0], X**3)


@pytest.mark.parametrize(
    ("name", "domain", "version"),
    [("Unknown", "test.python", 1), ("Cube", "other", 1), ("Cube", "test.python", 9)],
)
def test_op_when_unknown_then_error_says_how_to_register(name, domain, version):
    with pytest.raises(poptorch.Error, match=r"register_custom_op\('.*load_library"):
        infer(lambda m, x: custom(x, name, version, domain=domain), X)


@pytest.mark.parametrize(
    "examples",
    [lambda x: [x, x], lambda x: [x[:, :2]], lambda x: [x.int()]],
    ids=["count", "shape", "type"],
)
def test_op_when_examples_differ_from_results_then_error(examples):
    with pytest.raises(poptorch.Error, match="example_outputs"):
        infer(lambda m, x: custom(x, "Cube", examples=examples(x)), X)


@pytest.mark.parametrize(
    ("attributes", "error", "text"),
    [
        ({1: 2}, ValueError, "All attribute keys must be strings"),
        ({"a": None}, ValueError, "Attribute values must be floats, ints, strings"),
        ({"a": [{}]}, ValueError, "Attribute values must be floats, ints, strings"),
        ({"a": [1, 2.0]}, ValueError, "types in a list/tuple attribute must all be the same"),
        ({"a": "é"}, ValueError, "é contains non-ASCII characters"),
        ({"é": 1}, ValueError, "é contains non-ASCII characters"),
        ({"a": 1e39}, poptorch.Error, "is too high for a Popart float attribute"),
        ({"a": -1e39}, poptorch.Error, "is too low for a Popart float attribute"),
    ],
)
def test_attributes_when_wrong_then_error(attributes, error, text):
    with pytest.raises(error, match=text):
        poptorch.custom_op([X], "Cube", "test.python", 1, [X], attributes)


def test_attributes_when_given_then_they_are_kept():
    attributes = {"alpha": 0.5}
    poptorch.custom_op([X], "Leaky", "test.python", 1, [X], attributes)
    assert poptorch.attributes_lists[-1] == attributes
