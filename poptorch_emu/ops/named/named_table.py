"""Table of built-in operators by domain and name, and search for similar names.

Source: names, attributes, formulas and gradients are those of the public programs and libraries
that use the operators; each operator has version 1.
"""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.near_names import nearest
from poptorch_emu.ops.named import (
    activations,
    averages,
    collectives,
    copies,
    detections,
    distances,
    gathers,
    group_quantised,
    packed_attention,
    simulated_floats,
    sparse_products,
)
from poptorch_emu.ops.named.named_operator import Attribute, NamedOperator

VERSION = 1
# The lowest float32, so that every score is above the default threshold.
_LOWEST_SCORE = torch.finfo(torch.float32).min

_OPERATORS: dict[tuple[str, str], NamedOperator] = {}


def _add(title: str, run: Any, *inputs: str, **attributes: Attribute) -> None:
    domain, name = title.split(":")
    _OPERATORS[domain, name] = NamedOperator(title, run, inputs, attributes)


def _add_collective(name: str, run: Any, **attributes: Attribute) -> None:
    attributes["__collectiveReplicaGrouping"] = Attribute(int, None, is_list=True)
    _add(f"ai.graphcore:{name}", run, "x", **attributes)


def _optional(kind: type, default: Any = None) -> Attribute:
    return Attribute(kind, default)


def _blocks() -> dict[str, Attribute]:
    numbers = {name: Attribute(int) for name in ("n_rows", "n_cols", "block_size")}
    places = {name: Attribute(int, is_list=True) for name in ("rows", "cols")}
    return {**numbers, **places, "values": Attribute(float, is_list=True)}


_TEXT = {"debug_str": _optional(str)}
_PATH = {"root_path": _optional(str)}

_add(
    "ai.graphcore:RemapCE",
    copies.remap,
    "x",
    **{name: _optional(int) for name in copies.REMAP_ATTRIBUTES},
    **_TEXT,
)
_add_collective("ReplicatedAllGather", collectives.all_gather)
_add_collective(
    "ReplicatedAllReduceTP",
    collectives.all_reduce,
    op=_optional(str),
    backwards=Attribute(int),
    __collectiveOperator=_optional(int, 0),
)
for _name in ("ReplicatedAllToAll", "AllToAll"):
    _add_collective(_name, collectives.all_to_all(_name))
_add("ai.graphcore:CopyTensor", copies.copy, "x")
_add("ai.graphcore:AutogradProxy", copies.autograd_proxy, "value", "proxy")
for _domain in ("custom.ops", "com.acme"):
    _add(f"{_domain}:LeakyRelu", activations.leaky_relu, "x", alpha=_optional(float, 0.01))
for _name, _run in (
    ("StraightThroughEstimator", activations.straight_through_estimator),
    ("FastSigmoid", activations.fast_sigmoid),
    ("Heaviside", activations.heaviside),
):
    _add(f"custom.ops:{_name}", _run, "x", alpha=_optional(float, 0.01))
_add("com.acme:Cube", activations.cube, "x", "bias")
_add("com.acme:ExpMovAvg", averages.moving_average, "updater", "accumulator", "factor")
_add(
    "poptorch.custom_ops:FastGatherLastDim",
    gathers.gather_last_axis,
    "data",
    "indices",
    axis=_optional(int, -1),
    **_TEXT,
)
for _p in (1, 2):
    _add(f"ai.graphcore:L{_p}Distance", distances.distances(_p), "a", "b", **_PATH)
_add(
    "ai.graphcore:SimulatedQuant",
    simulated_floats.simulated_quant,
    "x",
    exponent_bits=Attribute(int),
    mantissa_bits=Attribute(int),
    rounding=Attribute(str),
    fwd=Attribute(int),
    bwd=Attribute(str),
    **_PATH,
)
_add(
    "ai.graphcore:StaticSparseMatmul",
    sparse_products.static_sparse_matmul,
    "dense",
    mode=Attribute(str),
    **_blocks(),
)
_add("ai.graphcore:StaticDynSparse", sparse_products.static_dyn_sparse, "dense", **_blocks())
_add(
    "ai.graphcore:FlashAttentionQKVPacked",
    packed_attention.packed_attention,
    "qkv",
    num_chunks_q=_optional(int, 1),
    num_chunks_kv=_optional(int, 1),
)
_add(
    "optimum.custom_ops:GroupQuantizeDecompress",
    group_quantised.decompressed,
    "packed",
    "scale",
    "bias",
    **_PATH,
)
_add(
    "ai.graphcore:Nms",
    detections.suppressed,
    "scores",
    "boxes",
    threshold=_optional(float, 0.5),
    scoreThreshold=_optional(float, _LOWEST_SCORE),
    numDetections=_optional(int, 100),
    sigma=_optional(float, 0.0),
    useGather=_optional(int, 0),
)


def named_operator(name: str, domain: str, version: int) -> NamedOperator | None:
    """Returns the operator of this name, domain and version; `None` if there is none."""
    return _OPERATORS.get((domain, name)) if version == VERSION else None


def named_operators() -> list[tuple[str, str]]:
    """Returns domain and name of each built-in operator."""
    return list(_OPERATORS)


def near_names(name: str, domain: str, others: list[tuple[str, str]]) -> list[str]:
    """Returns "domain:name" of operators with similar names, the most similar first.

    Args:
        name: name that was not found.
        domain: domain of that name.
        others: domains and names of further operators.
    """
    titles = [f"{d}:{n}" for d, n in [*named_operators(), *others]]
    same = [title for title in titles if title.lower().endswith(f":{name.lower()}")]
    like = nearest(f"{domain}:{name}", titles)
    return list(dict.fromkeys([*same, *([] if like is None else [like])]))
