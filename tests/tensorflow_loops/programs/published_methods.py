"""Methods of published papers, as their programs are written in public."""

# Programs are written as their users write them.
# ruff: noqa: B905

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program, step


@program
def sharpness_aware_minimization(b: Bench) -> Any:
    model, data, queue = b.net(4, 1), iter(b.data()), b.queue()
    optimizer = b.keras.optimizers.SGD(0.05)

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            weights = model.trainable_variables
            with tf.GradientTape() as tape:
                loss = mse(y, model(x))
            first = tape.gradient(loss, weights)
            scale = 0.1 / (tf.linalg.global_norm(first) + 1e-12)
            steps = [g * scale for g in first]
            for w, e in zip(weights, steps):
                w.assign_add(e)
            with tf.GradientTape() as tape:
                again = mse(y, model(x))
            second = tape.gradient(again, weights)
            for w, e in zip(weights, steps):
                w.assign_sub(e)
            optimizer.apply_gradients(zip(second, weights))
            queue.enqueue((loss, again))

    b.run(loop, data)
    return queue.dequeue(), model.get_weights()


@program
def deep_q_learning_with_a_target(b: Bench) -> Any:
    online, target, data = b.net(4, 2), b.net(4, 2, seed=1), iter(b.data(6))
    optimizer, count, queue = b.keras.optimizers.Adam(0.01), tf.Variable(0), b.queue()
    huber = b.keras.losses.Huber(reduction="none")

    def loop(data):
        for _ in tf.range(6):
            x, reward = next(data)
            action = tf.cast(reward[:, 0] > 0.0, tf.int32)
            following = tf.reduce_max(target(tf.reverse(x, [0])), axis=1)
            wanted = reward[:, 0] + 0.9 * following
            with tf.GradientTape() as tape:
                q = tf.reduce_sum(online(x) * tf.one_hot(action, 2), axis=1)
                loss = tf.reduce_mean(huber(wanted[:, None], q[:, None]))
            found = tape.gradient(loss, online.trainable_variables)
            found = [tf.clip_by_norm(g, 0.5) for g in found]
            optimizer.apply_gradients(zip(found, online.trainable_variables))
            count.assign_add(1)
            is_due = tf.equal(count % 2, 0)
            for w, t in zip(online.trainable_variables, target.trainable_variables):
                t.assign(tf.where(is_due, w, t))
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), count, target.get_weights()


@program
def clipped_policy_of_ppo(b: Bench) -> Any:
    policy, value, data = b.net(4, 3), b.net(4, 1, seed=2), iter(b.data())
    optimizers = [b.keras.optimizers.Adam(0.02), b.keras.optimizers.Adam(0.01)]
    queue = b.queue()

    def loop(data):
        for _ in tf.range(3):
            x, reward = next(data)
            chosen = tf.argmax(x, axis=1)
            before = tf.stop_gradient(tf.nn.log_softmax(policy(x)))
            for _ in range(2):
                with tf.GradientTape(persistent=True) as tape:
                    log = tf.nn.log_softmax(policy(x))
                    ratio = tf.exp(tf.gather(log - before, chosen, axis=1, batch_dims=1))
                    gain = tf.stop_gradient(reward - value(x))[:, 0]
                    bounded = tf.clip_by_value(ratio, 0.8, 1.2) * gain
                    entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log) * log, axis=1))
                    loss = -tf.reduce_mean(tf.minimum(ratio * gain, bounded)) - 0.01 * entropy
                    loss_v = 0.5 * tf.reduce_mean(tf.square(reward - value(x)))
                for opt, net, one in zip(optimizers, (policy, value), (loss, loss_v)):
                    found = tape.gradient(one, net.trainable_variables)
                    opt.apply_gradients(zip(found, net.trainable_variables))
                del tape
            queue.enqueue({"policy": loss, "value": loss_v})

    b.run(loop, data)
    return queue.dequeue(), policy.get_weights(), value.get_weights()


@program
def variational_autoencoder(b: Bench) -> Any:
    encoder, decoder = b.net(5, 4), b.net(5, 3, inputs=2, seed=1)
    optimizer, queue = b.keras.optimizers.Adam(0.01), b.queue()
    noise = tf.constant(np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32))

    def log_normal(x, mean, log_var):
        log_two_pi = tf.math.log(2.0 * np.pi)
        return tf.reduce_sum(
            -0.5 * ((x - mean) ** 2.0 * tf.exp(-log_var) + log_var + log_two_pi), axis=1
        )

    def train_step(x):
        with tf.GradientTape() as tape:
            mean, log_var = tf.split(encoder(x), num_or_size_splits=2, axis=1)
            z = noise * tf.exp(log_var * 0.5) + mean
            cross = tf.nn.sigmoid_cross_entropy_with_logits(logits=decoder(z), labels=tf.sigmoid(x))
            log_x = -tf.reduce_sum(cross, axis=[1])
            loss = -tf.reduce_mean(log_x + log_normal(z, 0.0, 0.0) - log_normal(z, mean, log_var))
        variables = encoder.trainable_variables + decoder.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def loop(data):
        for x, _ in data:
            queue.enqueue(train_step(x))

    b.run(tf.function(loop), b.data())
    return queue.dequeue(), encoder.get_weights(), decoder.get_weights()


@program
def wasserstein_critic_of_several_steps(b: Bench) -> Any:
    generator, critic = b.net(4, 3, inputs=2), b.net(4, 1, seed=1)
    of_critic, of_generator = (b.keras.optimizers.RMSprop(0.01) for _ in range(2))
    data, queue = iter(b.data(6)), b.queue()

    def loop(data):
        for _ in tf.range(2):
            for _ in range(2):
                x, _ = next(data)
                with tf.GradientTape() as tape:
                    fake = generator(x[:, 1:])
                    loss_c = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(x))
                found = tape.gradient(loss_c, critic.trainable_variables)
                of_critic.apply_gradients(zip(found, critic.trainable_variables))
                for w in critic.trainable_variables:
                    w.assign(tf.clip_by_value(w, -0.2, 0.2))
            x, _ = next(data)
            with tf.GradientTape() as tape:
                loss_g = -tf.reduce_mean(critic(generator(x[:, 1:])))
            found = tape.gradient(loss_g, generator.trainable_variables)
            of_generator.apply_gradients(zip(found, generator.trainable_variables))
            queue.enqueue((loss_c, loss_g))

    b.run(loop, data)
    return queue.dequeue(), generator.get_weights(), critic.get_weights()


@program
def distillation(b: Bench) -> Any:
    teacher, student, data = b.net(6, 3), b.net(3, seed=1), iter(b.data())
    teacher.trainable = False
    optimizer, queue = b.keras.optimizers.AdamW(0.01), b.queue()
    divergence = b.keras.losses.KLDivergence()

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            soft = tf.nn.softmax(teacher(x, training=False) / 3.0, axis=1)
            with tf.GradientTape() as tape:
                logits = student(x, training=True)
                hard = tf.cast(y[:, 0] > 0, tf.int32)
                one = tf.nn.sparse_softmax_cross_entropy_with_logits(hard, logits)
                other = divergence(soft, tf.nn.softmax(logits / 3.0, axis=1)) * 3.0**2
                loss = 0.1 * tf.reduce_mean(one) + 0.9 * other
            variables = student.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), student.get_weights()


@program
def momentum_encoder(b: Bench) -> Any:
    online, slow, head = b.net(4, 3), b.net(4, 3), b.net(3, seed=2)
    data, queue = iter(b.data()), b.queue()
    optimizer, decay = b.keras.optimizers.SGD(0.1, momentum=0.9), tf.Variable(0.5)

    def normalized(x):
        return tf.math.l2_normalize(x, axis=-1)

    def loop(data):
        for i in tf.range(4):
            x, _ = next(data)
            wanted = tf.stop_gradient(normalized(slow(x * 1.1)))
            with tf.GradientTape() as tape:
                found = normalized(head(online(x)))
                loss = tf.reduce_mean(2.0 - 2.0 * tf.reduce_sum(found * wanted, axis=-1))
            variables = online.trainable_variables + head.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            for w, s in zip(online.weights, slow.weights):
                s.assign(decay * s + (1.0 - decay) * w)
            decay.assign(
                1.0 - (1.0 - decay) * (tf.cos(np.pi * tf.cast(i, tf.float32) / 4.0) + 1) / 2
            )
            queue.enqueue((loss, decay))

    b.run(loop, data)
    return queue.dequeue(), slow.get_weights(), decay


@program
def physics_informed_network(b: Bench) -> Any:
    model, optimizer = b.net(5, 1, inputs=1), b.keras.optimizers.Adam(0.02)
    points = tf.constant(np.linspace(-1, 1, 6, dtype=np.float32)[:, None])
    queue = b.queue()

    def residual(t):
        with tf.GradientTape() as outer:
            outer.watch(t)
            with tf.GradientTape() as inner:
                inner.watch(t)
                u = model(t)
            first = inner.gradient(u, t)
        second = outer.gradient(first, t)
        return second + 4.0 * u, u, first

    def loop(t):
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                found, u, first = residual(t)
                start = tf.square(u[0, 0] - 1.0) + tf.square(first[0, 0])
                loss = tf.reduce_mean(tf.square(found)) + start
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(
                [(g, v) for g, v in zip(grads, model.trainable_variables) if g is not None]
            )
            queue.enqueue(loss)

    b.run(loop, points)
    return queue.dequeue(), model.get_weights()


@program
def normalization_of_the_spectrum(b: Bench) -> Any:
    w, u = b.weights((4, 3)), tf.Variable(tf.ones((1, 4)) / 2.0, trainable=False)
    data, queue = iter(b.data()), b.queue()
    optimizer = b.keras.optimizers.SGD(0.1)

    def normalized(rounds):
        left = u
        for _ in range(rounds):
            right = tf.math.l2_normalize(tf.matmul(left, w))
            left = tf.math.l2_normalize(tf.matmul(right, w, transpose_b=True))
        sigma = tf.matmul(tf.matmul(left, w), right, transpose_b=True)[0, 0]
        u.assign(tf.stop_gradient(left))
        return w / sigma

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, tf.matmul(x, normalized(2), transpose_b=True))
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), w, u


@program
def autoencoder_with_tied_weights(b: Bench) -> Any:
    dense = b.keras.layers.Dense(2, activation="relu", kernel_initializer="ones")
    dense.build((None, 3))
    bias, data, queue = tf.Variable(tf.zeros(3)), iter(b.data()), b.queue()
    optimizers = b.keras.optimizers.Adam(0.01), b.keras.optimizers.SGD(0.01)

    def loop(data):
        for _ in tf.range(3):
            x, _ = next(data)
            with tf.GradientTape() as tape:
                found = tf.matmul(dense(x), tf.transpose(dense.kernel)) + bias
                loss = mse(x, found) + 1e-2 * tf.nn.l2_loss(dense.kernel)
            kernel, mine = tape.gradient(loss, [dense.trainable_variables, bias])
            optimizers[0].apply_gradients(zip(kernel, dense.trainable_variables))
            optimizers[1].apply_gradients([(mine, bias)])
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), dense.get_weights(), bias


@program
def triplets_with_the_hardest_negative(b: Bench) -> Any:
    model, queue = b.net(4, 2), b.queue()
    train = tf.constant(np.array([0, 1, 0, 1], np.int32))
    optimizer = b.keras.optimizers.SGD(0.05)

    def loss_of(labels, points):
        squares = tf.reduce_sum(tf.square(points), axis=1, keepdims=True)
        apart = tf.maximum(
            squares - 2.0 * points @ tf.transpose(points) + tf.transpose(squares), 0.0
        )
        same = tf.equal(labels[:, None], labels[None, :])
        farthest = tf.reduce_max(tf.where(same, apart, tf.zeros_like(apart)), axis=1)
        nearest = tf.reduce_min(tf.where(same, 1e9 * tf.ones_like(apart), apart), axis=1)
        return tf.reduce_mean(tf.nn.relu(farthest - nearest + 0.5))

    def loop(data):
        for i, (x, _) in enumerate(data):
            with tf.GradientTape() as tape:
                loss = loss_of(train, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            queue.enqueue((i, loss))

    b.run(tf.function(loop), b.data(3))
    return queue.dequeue(), model.get_weights()


@program
def factors_of_a_matrix(b: Bench) -> Any:
    users, items, queue = b.weights((5, 3)), b.weights((6, 3), seed=1), b.queue()
    rows = np.array([[0, 1], [2, 5], [4, 0], [2, 3]], np.int32)
    ratings = np.array([1.0, 0.0, 2.0, -1.0], np.float32)
    data = tf.data.Dataset.from_tensor_slices((rows, ratings)).batch(2, drop_remainder=True)
    optimizer = b.keras.optimizers.SGD(0.2)

    def loop(data):
        for pair, rating in data:
            with tf.GradientTape() as tape:
                u = tf.nn.embedding_lookup(users, pair[:, 0])
                v = tf.gather(items, pair[:, 1])
                loss = tf.reduce_mean((tf.reduce_sum(u * v, axis=1) - rating) ** 2)
                loss += 0.01 * (tf.nn.l2_loss(u) + tf.nn.l2_loss(v))
            found = tape.gradient(loss, [users, items])
            optimizer.apply_gradients(
                [(tf.convert_to_tensor(g), w) for g, w in zip(found, (users, items))]
            )
            queue.enqueue(loss)

    b.run(tf.function(loop), data.repeat(2))
    return queue.dequeue(), users, items


@program
def means_of_clusters(b: Bench) -> Any:
    centres, data, queue = b.weights((2, 3)), b.data(2), b.queue()

    def loop(data):
        for x, _ in data:
            apart = tf.reduce_sum((x[:, None] - centres[None]) ** 2, axis=-1)
            nearest = tf.argmin(apart, axis=1, output_type=tf.int32)
            members = tf.one_hot(nearest, 2)
            count = tf.reduce_sum(members, axis=0)[:, None]
            new = tf.math.divide_no_nan(tf.matmul(members, x, transpose_a=True), count)
            centres.assign(tf.where(count > 0, new, centres))
            queue.enqueue((nearest, tf.reduce_min(apart, axis=1)))

    b.run(tf.function(loop), data)
    return queue.dequeue(), centres


@program
def metrics_of_keras_by_hand(b: Bench) -> Any:
    model, data, queue = b.net(4, 1), iter(b.data()), b.queue()
    seen, total = tf.Variable(0.0), tf.Variable(0.0)
    train = step(model, b.keras.optimizers.SGD(0.1))

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            loss = train(x, y)
            seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
            total.assign_add(loss * tf.cast(len(x), tf.float32))
            queue.enqueue(total / seen)

    b.run(loop, data)
    return queue.dequeue(), seen, total


@program
def warm_up_and_cosine_decay(b: Bench) -> Any:
    model, data, queue = b.net(4, 1), iter(b.data(6)), b.queue()
    optimizer = b.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    count = tf.Variable(0, dtype=tf.int64)

    def rate(number):
        number = tf.cast(number, tf.float32)
        cosine = 0.5 * (1.0 + tf.cos(np.pi * (number - 2.0) / 4.0))
        return tf.where(number < 2.0, 0.1 * (number + 1.0) / 2.0, 0.1 * cosine)

    def loop(data):
        for _ in tf.range(6):
            x, y = next(data)
            optimizer.learning_rate.assign(rate(count))
            with tf.GradientTape() as tape:
                loss = mse(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            count.assign_add(1)
            queue.enqueue((loss, optimizer.learning_rate))

    b.run(loop, data)
    return queue.dequeue(), count, model.get_weights()


@program
def sequence_with_teacher_forcing(b: Bench) -> Any:
    cell, out = b.keras.layers.GRUCell(3), b.keras.layers.Dense(2)
    cell.build((None, 2)), out.build((None, 3))
    generator = np.random.default_rng(1)
    for layer in (cell, out):
        layer.set_weights(
            [generator.normal(size=w.shape).astype(np.float32) / 2 for w in layer.get_weights()]
        )
    words = tf.constant(generator.normal(size=(4, 5, 2)).astype(np.float32))
    optimizer, queue = b.keras.optimizers.Adam(0.01), b.queue()

    def loop(words):
        for _ in tf.range(3):
            loss, states = 0.0, [tf.zeros((4, 3))]
            with tf.GradientTape() as tape:
                word = words[:, 0]
                for t in range(1, words.shape[1]):
                    hidden, states = cell(word, states)
                    found = out(hidden)
                    loss += mse(words[:, t], found)
                    word = words[:, t] if t % 2 else tf.stop_gradient(found)
            batch_loss = loss / int(words.shape[1])
            variables = cell.trainable_variables + out.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue(batch_loss)

    b.run(loop, words)
    return queue.dequeue(), out.get_weights(), cell.get_weights()


@program
def mixed_samples_and_focal_loss(b: Bench) -> Any:
    model, queue = b.net(4, 1), b.queue()
    share = tf.constant(np.random.default_rng(2).beta(0.4, 0.4, size=4).astype(np.float32))
    data = tf.data.Dataset.zip((b.data(3), tf.data.Dataset.range(3)))
    optimizer = b.keras.optimizers.Adam(0.01)

    def loop(data):
        for (x, y), number in data:
            part = share[:, None]
            x = part * x + (1.0 - part) * tf.roll(x, 1, axis=0)
            y = tf.cast(y > 0.0, tf.float32)
            y = part * y + (1.0 - part) * tf.roll(y, 1, axis=0)
            with tf.GradientTape() as tape:
                p = tf.clip_by_value(tf.sigmoid(model(x)), 1e-6, 1 - 1e-6)
                weight = tf.pow(tf.abs(y - p), 2.0)
                loss = tf.reduce_mean(-weight * (y * tf.math.log(p) + (1 - y) * tf.math.log(1 - p)))
            grads, norm = tf.clip_by_global_norm(
                tape.gradient(loss, model.trainable_variables), 0.01
            )
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            queue.enqueue({"loss": loss, "norm": norm, "number": number})

    b.run(tf.function(loop), data)
    return queue.dequeue(), model.get_weights()


@program
def two_heads_of_a_shared_trunk(b: Bench) -> Any:
    keras = b.keras
    given = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="gelu", kernel_initializer="ones")(given)
    heads = {
        "sign": keras.layers.Dense(1, kernel_initializer="ones")(hidden),
        "size": keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(hidden),
    }
    model, data, queue = keras.Model(given, heads), iter(b.data()), b.queue()
    log_vars = tf.Variable([0.0, 0.5])
    optimizer = keras.optimizers.Adam(0.01)

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            with tf.GradientTape() as tape:
                out = model(x, training=True)
                parts = tf.stack(
                    [
                        keras.losses.BinaryCrossentropy(from_logits=True)(
                            tf.cast(y > 0, tf.float32), out["sign"]
                        ),
                        tf.reduce_mean(keras.losses.huber(tf.abs(y), out["size"])),
                    ]
                )
                loss = tf.reduce_sum(tf.exp(-log_vars) * parts + log_vars)
            variables = [*model.trainable_variables, log_vars]
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue((parts, loss))

    b.run(loop, data)
    return queue.dequeue(), model.get_weights(), log_vars


@program
def early_exit_of_an_inner_loop_of_python(b: Bench) -> Any:
    model, queue = b.net(4, 1), b.queue()
    train = step(model, b.keras.optimizers.SGD(0.1))

    def loop(x, y, tries):
        for _ in tf.range(2):
            loss = tf.constant(0.0)
            for number in range(10):
                if number == tries:
                    break
                loss = train(x, y)
            queue.enqueue(loss)

    x, y = b.batches(1)[0]
    b.run(loop, tf.constant(x), tf.constant(y), 3)
    return queue.dequeue(), model.get_weights()


@program
def loop_that_stops_to_change_by_a_flag(b: Bench) -> Any:
    model, data, queue = b.net(4, 1), iter(b.data(6)), b.queue()
    best, wait, done = tf.Variable(np.inf), tf.Variable(0), tf.Variable(False)

    def loop(data):
        for _ in tf.range(6):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            is_better = loss < best
            best.assign(tf.where(is_better, loss, best))
            wait.assign(tf.where(is_better, 0, wait + 1))
            done.assign(tf.logical_or(done, wait > 1))
            for g, w in zip(grads, model.trainable_variables):
                w.assign_sub(tf.where(done, tf.zeros_like(g), 0.5 * g))
            queue.enqueue((loss, wait, done))

    b.run(loop, data)
    return queue.dequeue(), best, wait, done, model.get_weights()


@program
def product_of_the_hessian_with_a_vector(b: Bench) -> Any:
    model, (x, y) = b.net(4, 1), b.batches(1)[0]

    def product(x, y):
        weights = model.trainable_variables
        vector = [tf.ones_like(w) for w in weights]
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = mse(y, model(x))
            grads = inner.gradient(loss, weights)
            inner_product = tf.add_n([tf.reduce_sum(g * v) for g, v in zip(grads, vector)])
        return outer.gradient(inner_product, weights, unconnected_gradients="zero")

    return b.run(product, tf.constant(x), tf.constant(y))
