"""Run a JAX workload: training steps of a perceptron, and a convolution."""

from __future__ import annotations

import os
from itertools import pairwise


def xla(device: str) -> list[float]:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # otherwise JAX takes most of the GPU's memory at start
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # otherwise kernels are chosen by timing them
    os.environ["JAX_PLATFORMS"] = device
    import jax
    import jax.numpy as jnp

    def forward(weights, x):  # type: ignore[no-untyped-def]
        for w in weights[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ weights[-1]

    def loss(weights, x, y):  # type: ignore[no-untyped-def]
        return -jnp.take_along_axis(jax.nn.log_softmax(forward(weights, x)), y[:, None], 1).mean()

    @jax.jit
    def step(weights, x, y):  # type: ignore[no-untyped-def]
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        return value, [w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)]

    keys = jax.random.split(jax.random.key(1), 7)
    sizes = (784, 512, 512, 10)
    pairs = list(pairwise(sizes))
    weights = [jax.random.normal(key, pair) * 0.05 for key, pair in zip(keys, pairs, strict=False)]
    x, y = jax.random.normal(keys[3], (256, 784)), jax.random.randint(keys[4], (256,), 0, 10)
    found = []
    for _ in range(5):
        value, weights = step(weights, x, y)
        found.append(float(value))
    image, filters = jax.random.normal(keys[5], (8, 3, 64, 64)), jax.random.normal(keys[6], (16, 3, 3, 3))
    return [*found, float(jax.jit(lambda a, b: jnp.tanh(jax.lax.conv(a, b, (1, 1), "SAME")).sum())(image, filters))]
