"""A rule recorded on a template must serve tensors of any shape, and be short."""

import pytest
import torch
from support.update_runner import hyper_values, initial_state, make_config
from torch.fx.experimental.proxy_tensor import make_fx

from poptorch_emu.update.formulas.optimizer_config import HYPERS
from poptorch_emu.update.formulas.optimizer_config import OptimizerKind as Kind
from poptorch_emu.update.formulas.rules import is_elementwise, update

_VALUES = {
    "lr": 0.01,
    "momentum": 0.9,
    "dampening": 0.1,
    "weight_decay": 0.02,
    "nesterov": 0.0,
    "velocity_scaling": 2.0,
    "beta1": 0.9,
    "beta2": 0.99,
    "alpha": 0.95,
    "eps": 1e-5,
    "max_weight_norm": 3.0,
}


def _config(kind, is_constant):
    return make_config(kind, {name: _VALUES[name] for name in HYPERS[kind]}, is_constant)


def _record(config, shape, tracing_mode="real"):
    """Returns the recorded rule, whose inputs are weight, gradient, state and variable hypers."""
    hyper = hyper_values(config)
    variable = {name: value for name, value in hyper.items() if isinstance(value, torch.Tensor)}

    def rule(weight, gradient, state, variable):
        return update(config, 0, weight, gradient, state, {**hyper, **variable})

    weight = torch.randn(shape)
    state = initial_state(config, weight)
    graph = make_fx(rule, tracing_mode=tracing_mode)(weight, weight.clone(), state, variable)
    return graph, variable


def _inputs(config, shape):
    weight = torch.randn(shape)
    state = initial_state(config, weight)
    for name, value in state.items():
        # The mean square, first of the centered rule, is never below the square of the mean.
        lowest = 3.0 if name == "Accl1" else 0.0
        state[name] = torch.tensor(3.0) if name == "Step" else torch.rand_like(value) + lowest
    return weight, torch.randn(shape), state


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_rule_when_recorded_on_a_template_then_runs_on_any_shape(kind, is_constant):
    config = _config(kind, is_constant)
    graph, variable = _record(config, (3, 5), "fake")
    for shape in [(), (1,), (7,), (2, 3, 4), (0, 4)]:
        weight, gradient, state = _inputs(config, shape)
        expected = update(config, 0, weight, gradient, state, hyper_values(config))
        replayed = graph(weight, gradient, state, variable)
        torch.testing.assert_close(replayed, expected, rtol=0, atol=0)
        assert replayed[0].dtype == torch.float32


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if is_elementwise(kind)], ids=lambda kind: kind.name.lower()
)
def test_rule_when_elementwise_then_parameters_may_be_joined(kind):
    config = _config(kind, is_constant=False)
    parts = [_inputs(config, shape) for shape in [(3,), (17,), (1,)]]
    hyper = hyper_values(config)
    apart = [update(config, 0, w, g, s, hyper) for w, g, s in parts]
    state = {
        name: value if name == "Step" else torch.cat([s[name] for _, _, s in parts])
        for name, value in parts[0][2].items()
    }
    weight, gradient = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    joined, joined_state = update(config, 0, weight, gradient, state, hyper)
    # One ulp: the vector and the scalar code of a kernel may round differently.
    torch.testing.assert_close(joined, torch.cat([w for w, _ in apart]), rtol=2e-7, atol=2e-7)
    for name, value in joined_state.items():
        expected = value if name == "Step" else torch.cat([s[name] for _, s in apart])
        torch.testing.assert_close(value, expected, rtol=2e-7, atol=2e-7)


# Operations over whole parameters, with constant and with variable hyper-parameters. torch.optim's
# in-place code has one less where the step is corrected for bias, because it knows the step count
# as a number; a variable `nesterov` takes two to compute both directions and choose.
_NUM_LARGE = {
    Kind.SGD1: (4, 6),
    Kind.SGD2: (4, 6),
    Kind.ADAM: (9, 10),
    Kind.ADAMW: (9, 10),
    Kind.ADAMW_NO_BIAS: (9, 10),
    Kind.RMSPROP: (8, 9),
    Kind.RMSPROP_CENTERED: (10, 11),
    Kind.LAMB: (10, 11),
    Kind.LAMB_NO_BIAS: (8, 9),
}


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_rule_when_recorded_then_has_few_operations(kind, is_constant):
    graph, _ = _record(_config(kind, is_constant), (3, 5))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    large = [node for node in calls if node.meta["val"].shape == (3, 5)]
    assert len(large) <= _NUM_LARGE[kind][0 if is_constant else 1]
    assert not [node for node in calls if "clone" in str(node.target)]
