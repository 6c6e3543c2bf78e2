"""Table of the samples that a static graph of dense tensors cannot support.

`REFUSED` names the entries with refused samples, and words that the error must contain; all other
entries must pass. Numbers of `RANDOM` and `UNSPECIFIED` entries cannot be compared; their dtypes
and shapes are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """The reason for a refusal, words of its error, and the alternative."""

    name: str
    words: str
    instead: str = ""


DYNAMIC_SHAPE = Reason(
    "shape depends on data",
    "shape depends on data",
    "a mask, `torch.where`, `torch.topk`, `poptorch.dynamic_slice`, or `poptorch.CPU`",
)
READS_VALUE = Reason(
    "reads a value while tracing",
    "aten::item is only supported in eager mode",
    "`torch.where`, `poptorch.cond`, `poptorch.for_loop`, or `poptorch.CPU`",
)
BINS = Reason(
    "number of bins depends on data",
    "Bincount `minlength` must be specified",
    "`minlength=` the number of bins",
)
SPARSE = Reason("sparse tensor", "is not a dense tensor", "dense tensors")
LAZY = Reason(
    "uninitialised parameter", "is not initialised yet", "one call of the model on the CPU first"
)
EVALUATION_GRADIENT = Reason(
    "gradient of batch norm in evaluation",
    "in inference mode",
    "`train()`, or `detach()` what comes before and freeze weight and bias",
)
NO_SUCH_TYPE = Reason(
    "asks for a type that the device does not have",
    "Unsupported scalar type",
    "float16 for bfloat16, complex64 for complex32",
)
HOST_WRITTEN = Reason(
    "tensor of the host that is written",
    "this tensor of the host",
    "a buffer of the model",
)
RESIZED = Reason("resized in place", "cannot be captured", "`view`, `expand` or `new_empty`")
UNSIGNED_OUT = Reason(
    "`out=` that must be torch.uint64", NO_SUCH_TYPE.words, "the result that is returned"
)
CTC_NOT_REDUCED = Reason(
    "CTC loss that is not reduced",
    'CTCLoss with reduction="none"',
    '`"sum"`, or `"mean"`',
)
CTC_CONCATENATED = Reason(
    "CTC loss of concatenated targets",
    "CTCLoss takes targets of two dimensions",
    "`torch.nn.utils.rnn.pad_sequence(..., batch_first=True)`",
)

REFUSED: dict[str, tuple[Reason, ...]] = {
    "__getitem__": (DYNAMIC_SHAPE,),
    "allclose": (READS_VALUE,),
    "argwhere": (DYNAMIC_SHAPE,),
    "bincount": (BINS,),
    "combinations": (DYNAMIC_SHAPE,),
    "cov": (READS_VALUE,),
    "equal": (READS_VALUE,),
    "hash_tensor": (UNSIGNED_OUT,),
    "index_put": (DYNAMIC_SHAPE,),
    "item": (READS_VALUE,),
    "linalg.lstsq": (READS_VALUE, DYNAMIC_SHAPE),
    "linalg.lstsq.grad_oriented": (READS_VALUE, DYNAMIC_SHAPE),
    "masked_select": (DYNAMIC_SHAPE,),
    "nonzero": (DYNAMIC_SHAPE,),
    "repeat_interleave": (DYNAMIC_SHAPE,),
    "tensor_split": (DYNAMIC_SHAPE,),
    "linalg.svd": (READS_VALUE,),
    "nn.functional.embedding": (HOST_WRITTEN,),
    "nn.functional.embedding_bag": (HOST_WRITTEN,),
    "resize_as_": (HOST_WRITTEN, RESIZED),
    "sparse.mm.reduce": (SPARSE,),
    "sparse.sampled_addmm": (SPARSE,),
    "to_sparse": (SPARSE,),
    "unique": (DYNAMIC_SHAPE,),
    "unique_consecutive": (DYNAMIC_SHAPE,),
    "nn.modules.batchnorm.BatchNorm1d": (EVALUATION_GRADIENT,),
    "nn.modules.batchnorm.BatchNorm2d": (EVALUATION_GRADIENT,),
    "nn.modules.batchnorm.BatchNorm3d": (EVALUATION_GRADIENT,),
    "nn.functional.batch_norm": (EVALUATION_GRADIENT, HOST_WRITTEN),
    "native_batch_norm": (EVALUATION_GRADIENT, HOST_WRITTEN),
    "_native_batch_norm_legit": (EVALUATION_GRADIENT, HOST_WRITTEN),
    "_batch_norm_with_update": (EVALUATION_GRADIENT, HOST_WRITTEN),
    "nn.functional.ctc_loss": (CTC_NOT_REDUCED,),
    "nn.modules.loss.CTCLoss": (CTC_NOT_REDUCED, CTC_CONCATENATED),
    **dict.fromkeys(("bfloat16", "chalf"), (NO_SUCH_TYPE,)),
    "nn.modules.conv.LazyConv1d": (LAZY,),
    "nn.modules.conv.LazyConv2d": (LAZY,),
    "nn.modules.conv.LazyConv3d": (LAZY,),
    "nn.modules.conv.LazyConvTranspose1d": (LAZY,),
    "nn.modules.conv.LazyConvTranspose2d": (LAZY,),
    "nn.modules.conv.LazyConvTranspose3d": (LAZY,),
}

RANDOM = frozenset(
    {
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout.with_train",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.rrelu",
        "normal",
        "normal.in_place",
        "normal.number_mean",
        "pca_lowrank",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "svd_lowrank",
        "uniform",
    }
)

# Entries that return uninitialised memory.
UNSPECIFIED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

# Internal operators that users never call, whose `out=` form also updates other arguments; and
# results that must be float64, which the device does not have.
WITHOUT_OUT = frozenset(
    {
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "float_power",
        "log_softmax.with_dtype",
    }
)

# Intended differences, with words of the message about the difference.
DIFFERENT = {
    "bincount": Reason("as many bins as minlength says, PopTorch's rule", "has shape"),
    "_native_batch_norm_legit": Reason("results that only backward needs", "has shape"),
}

# Entries without a sample, or without one that eager PyTorch accepts on a CPU.
NOT_ON_CPU = frozenset(
    {
        "imag",
        "istft",
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
        "nn.functional.batch_norm.without_cudnn",
        "nn.functional.one_hot",
        "nn.functional.silu.complex",
        "nn.modules.pooling.FractionalMaxPool2d",
        "nn.modules.pooling.FractionalMaxPool3d",
        "sparse.mm.reduce",
        "sparse.sampled_addmm",
        "torch._scaled_mm",
        "torch._scaled_mm_v2",
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
        "view_as_real",
    }
)


def is_comparable(name: str, options: dict[str, Any], description: str) -> bool:
    """Returns whether the numbers of a sample can be compared, because they are not random."""
    if name == "nn.functional.multi_head_attention_forward":
        # The dropout probability is the only fraction among the arguments.
        return "0.5" not in description
    return name not in RANDOM | UNSPECIFIED and not options.get("dropout_p")


def difference_of(name: str, message: str) -> str:
    """Returns the reason why results of `name` may differ with this message; "" if none."""
    reason = DIFFERENT.get(name)
    return reason.name if reason and reason.words in message else ""


def refusal_of(name: str, message: str) -> str:
    """Returns the reason why `name` may be refused with this message; "" if none."""
    reasons = REFUSED.get(name, ())
    return next((reason.name for reason in reasons if reason.words in message), "")


# Models of the `transformers` package that read values, with the reason and the remedy.
MODELS_THAT_READ = (
    (
        "Informer, Mixtral",
        "nothing is refused: the rows of each expert are found by a mask, every expert sees "
        "all tokens",
        "as they are",
    ),
    (
        "Longformer",
        "reads whether a token has global attention, and which",
        "leave `attention_mask` out, or make it (and `global_attention_mask`) a buffer of your "
        "module: a constant is known while the model is captured, as are the global tokens that "
        "`LongformerForSequenceClassification` makes; as inputs they are refused",
    ),
    (
        "Wav2Vec2ForCTC",
        "reads the largest label to check it",
        "call it without `labels`, and take `torch.nn.functional.ctc_loss` of its logits in "
        "your own module",
    ),
    (
        "XLM",
        "asserts that no text is longer than its axis",
        "`python -O`, which leaves assertions out",
    ),
    (
        "DeBERTa, classification",
        "picks the rows that have a label",
        '`config.problem_type = "single_label_classification"`',
    ),
)
