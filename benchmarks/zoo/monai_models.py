# ruff: noqa: E501 -- tables of configurations
"""Networks of `monai` for small images."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from monai.networks import nets
from sample import Library, Sample, first_that_runs
from small_sizes import small_arguments, without_chance

_GIVEN: dict[str, Any] = {
    "spatial_dims": 2, "dimensions": 2, "in_channels": 1, "out_channels": 2, "num_classes": 2,
    "channels": (8, 16, 32), "strides": (2, 2), "kernel_size": [3, 3, 3], "in_shape": (1, 32, 32),
    "img_size": (32, 32), "feature_size": 12, "hidden_size": 48, "mlp_dim": 64, "num_heads": 4,
    "num_layers": 2, "patch_size": (8, 8), "latent_size": 4, "out_shape": (2,), "classes": 2,
    "start_shape": (4, 8, 8), "latent_shape": 4, "model_name": "efficientnet-b0", "init_filters": 8,
    "block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 16, 32, 64], "features": (8, 8, 16, 16, 32, 8), "num_channels": (8, 16),
    "attention_levels": (False, True), "num_res_blocks": 1, "norm_num_groups": 4, "num_head_channels": 8, "latent_channels": 3, "num_layers_d": 2,
    "num_embeddings": 16, "embedding_dim": 8, "num_tokens": 32, "max_seq_len": 16, "attn_layers_dim": 32, "attn_layers_depth": 2, "attn_layers_heads": 2,
    "init_features": 8, "growth_rate": 4, "block_config": (2, 2), "depths": (1, 1, 1, 1), "window_size": (4, 4), "upsample_kernel_size": [2, 2], "image_size": 32,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "DynUNet": {"strides": [1, 2, 2]},
    "SwinUNETR": {"num_heads": (2, 2, 2, 2)},
    "ViTAutoEnc": {"patch_size": (8, 8)},
}
_NOT_NETWORKS = ("Loss", "Block", "Layer", "Down", "Up", "Conv", "Regression", "Predictor")


def names() -> list[str]:
    """Returns each network for whose parameters values are known."""
    found = []
    for name in sorted(dir(nets)):
        kind = getattr(nets, name)
        if not (inspect.isclass(kind) and issubclass(kind, torch.nn.Module)):
            continue
        if name.endswith(_NOT_NETWORKS) or name.lower() in map(str.lower, found):
            continue
        try:
            small_arguments(kind.__init__, {**_GIVEN, **_OWN.get(name, {})})
        except LookupError:
            continue
        found.append(name)
    return found


def make(name: str) -> Sample:
    """Returns a network with two images."""
    kind = getattr(nets, name)
    given = {**_GIVEN, **_OWN.get(name, {})}
    arguments = small_arguments(kind.__init__, given)
    accepted = inspect.signature(kind.__init__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        arguments |= {k: given[k] for k in ("spatial_dims", "in_channels", "out_channels") if k not in arguments and name not in ("EfficientNetBN",)}  # fmt: skip
    model = kind(**arguments)
    model.eval()
    without_chance(model)
    channels = [(torch.randn(2, c, side, side),) for side in (32, 64, 96, 128) for c in (1, 3)]
    more = [
        (torch.randn(2, 1, 32, 32), torch.tensor([3, 5])),
        (torch.randint(0, 16, (2, 8)),),
        (torch.randn(2, 4),),
        (torch.randn(2, 1, 32, 32), torch.tensor([3, 5]), torch.randn(2, 1, 16)),
    ]
    return first_that_runs(model, [*channels, *more])


LIBRARY = Library(names, make)
