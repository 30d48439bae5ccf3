"""An agent that acts at random and learns nothing: what is left is the server."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from boonta.core import Agent, Experience, Feedback, Learner
from boonta.core.settings import setting


@dataclass(frozen=True)
class Settings:
    """Its experience."""

    unroll: int = setting(20, "steps of a trajectory", low=1)
    batch: int = setting(16, "trajectories of an update", low=1)


def random_policy(spec, settings, total_updates=0):
    """The agent."""
    del total_updates

    def act(params, memory, timestep, key):
        del params, timestep
        return memory, jax.random.randint(key, (), 0, spec.action.n, jnp.int32), {}

    def update(state, params, sample, key):
        del params, sample, key
        return state, {"nothing": jnp.float32(0.0)}, Feedback({"loss/none": jnp.float32(0.0)}, None)

    learner = Learner(("nothing",), (), Experience(settings.unroll, settings.batch), lambda params: (), update)
    init = lambda key: {"nothing": jnp.float32(0.0)}  # noqa: E731
    return Agent(init, lambda params, rank, key: (), act, act, ("nothing",), {"stub": learner})
