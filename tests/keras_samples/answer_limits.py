"""Expressions whose answers are known to differ from those of Keras on TensorFlow, with the reason.

A text ends with `*` if it stands for all expressions that begin so.
"""

from __future__ import annotations

QUESTIONS = {
    "str(x)": "the text of a variable",
    "repr(x)": "the text of a variable",
}
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "a named tuple or shape of another class": (
        "keras.ops.qr(*", "keras.ops.top_k(f34, 2)", "model.compute_output_shape((2, 4))",
        "model.output_shape", "stateful.states",
    ),
    "NumPy's array of a variable instead of its number": (
        "optimizer.learning_rate.numpy()", "model.optimizer.iterations.numpy()", "counter",
        "optimizer.learning_rate", "model.optimizer.learning_rate",
    ),
    "the name of the backend": ("tf.keras.backend.backend()",),
    "another type of integers": (
        "keras.metrics.BinaryIoU()*", "keras.metrics.IoU(*", "keras.metrics.MeanIoU(*",
        "keras.metrics.OneHotIoU(*", "keras.metrics.OneHotMeanIoU(*",
        "updated(keras.metrics.BinaryIoU()*", "updated(keras.metrics.IoU(*",
        "updated(keras.metrics.MeanIoU(*", "updated(keras.metrics.OneHotIoU(*",
        "updated(keras.metrics.OneHotMeanIoU(*",
        "keras.random.SeedGenerator(1).next()", "optimizer.iterations*",
        "[v.value for v in updated(keras.metrics.BinaryIoU(*", "optimizer.variables",
        "[v.value for v in updated(keras.metrics.IoU(*", "optimizer.apply_gradients(*",
        "[v.value for v in updated(keras.metrics.MeanIoU(*", "scheduled.iterations",
        "[v.value for v in updated(keras.metrics.OneHotIoU(*", "model.optimizer.iterations",
        "[v.value for v in updated(keras.metrics.OneHotMeanIoU(*", "model.optimizer.variables",
        "keras.random.SeedGenerator(1).state",
    ),
    "float64 of lists": ("keras.ops.select([k34], [f34])",),
    "what functions of the program are given": (
        "keras.ops.vectorized_map(spy(*", "keras.ops.while_loop(*", "keras.ops.fori_loop(*",
        "keras.ops.switch(*", "keras.ops.jvp(*", "keras.ops.associative_scan(*",
        "tf.keras.backend.rnn(*",
    ),
    "a tensor instead of a variable, or a variable instead of a tensor": (
        "keras.ops.nan_to_num(i34)", "keras.ops.trunc(i34)", "+kernel", "normalization.mean",
        "normalization.variance", "keras.random.SeedGenerator(1).state.value",
    ),
    "an array of NumPy that nothing changes": (
        "called(keras.layers.ActivityRegularization(*", "called(keras.layers.Cropping*",
        "called(keras.layers.Identity(*", "tf.keras.backend.batch_normalization(*",
    ),
    "PyTorch's function accepts less": (
        "keras.ops.divide_no_nan(*", "keras.ops.conj(*", "keras.ops.imag(*", "keras.ops.real(*",
        "keras.ops.conjugate(*", "keras.losses.binary_crossentropy(f34, g34)",
        "keras.losses.binary_focal_crossentropy(f34, g34)", "keras.ops.linspace(f4, g4, 3)",
        "keras.metrics.binary_crossentropy(f34, g34)",
        "keras.metrics.binary_focal_crossentropy(f34, g34)",
        "keras.metrics.sparse_top_k_categorical_accuracy(*", "keras.ops.leaky_relu(i34)",
        "keras.metrics.top_k_categorical_accuracy(*", "keras.activations.leaky_relu(i34)",
        "keras.ops.vdot(*", "keras.random.dropout(*",
        "keras.ops.psnr(i34*",
        "called(keras.layers.SimpleRNN(*", "called(keras.layers.ConvLSTM*",
    ),
    "another basis of the same spaces": ("keras.ops.eigh(m44)", "keras.ops.svd(m44)"),
    "losses of earlier calls": ("own.losses",),
    "a schedule on the device": ("keras.optimizers.schedules.CosineDecayRestarts(0.1, 5)(s)",),
    "a loss or a view that is not used": ("of run *",),
}  # fmt: skip


def reason(question: str, text: str) -> str:
    """Returns why answers about an expression differ, or "" if they should not."""
    for why, texts in EXPRESSIONS.items():
        if any(text.startswith(x[:-1]) if x.endswith("*") else text == x for x in texts):
            return why
    return QUESTIONS.get(question, "")
