"""Expressions with Keras's objects, of classes, and of the host."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keras
from keras_samples.samples import all_samples

# Arguments of constructors, and of calls if they are not those of the table of each room.
_LOSSES = {
    "Circle": ("", "i3, f34"), "CTC": ("", "[[1], [2]], seq"),
    "SparseCategoricalCrossentropy": ("", "i3, p34"),
}  # fmt: skip
_METRICS = {
    "IoU": ("4, [0, 1]", "i34, j34"), "MeanIoU": ("4", "i34, j34"), "Mean": ("", "f34"),
    "OneHotIoU": ("4, [0, 1]", "t34, p34"), "OneHotMeanIoU": ("4", "t34, p34"), "Sum": ("", "f34"),
    "MeanMetricWrapper": ("spy(keras.losses.mean_squared_error)", "f34, g34"),
    "PrecisionAtRecall": ("0.5", "k34, u34"), "RecallAtPrecision": ("0.5", "k34, u34"),
    "SensitivityAtSpecificity": ("0.5", "k34, u34"),
    "SpecificityAtSensitivity": ("0.5", "k34, u34"),
    "SparseCategoricalAccuracy": ("", "i3, p34"), "SparseCategoricalCrossentropy": ("", "i3, p34"),
    "SparseTopKCategoricalAccuracy": ("2", "i3, p34"), "TopKCategoricalAccuracy": ("2", "t34, p34"),
}  # fmt: skip
_INITIALIZERS = {"Constant": "2.0", "STFT": "'real'"}
_SCHEDULES = {
    "CosineDecay": "0.1, 5", "CosineDecayRestarts": "0.1, 5", "ExponentialDecay": "0.1, 1, 0.9",
    "InverseTimeDecay": "0.1, 1, 0.9", "PiecewiseConstantDecay": "[2, 4], [0.1, 0.2, 0.3]",
    "PolynomialDecay": "0.1, 5",
}  # fmt: skip
_ABSTRACT = (
    "Initializer", "Regularizer", "Constraint", "Loss", "Metric", "LearningRateSchedule",
    "LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap",
)  # fmt: skip


def _classes(module: Any) -> Iterator[tuple[str, str]]:
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if inspect.isclass(value) and name not in _ABSTRACT and name[0].isupper():
            yield name, f"{module.__name__}.{name}"


def of_classes() -> Iterator[str]:
    """Yields calls of the objects of Keras's small classes."""
    for name, full in _classes(keras.losses):
        given, call = _LOSSES.get(name, ("", "t34, u34"))
        yield f"{full}({given})({call})"
        yield f"{full}({given}).call({call})"
        yield f"{full}({given})({call}, sample_weight=[0.5, 1.0, 2.0])"
        yield f"{full}(reduction='none')({call})"
    for name, full in _classes(keras.metrics):
        given, call = _METRICS.get(name, ("", "t34, u34"))
        yield f"{full}({given})({call})"
        yield f"updated({full}({given}), {call}).result()"
        yield f"{full}({given}).result()"
        yield f"{full}({given}).update_state({call})"
        yield f"[v.value for v in updated({full}({given}), {call}).variables]"
        yield f"updated({full}({given}), {call}).variables[0] + 1"
    for name, full in _classes(keras.initializers):
        yield f"{full}({_INITIALIZERS.get(name, '')})((3, 3))"
        yield f"{full}({_INITIALIZERS.get(name, '')})([3, 3], dtype='float32')"
    for _, full in _classes(keras.regularizers):
        yield f"{full}()(f34)"
    for _, full in _classes(keras.constraints):
        yield f"{full}()(f34)"
    for name, full in _classes(keras.optimizers.schedules):
        for step in ("3", "n", "s"):
            yield f"{full}({_SCHEDULES[name]})({step})"


# Functions that a program has imported before it imports this package.
EARLY = {
    "early_relu": keras.ops.relu, "early_tanh": keras.activations.tanh,
    "early_mse": keras.losses.mean_squared_error, "early_normal": keras.random.normal,
}  # fmt: skip

SMALL = (
    "early_relu(f34)", "early_tanh(f34)", "early_mse(f34, g34)", "early_normal((2, 3))",
    "f34", "i34", "k34", "s", "f34[0]", "i34[0, 1]",
    "keras.utils.normalize(f34)", "keras.utils.to_categorical(i34)",
    "keras.utils.to_categorical([0, 2])", "keras.utils.to_categorical(i34, 5)",
    "keras.utils.pad_sequences([[1], [1, 2]])", "keras.utils.array_to_img",
    "keras.utils.unpack_x_y_sample_weight((f34, g34))",
    "keras.utils.pack_x_y_sample_weight(f34, g34)",
    "keras.tree.map_structure(keras.ops.relu, [f34, (g34,)])",
    "keras.tree.map_structure(spy(lambda x: x), {'a': f34, 'b': keras.ops.relu(g34)})",
    "keras.tree.map_structure(spy(keras.ops.add), [f34], [g34])",
    "keras.tree.map_structure(lambda x: keras.ops.relu(x) + 1, [f34, g34])",
    "keras.tree.flatten([f34, keras.ops.relu(g34)])",
    "list(map(keras.ops.relu, [f34, g34]))",
    "[*map(keras.activations.tanh, f34)]",
    "sum([keras.ops.relu(f34), keras.ops.relu(g34)])",
    "sum(keras.ops.unstack(f34))",
    "keras.ops.relu(f34) * 2", "2 - keras.ops.relu(f34)", "keras.ops.relu(f34) @ f43",
    "keras.ops.relu(f34)[0]", "keras.ops.relu(f34)[:, tf.newaxis]", "-keras.ops.relu(f34)",
    "keras.ops.relu(f34) > 0", "keras.ops.relu(f34) + g34", "g34 + keras.ops.relu(f34)",
    "keras.ops.relu(f34) + np.ones((3, 4), 'float32')", "keras.ops.sum(f34) > 100",
    "np.ones((3, 4), 'float32') + keras.ops.relu(f34)", "tf.nn.relu(keras.ops.tanh(f34))",
    "keras.ops.relu(tf.nn.tanh(f34))", "tf.reduce_mean(keras.losses.mean_squared_error(t34, u34))",
    "keras.ops.shape(keras.ops.relu(f34))", "keras.ops.shape(f34)[0]", "keras.ops.ndim(f34)",
    "keras.ops.shape(f34)[0] * 2", "keras.ops.size(f34)", "keras.ops.is_tensor(f34)",
    "keras.ops.is_tensor(keras.ops.relu(f34))", "keras.ops.dtype(keras.ops.argmax(f34))",
    "keras.backend.standardize_dtype(keras.ops.argmax(f34).dtype)",
    "keras.ops.arange(keras.ops.shape(f34)[0])", "tf.shape(keras.ops.relu(f34))[0]",
    "keras.ops.image.resize(img, (3, 3))", "keras.ops.image.rgb_to_grayscale(img[..., :3])",
    "keras.ops.nn.relu(f34)", "keras.ops.numpy.add(f34, g34)", "keras.ops.linalg.norm(f34)",
    "keras.activations.get('relu')(f34)", "keras.losses.get('mse')(f34, g34)",
    "keras.metrics.get('mae')(f34, g34)", "keras.initializers.get('zeros')((2, 2))",
    "keras.regularizers.get('l2')(f34)", "keras.activations.get(None)(f34)",
    "keras.random.SeedGenerator(1).next()", "keras.random.SeedGenerator(1).state",
    "keras.random.SeedGenerator(1).state.value", "keras.random.uniform((2, 3), seed=seeds)",
    "keras.random.normal((2, 3), seed=1)", "keras.random.shuffle(f34, seed=1)",
    "keras.random.normal(keras.ops.shape(f34))",
    "keras.initializers.Zeros()((2, 2), dtype='int32')", "keras.initializers.Zeros().clone",
    "keras.backend.is_keras_tensor(keras.ops.relu(f34))", "keras.backend.floatx()",
    "keras.ops.convert_to_numpy(f34)", "keras.ops.convert_to_numpy(keras.ops.relu(f34))",
    "keras.DTypePolicy('float32').compute_dtype",
)  # fmt: skip

IMAGE_OPS = tuple(
    f"keras.ops.image.{text}"
    for text in (
        "affine_transform(img, np.eye(3, dtype='float32').flatten()[None, :8] * [[1], [1]])",
        "crop_images(img, 1, 1, "
        "target_height=2, target_width=2)", "elastic_transform(img)", "extract_patches(img, 2)",
        "gaussian_blur(img)", "hsv_to_rgb(keras.ops.sigmoid(img[..., :3]))",
        "rgb_to_hsv(img[..., :3])",
        "map_coordinates(f34, [f4, g4], 1)", "pad_images(img, 1, 1, target_height=9, "
        "target_width=9)", "scale_and_translate(img, (2, 3, 3, 4), [0.5, 0.5], "
        "[0.0, 0.0], (1, 2), 'linear')",
        "perspective_transform(img, [[[0.0, 0.0], [0.0, 5.0], [5.0, 0.0], [5.0, 5.0]]] * 2, "
        "[[[0.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 4.0]]] * 2)",
    )
)  # fmt: skip

# Weights and other variables; `dense` is a built layer Dense(3) of four features.
VARIABLES = (
    "kernel", "kernel.value", "kernel.value + 1", "kernel.shape", "kernel.dtype", "kernel.ndim",
    "kernel * 2", "2 * kernel", "kernel + kernel", "kernel - 1.0", "1.0 - kernel", "kernel / 2",
    "2 / kernel", "kernel // 2", "2 // kernel", "kernel % 2", "2 % kernel", "kernel ** 2",
    "2.0 ** kernel", "-kernel", "+kernel", "abs(kernel)", "kernel @ f34", "f34 @ kernel",
    "kernel > 0", "kernel >= 0", "kernel < 0", "kernel <= 0", "kernel == kernel", "kernel != 0",
    "kernel[0]", "kernel[1:, :2]", "kernel[:, None]", "kernel[..., 0]", "kernel[0, 0]",
    "kernel + f43", "f43 + kernel", "kernel + np.ones((4, 3), 'float32')", "kernel * s",
    "np.ones((4, 3), 'float32') + kernel", "np.ones((3, 4), 'float32') @ kernel",
    "tf.reduce_sum(kernel)", "tf.convert_to_tensor(kernel)", "tf.matmul(f34, kernel)",
    "tf.cast(kernel, tf.float16)", "keras.ops.matmul(f34, kernel)", "keras.ops.sum(kernel)",
    "keras.ops.convert_to_tensor(kernel)", "keras.ops.shape(kernel)", "keras.ops.cast(kernel, "
    "'int32')", "kernel.assign(kernel * 0.5)", "kernel.assign_add(kernel * 0.5)",
    "kernel.assign_sub(kernel * 0.5)", "kernel.assign(f43)", "kernel.value.shape",
    "kernel.value.dtype", "kernel.value * 2", "kernel.value[0]", "list(kernel)[0]", "len(kernel)",
    "counter", "counter + 1", "counter.value", "counter % 2 == 0", "counter.assign(counter + 1)",
    "counter.assign_add(1)", "keras.ops.cast(counter, 'float32') / 2", "-counter", "counter ** 2",
    "flags & flags", "flags | flags", "flags ^ flags", "~flags", "flags.value",
    "keras.ops.logical_not(flags)", "round(kernel)", "bool(flag)", "not flag", "int(counter)",
    "float(scale)", "np.asarray(kernel)", "kernel.numpy()", "np.sum(kernel)", "scale * f34",
    "f34 * scale", "f34 ** scale", "tf.Variable(1.0) * kernel", "kernel.regularizer",
    "kernel.constraint", "kernel.trainable", "isinstance(kernel, keras.Variable)",
    "kernel.path.partition('/')[2]", "tf.norm(kernel)", "tf.nn.l2_loss(kernel)",
    "[tf.nn.l2_loss(v) for v in dense.trainable_variables]",
    "tf.add_n([tf.nn.l2_loss(v) for v in dense.trainable_weights])",
    "tf.identity(kernel)", "tf.transpose(kernel)", "tf.reshape(kernel, [-1])",
    "tf.stack([kernel, kernel])", "tf.concat([kernel, kernel], 0)", "tf.shape(kernel)",
    "tf.rank(kernel)", "tf.gather(kernel, [0, 1])", "tf.square(kernel)", "tf.zeros_like(kernel)",
    "keras.ops.zeros_like(kernel)", "keras.ops.stop_gradient(kernel)", "keras.ops.norm(kernel)",
    "keras.regularizers.L2(0.1)(kernel)", "keras.constraints.NonNeg()(kernel)",
)  # fmt: skip

LAYERS = (
    "dense(f34)", "dense.call(f34)", "dense.quantized_build", "dense.kernel", "dense.bias.value",
    "dense(f34) * 2", "dense(f34)[0]", "dense(f34) @ f34", "tf.reduce_sum(dense(f34))",
    "dense.weights", "dense.trainable_variables[0] * 2", "dense.non_trainable_variables",
    "dense.losses", "dense.compute_output_shape((2, 4))", "dense.count_params()",
    "dense.compute_mask(f34, None)", "dense.dtype", "dense.compute_dtype", "dense.stateless_call("
    "dense.trainable_variables, [], f34)", "dense.stateless_call([f43, f43[0]], [], f34)",
    "dense.kernel_regularizer(dense.kernel)", "sum(dense.losses)",
    "own(f34)", "own.call(f34)", "own.losses", "given_own(f34)", "given_dense(f34)",
    "given_dense.call(f34)", "keras.layers.ReLU().call(f34)", "keras.layers.ReLU()(f34)",
    "keras.layers.Activation(spy(keras.ops.tanh))(f34)", "keras.layers.Softmax()(f34)",
    "keras.layers.Activation(spy(lambda x: tf.nn.relu(x)))(f34)",
    "keras.layers.Lambda(spy(lambda x: x * 2))(f34)", "keras.layers.Add()([f34, g34])",
    "keras.layers.Concatenate()([f34, g34])", "keras.layers.add([f34, g34])",
    "keras.layers.concatenate([f34, g34])", "keras.layers.multiply([f34, g34])",
    "keras.layers.dot([f34, g34], 1)", "keras.layers.average([f34, i34])",
    "keras.layers.Rescaling(2.0)(f34)", "keras.layers.Rescaling(2.0)(i34)",
    "keras.layers.Flatten()(img)", "keras.layers.Reshape((2, 2))(f34)",
    "keras.layers.Dropout(0.5)(f34)", "keras.layers.Dropout(0.5)(f34, training=True)",
    "keras.layers.MaxPooling2D()(img)", "keras.layers.GlobalAveragePooling1D()(seq)",
    "keras.layers.Identity()(f34)", "keras.layers.Identity()([f34, {'a': g34}])",
    "keras.layers.ActivityRegularization(0.1)(f34)", "keras.layers.RepeatVector(2)(f34)",
    "keras.layers.Masking()(seq)", "keras.layers.Masking().compute_mask(seq)",
    "keras.layers.Masking()(seq)._keras_mask", "keras.layers.Discretization([0.0, 1.0])(f34)",
    "keras.layers.CategoryEncoding(4)(i34)", "keras.layers.UpSampling2D()(img)",
    "keras.layers.ZeroPadding2D()(img)", "keras.layers.Cropping2D(1)(img)",
    "embedding(i34)", "embedding.compute_mask(i34)", "embedding(i34)._keras_mask",
    "embedding.embeddings", "lstm(embedding(i34))", "lstm(embedding(i34))._keras_mask",
    "lstm(embedding(i34), mask=i34 > 0)", "plain_lstm(embedding(i34))", "gru(seq)",
    "keras.ops.relu(embedding(i34))", "lstm.compute_mask(seq, i34 > 0)", "lstm.call(seq)",
    "dense(embedding(i34))._keras_mask", "dense.supports_masking", "masked_sum(embedding(i34))",
    "cell.get_initial_state(2)", "cell.get_initial_state(batch_size=2)",
    "lstm.get_initial_state(2)",
    "cell(f34, cell.get_initial_state(3))", "cell.call(f34, cell.get_initial_state(3))",
    "gru_cell(f34, gru_cell.get_initial_state(3))", "gru.get_initial_state(2)",
    "keras.layers.StackedRNNCells([cell, gru_cell]).get_initial_state(2)",
    "bidirectional(seq)", "time_distributed(seq)", "attention(seq, seq)",
    "attention(seq, seq, return_attention_scores=True)", "attention.call(seq, seq)",
    "conv(img)", "conv.call(img)", "conv.kernel * 2", "normed(f34)", "normed(f34, training=True)",
    "normed.moving_mean", "normed.moving_mean.value", "normed.gamma * 2", "layer_norm(f34)",
    "normalization(f34)", "normalization.mean", "normalization.variance", "normalization.mean * 2",
    "normalization.adapt_mean", "stateful(seq)", "stateful.states", "stateful.states[0] + 1",
    "gaussian(f34, training=True)", "keras.layers.GaussianNoise(0.1)(f34)",
    "dense.get_weights()", "dense.get_config()['units']", "dense.input_spec.min_ndim",
    "dense.kernel.assign(dense.kernel * 1.0)", "dense.activation(f34)",
)  # fmt: skip

MODELS = (
    "model(f34)", "model.call(f34)", "model(f34, training=True)", "model.losses", "model.weights",
    "model.trainable_variables[0].value", "model.compute_loss(f34, i34[:, :2], model(f34))",
    "model.compute_output_shape((2, 4))", "model.layers[1](f34)", "model.stateless_call("
    "model.trainable_variables, model.non_trainable_variables, f34)", "sum(model.losses)",
    "model.compute_metrics(f34, f34[:, :2], model(f34), None)", "given_model(f34)",
    "given_model.call(f34)", "sequence(f34)", "sequence.call(f34)", "sequence.layers[-1](f34)",
    "function(f34)", "function([f34])", "two(f34)", "two.call(f34)", "named({'a': f34, 'b': g34})",
    "model.get_layer('last')(model.layers[1](f34))", "model.output_shape", "model.count_params()",
    "model.metrics_names", "[m.result() for m in model.metrics]", "model.loss",
)  # fmt: skip

OPTIMIZERS = (
    "optimizer.learning_rate", "optimizer.learning_rate * 2", "optimizer.iterations",
    "optimizer.iterations + 1", "optimizer.variables", "optimizer.variables[-1].value",
    "optimizer.learning_rate.value", "float(optimizer.learning_rate)", "optimizer.name",
    "keras.ops.convert_to_numpy(optimizer.learning_rate)", "optimizer.iterations.value",
    "scheduled.learning_rate", "scheduled.learning_rate * 2", "scheduled.iterations",
    "model.optimizer.learning_rate", "model.optimizer.iterations", "model.optimizer.variables",
    "optimizer.learning_rate.numpy()", "int(optimizer.iterations)", "optimizer.built",
    "optimizer.get_config()['learning_rate']", "optimizer.learning_rate.assign(0.2)",
    "optimizer.clip_gradients([f34])" if hasattr(keras.Optimizer, "clip_gradients") else "f34",
)  # fmt: skip

# What only the host does.
HOST = (
    "model.predict(np.ones((2, 4), 'float32'), batch_size=2, verbose=0)",
    "model.predict_on_batch(np.ones((2, 4), 'float32'))",
    "model.train_on_batch(np.ones((2, 4), 'float32'), np.ones((2, 2), 'float32'))",
    "model.test_on_batch(np.ones((2, 4), 'float32'), np.ones((2, 2), 'float32'))",
    "model.train_on_batch(np.ones((2, 4), 'float32'), np.ones((2, 2), 'float32'), "
    "return_dict=True)",
    "model.evaluate(np.ones((2, 4), 'float32'), np.ones((2, 2), 'float32'), batch_size=2, "
    "verbose=0)",
    "model.evaluate(np.ones((2, 4), 'float32'), np.ones((2, 2), 'float32'), batch_size=2, "
    "verbose=0, return_dict=True)",
    "model.fit(np.ones((2, 4), 'float32'), np.ones((2, 2), 'float32'), batch_size=2, "
    "verbose=0).history", "model.get_weights()", "model.get_metrics_result()",
    "model.optimizer.iterations.numpy()",
    "[v.numpy() for v in model.variables]", "two.predict(np.ones((2, 4), 'float32'), verbose=0)",
    "optimizer.apply([f43 * 0.1], [kernel])", "optimizer.apply_gradients([(f43, kernel)])",
    "dense.set_weights([f43, f4[:3]])", "keras.backend.clear_session()",
    "normalization.adapt(np.ones((3, 4), 'float32'))", "model.reset_metrics()",
    "dense.save_own_variables({})", "model.export", "keras.models.clone_model(model)(f34)",
)  # fmt: skip

_BACKEND = (
    "abs(f34)", "all(k34)", "any(k34)", "arange(4)", "argmax(f34)", "argmin(f34)", "backend()",
    "batch_dot(f34, g34)", "batch_flatten(img)", "batch_get_value([kernel])", "bias_add(f34, f4)",
    "batch_normalization(f34, f4, f4 * f4, f4, g4)", "binary_crossentropy(t34, u34)",
    "cast(f34, 'int32')", "cast_to_floatx(f34)", "categorical_crossentropy(t34, p34)",
    "clip(f34, 0.0, 1.0)", "concatenate([f34, g34])", "constant(2.0)", "conv2d(img, k2)",
    "cos(f34)", "count_params(kernel)", "cumprod(f34)", "cumsum(f34)", "depthwise_conv2d(img, d2)",
    "dot(f34, f43)", "dropout(f34, 0.5)", "dtype(f34)", "elu(f34)", "epsilon()", "equal(f34, g34)",
    "eval(f34)", "exp(f34)", "expand_dims(f34)", "eye(3)", "flatten(f34)",
    "foldl(spy(lambda a, x: a + x), f34)", "foldr(lambda a, x: a + x, f34)", "gather(f34, [0, 1])",
    "get_value(kernel)", "greater(f34, g34)", "hard_sigmoid(f34)", "in_top_k(p34, i3, 2)",
    "int_shape(f34)", "is_keras_tensor(f34)", "is_sparse(f34)", "l2_normalize(f34)",
    "less(f34, g34)", "log(u34)", "map_fn(spy(lambda x: x * 2), f34)", "max(f34)",
    "maximum(f34, g34)", "mean(f34)", "mean(f34, axis=-1, keepdims=True)", "min(f34)",
    "minimum(f34, g34)", "moving_average_update(kernel, f43, 0.9)", "ndim(f34)",
    "not_equal(f34, g34)", "one_hot(i34, 4)", "ones((2, 2))", "ones_like(f34)",
    "permute_dimensions(f34, (1, 0))", "pool2d(img, (2, 2))", "pow(f34, 2)", "prod(f34)",
    "random_bernoulli((2, 2))", "random_normal((2, 2))", "random_uniform((2, 2))", "relu(f34)",
    "repeat(f34, 2)", "repeat_elements(f34, 2, 0)", "reshape(f34, (4, 3))",
    "resize_images(img, 2, 2, 'channels_last')", "reverse(f34, 0)",
    "rnn(spy(lambda x, s: (x, s)), seq, [f34[:2]])", "round(f34)", "shape(f34)", "sigmoid(f34)",
    "sign(f34)", "sin(f34)", "softmax(f34)", "softplus(f34)", "softsign(f34)",
    "sparse_categorical_crossentropy(i3, p34)", "spatial_2d_padding(img)", "sqrt(u34)",
    "square(f34)", "squeeze(f34[:1], 0)", "stack([f34, g34])", "std(f34)", "stop_gradient(f34)",
    "sum(f34)", "sum(f34, axis=1)", "switch(s > 0, f34, g34)", "tanh(f34)", "temporal_padding(seq)",
    "tile(f34, (2, 1))", "transpose(f34)", "truncated_normal((2, 2))", "update(kernel, f43)",
    "update_add(kernel, f43)", "update_sub(kernel, f43)", "var(f34)", "variable(2.0)",
    "zeros((2, 2))", "zeros_like(f34)", "result_type(f34, i34)",
)  # fmt: skip
BACKEND = tuple(f"tf.keras.backend.{text}" for text in _BACKEND)


def of_layers() -> Iterator[str]:
    """Yields a call of each of Keras's layers; `drawn` returns a tensor of a shape."""
    seen = set()
    for each in all_samples(["layers"]):
        if each.name in seen or each.call or each.name in ("RNN", *_WRAPPERS):
            continue
        seen.add(each.name)
        shapes = ", ".join(f"drawn{shape!r}" for shape in each.inputs)
        given = ", ".join(f"{name}={value!r}" for name, value in each.arguments.items())
        many = f"[{shapes}]" if len(each.inputs) > 1 else shapes
        yield f"keras.layers.{each.name}({given})({many})"
        yield f"called(keras.layers.{each.name}({given}), {many})"


_WRAPPERS = ("Bidirectional", "SpectralNormalization", "TimeDistributed")
