# ruff: noqa: E501 -- tables of configurations
"""Layers and models of `torch_geometric`, with the edges of two small graphs as inputs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch_geometric.nn as geometric
from sample import Library, NoSampleError, Sample, first_that_runs
from small_sizes import without_chance
from torch_geometric.nn import aggr, conv, dense, models, norm, pool

_NODES, _EDGES, _SIZE, _GRAPHS = 8, 20, 8, 2
_MODULES = {
    "conv": conv,
    "models": models,
    "norm": norm,
    "aggr": aggr,
    "pool": pool,
    "dense": dense,
}

# Values for the parameters of constructors, by name.
_GIVEN: dict[str, Any] = {
    **dict.fromkeys(
        ("in_channels", "out_channels", "hidden_channels", "channels", "in_features", "node_dim"), _SIZE
    ),
    **dict.fromkeys(("edge_dim", "num_features", "num_node_features", "embedding_dim"), _SIZE),
    "dim": 1, "kernel_size": 2, "num_layers": 2, "num_relations": 3, "num_nodes": _NODES, "K": 2,
    "heads": 2, "num_heads": 2, "k": 3, "ratio": 0.5, "nn": "mlp", "num_blocks": 2, "pos_dim": 3,
    "walk_length": 4, "num_timesteps": 2, "num_embeddings": 10, "aggregators": ["sum", "mean"], "aggrs": ["sum", "mean"],
    "scalers": ["identity"], "deg": torch.tensor([0, 2, 4, 2]), "edge_in_channels": _SIZE, "num_clusters": 3,
    "processing_steps": 2, "learn": True, "num_segments": 2, "att_dim": _SIZE, "num_types": 3, "size": [3],
    "max_num_elements": _NODES, "num_seed_points": 1, "avg_num_nodes": 4, "num_outputs": 2, "phi": "mlp",
    "depth": 2, "edge_hidden_channels": _SIZE, "num_classes": 3, "min_score": None, "heads_num": 2,
    "emb_dim": _SIZE, "gate_nn": "gate", "spatial_dims": 3, "num_embed": 10, "aggr": "sum", "in_node_channels": _SIZE,
}  # fmt: skip


def names() -> list[str]:
    """Returns each public class of the library's modules, as module.Class."""
    found = []
    for room, module in _MODULES.items():
        for name in module.__all__:
            value = getattr(module, name, None) or getattr(geometric, name, None)
            is_module = inspect.isclass(value) and issubclass(value, torch.nn.Module)
            if is_module and not name.endswith(("MessagePassing", "Aggregation_")):
                found.append(f"{room}.{name}")
    return found


def make(name: str) -> Sample:
    """Returns a layer or model with the arguments that its forward requires."""
    room, _, own = name.partition(".")
    kind = getattr(_MODULES[room], own)
    model = kind(**_constructor_arguments(kind))
    model.eval()
    without_chance(model)
    return first_that_runs(model, _calls(model))


def _constructor_arguments(kind: type) -> dict[str, Any]:
    arguments = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        if name in _GIVEN and (required or name == "edge_dim"):
            value = _GIVEN[name]
            if value == "mlp" if isinstance(value, str) else False:
                value = torch.nn.Sequential(torch.nn.Linear(_inner(kind), _SIZE), torch.nn.ReLU())
            elif value == "gate" if isinstance(value, str) else False:
                value = torch.nn.Linear(_SIZE, 1)
            arguments[name] = value
        elif required and name.endswith("nn"):
            out = _SIZE * _SIZE if kind.__name__ in ("NNConv", "ECConv") else _SIZE
            arguments[name] = torch.nn.Linear(_inner(kind), out)
        elif required:
            raise NoSampleError(f"No value is known for the parameter {name} of {kind.__name__}.")
    return arguments


def _inner(kind: type) -> int:
    """Returns the number of input features of a layer's inner network."""
    name = kind.__name__
    if name in ("EdgeConv", "DynamicEdgeConv"):
        return 2 * _SIZE
    if name == "PointNetConv":
        return _SIZE + 3
    return _SIZE


def _calls(model: torch.nn.Module) -> list[Any]:
    accepted = inspect.signature(model.forward).parameters
    x = torch.randn(_NODES, _SIZE)
    half = _NODES // 2
    offset = torch.tensor([0, half]).repeat_interleave(_EDGES // 2)
    edges = torch.randint(half, (2, _EDGES)) + offset
    batch = torch.tensor([0, 1]).repeat_interleave(half)
    values: dict[str, Any] = {
        "x": x, "edge_index": edges, "batch": batch, "edge_attr": torch.randn(_EDGES, _SIZE),
        "edge_type": torch.randint(3, (_EDGES,)), "index": batch, "pos": torch.randn(_NODES, 3),
        "z": torch.randint(1, 9, (_NODES,)), "h": x, "input": x, "type_vec": torch.randint(3, (_NODES,)),
        "edge_weight": torch.rand(_EDGES), "hyperedge_index": edges, "x_0": x, "adj": (torch.rand(2, half, half) > 0.5).float(),
        "s": torch.randn(2, half, 3), "attention_mask": None, "node_type": torch.randint(3, (_NODES,)), "rel_type": torch.randint(3, (5,)),
        "head_index": torch.randint(_NODES, (5,)), "tail_index": torch.randint(_NODES, (5,)), "msg": torch.randn(_EDGES, _SIZE),
        "pseudo": torch.rand(_EDGES, 1), "normal": torch.randn(_NODES, 3), "pos_edge_index": edges, "neg_edge_index": edges.flip(0),
        "node_id": torch.arange(_NODES), "t": torch.rand(_EDGES), "src": edges[0], "score": torch.randn(_NODES), "mask": None,
    }  # fmt: skip
    required = {n: values[n] for n, p in accepted.items() if n in values and p.default is p.empty}
    shaped: list[dict[str, Any]] = [required]
    for extra in (("edge_attr",), ("edge_weight",), ("batch",), ("batch", "edge_attr"), ("index",)):
        known = [name for name in extra if name in accepted]
        shaped.append({**required, **{name: values[name] for name in known}})
    dense_x = torch.randn(2, half, _SIZE)
    shaped += [{**call, "x": dense_x} for call in shaped if "x" in call]
    shaped += [
        {**call, "pos": torch.randn(_NODES, 3), "x": torch.randn(_NODES, _SIZE)}
        for call in shaped[:2]
    ]
    prefer_index = [call for call in shaped if "index" in call or "batch" in call]
    is_pooling = type(model).__module__.split(".")[2] in ("aggr", "norm", "pool")
    return [*prefer_index, *shaped] if is_pooling else shaped


LIBRARY = Library(names, make)
