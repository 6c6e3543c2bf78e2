"""A few tiny models of current libraries, one or two for each thing that they do unlike others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.filterwarnings("ignore")

_TEXT = {
    "vocab_size": 24,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


def options(*, with_guards: bool = False) -> poptorch.Options:
    result = poptorch.Options().showCompilationProgressBar(False)
    if with_guards:
        poptorch.emulator.set_value_guards(result, max_programs=2)
    return result


def compared(model: nn.Module, *args: Any, with_guards: bool = False, **kwargs: Any) -> Any:
    """Returns the result of the compiled model, and that of PyTorch."""
    model.eval()
    own = options(with_guards=with_guards)
    emulated = poptorch.inferenceModel(copy.deepcopy(model), own)
    with torch.no_grad():
        return emulated(*args, **kwargs), model(*args, **kwargs)


def assert_near(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(**_TEXT)


class Trained(nn.Module):
    """A model with the mean square of its first result as loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **kwargs: Any) -> Any:
        result = self.model(**kwargs)
        return result, poptorch.identity_loss(result[0].square().mean(), "none")


def test_key_value_cache_of_a_decoder_when_called_by_name_then_is_an_object_of_the_same_class():
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaModel(llama())
    ids = torch.randint(24, (2, 5))
    actual, expected = compared(model, input_ids=ids)
    assert type(actual) is type(expected)
    ours, theirs = actual.past_key_values, expected.past_key_values
    assert type(ours) is type(theirs)
    assert_near(ours.layers[0].keys, theirs.layers[0].keys)
    assert_near(actual.last_hidden_state, expected.last_hidden_state)


def test_layer_drop_when_it_may_drop_a_layer_then_is_refused():
    transformers = pytest.importorskip("transformers")
    config = transformers.OPTConfig(
        **{
            key: _TEXT[key]
            for key in _TEXT
            if key not in ("intermediate_size", "num_key_value_heads")
        },
        ffn_dim=8,
        word_embed_proj_dim=8,
        max_position_embeddings=16,
        dropout=0.0,
        layerdrop=0.5,
    )
    model = Trained(transformers.OPTModel(config)).train()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    with pytest.raises(poptorch.Error, match=r"depends on a random draw.*torch\.where"):
        training(input_ids=torch.randint(24, (2, 5)))


def test_check_of_image_tokens_then_decides_nothing():
    transformers = pytest.importorskip("transformers")
    vision = transformers.CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=llama(), image_token_id=23, vision_feature_layer=-1
    )
    model = transformers.LlavaModel(config)
    ids = torch.tensor([[1, 23, 23, 23, 23, 2]])
    actual, expected = compared(model, input_ids=ids, pixel_values=torch.randn(1, 3, 8, 8))
    assert_near(actual.last_hidden_state, expected.last_hidden_state)


def test_grid_that_forward_reads_when_values_are_guarded_then_results_equal_pytorch():
    module = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    config = module.Qwen2VLVisionConfig(
        depth=1, embed_dim=16, hidden_size=8, num_heads=2, patch_size=2, spatial_merge_size=2
    )
    model = module.Qwen2VisionTransformerPretrainedModel(config)
    grid = torch.tensor([[1, 2, 4], [1, 4, 2]])
    patches = torch.randn(16, 3 * 2 * 2 * 2)
    emulated = poptorch.inferenceModel(copy.deepcopy(model).eval(), options(with_guards=True))
    for each in (grid, grid.flip(0)):
        with torch.no_grad():
            expected = model.eval()(patches, each)
        assert_near(emulated(patches, each)[0], expected[0])


def test_rows_of_a_mask_that_are_written_then_need_no_guard():
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn import MaskLabel

    mask = torch.tensor([True, False, True, False])
    labels = torch.tensor([0, 2, 1, 0])
    actual, expected = compared(MaskLabel(3, 4, method="concat"), torch.randn(4, 2), labels, mask)
    assert_near(actual, expected)


class OfData(nn.Module):
    """A graph network whose argument is an object."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCN

        self.network = GCN(3, 4, num_layers=1)

    def forward(self, data: Any) -> torch.Tensor:
        return self.network(data.x, data.edge_index)


def test_graph_in_an_object_when_values_are_guarded_then_results_equal_pytorch():
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data

    model = OfData().eval()
    emulated = poptorch.inferenceModel(copy.deepcopy(model), options(with_guards=True))
    edges = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1]])
    for each in (edges, edges.flip(0)):
        data = Data(x=torch.randn(3, 3), edge_index=each)
        with torch.no_grad():
            assert_near(emulated(data), model(data))


def test_graph_in_an_object_when_values_are_not_guarded_then_the_error_names_the_option():
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data

    emulated = poptorch.inferenceModel(OfData().eval(), options())
    data = Data(x=torch.randn(3, 3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(poptorch.Error, match="set_value_guards"):
        emulated(data)


class Spiking(nn.Module):
    """A layer and a neuron over a few steps of time."""

    def __init__(self) -> None:
        super().__init__()
        snntorch = pytest.importorskip("snntorch")
        self.linear = nn.Linear(3, 3)
        self.neuron = snntorch.Leaky(beta=0.9, threshold=0.2, init_hidden=True)

    def forward(self, steps: torch.Tensor, target: torch.Tensor) -> Any:
        self.neuron.reset_mem()
        spikes = torch.stack([self.neuron(self.linear(step)) for step in steps])
        return spikes, nn.functional.mse_loss(spikes.mean(0), target)


def test_state_that_a_neuron_assigns_when_trained_then_weights_equal_pytorch():
    plain = Spiking().train()
    emulated = copy.deepcopy(plain)
    batch = torch.rand(4, 2, 3), torch.rand(2, 3)
    optimizer = poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    training = poptorch.trainingModel(emulated, options(), optimizer)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        spikes, _ = training(*batch)
        reference.zero_grad()
        expected, loss = plain(*batch)
        loss.backward()
        reference.step()
        assert_near(spikes, expected.detach())
    assert_near(emulated.linear.weight, plain.linear.weight)
