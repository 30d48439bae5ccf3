"""The delayed chain: the first action decides the last reward.

After the delayed chain MDPs of Oh et al. (2020), "Discovering Reinforcement Learning Algorithms", themselves inspired
by the umbrella chain of bsuite (Osband et al., 2020).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Action, Array, Key, TimeStep
from boonta.envs import drawing
from boonta.envs.errors import require


class State(NamedTuple):
    """int32 scalars: the position on the chain, and what was chosen at its beginning: 1 good, -1 bad, 0 nothing yet."""

    position: Array
    choice: Array


def make(length: int = 10, noise: float = 0.0, distractors: int = 0) -> Environment:
    """A delayed chain of `length` steps.

    Observation: float32 [length + 2 + distractors]: the position, one-hot over 0 ... length; the choice, 1, -1 or 0;
    and random bits. Two actions: at position 0, action 1 is the good one; later ones do nothing. At the end the reward
    is the choice, 1 or -1. Before, it is 0, or plus or minus `noise` with equal chance, whatever the agent does.

    Optimal return 1, at random 0 (both in the mean, if there is noise).

    Args:
        length: steps in an episode, at least 1. Oh et al. use 5 to 30.
        noise: size of the noisy rewards, at least 0. Oh et al. use 1 in the noisy chains.
        distractors: number of bits that are drawn anew at every step. Oh et al. use 20 in the distracting chains.

    Raises:
        ValueError: a setting is out of its range.
    """
    require(length >= 1, "length", length, "at least 1")
    require(noise >= 0, "noise", noise, "at least 0")
    require(distractors >= 0, "distractors", distractors, "at least 0")
    shape = (length + 2 + distractors,)
    spec = Spec("boonta:chain", jax.ShapeDtypeStruct(shape, jnp.float32), Discrete(2))

    def observe(state: State, key: Key) -> Array:
        position = jnp.arange(length + 1) == state.position
        bits = jax.random.bernoulli(key, 0.5, (distractors,))
        return jnp.concatenate([position, state.choice[None], bits]).astype(jnp.float32)

    def reset(key: Key) -> tuple[State, TimeStep]:
        state = State(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return state, start(observe(state, key), spec.action)

    def step(state: State, action: Action, key: Key) -> tuple[State, TimeStep]:
        bits_key, noise_key = jax.random.split(key)
        choice = jnp.where(state.position == 0, 2 * action - 1, state.choice).astype(jnp.int32)
        state = State(state.position + 1, choice)
        over = state.position == length
        disturbance = noise * jnp.where(jax.random.bernoulli(noise_key), 1.0, -1.0) if noise else 0.0
        return state, proceed(observe(state, bits_key), action, jnp.where(over, choice, disturbance), over)

    def render(state: State) -> np.ndarray:
        colours = np.full((1, length + 1, 3), drawing.INK, np.uint8)
        marker = {0: drawing.YELLOW, 1: drawing.GREEN, -1: drawing.RED}
        colours[0, int(state.position)] = marker[int(state.choice)]
        return drawing.tiles(colours, 48)

    return Environment(spec, reset, step, render)
