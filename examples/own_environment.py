"""An environment of one's own: a slippery corridor with a door at each end, of which a sign says the right one.

From the root of the checkout, either of these trains PPO in it:

    boonta train ppo examples.own_environment:make --set env.length=15
    python examples/own_environment.py --steps 50_000
"""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core import Discrete, Environment, Spec, proceed, start
from boonta.envs import drawing


class State(NamedTuple):
    """Everything that changes: where the door is (-1 left, 1 right), the cell, and the time."""

    door: jax.Array
    cell: jax.Array
    time: jax.Array


def make(length: int = 9, slip: float = 0.1, limit: int = 50) -> Environment:
    """The corridor; its arguments are what `--set env.KEY=VALUE` knows. `slip` is the chance to move the other way."""
    spec = Spec("corridor", jax.ShapeDtypeStruct((2,), jnp.float32), Discrete(2))

    def observe(state):
        return jnp.stack([state.door, 2 * state.cell / (length - 1) - 1]).astype(jnp.float32)

    def reset(key):
        state = State(jax.random.rademacher(key, (), jnp.int32), jnp.int32(length // 2), jnp.int32(0))
        return state, start(observe(state), spec.action)

    def step(state, action, key):
        move = jnp.where(jax.random.bernoulli(key, slip), 1 - 2 * action, 2 * action - 1)
        state = State(state.door, jnp.clip(state.cell + move, 0, length - 1), state.time + 1)
        arrived = (state.cell == 0) | (state.cell == length - 1)  # a true end: nothing comes after it
        right = (state.cell > 0) == (state.door > 0)
        reward = jnp.where(arrived, jnp.where(right, 1.0, -1.0), 0.0)
        return state, proceed(observe(state), action, reward, arrived, state.time >= limit)  # a time limit is none

    def render(state):  # only `boonta watch` needs it
        colours = np.full((1, length, 3), drawing.GREY, np.uint8)
        colours[0, -1 if state.door > 0 else 0] = drawing.GREEN
        colours[0, int(state.cell)] = drawing.INK
        return drawing.tiles(colours, 48)

    return Environment(spec, reset, step, render)


if __name__ == "__main__":
    from boonta.cli import main

    sys.exit(main(["train", "ppo", "examples.own_environment:make", *sys.argv[1:]]))
