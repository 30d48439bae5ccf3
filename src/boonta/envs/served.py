"""A compiled environment served as one of the host, with the random streams that it has on Anakin."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core import acting, host, random
from boonta.core.environment import Environment, advance
from boonta.core.types import TimeStep


def serve(environment: Environment) -> host.Host:
    """The environment on the host, where each of a run has the episodes that it has on Anakin, action for action."""
    return host.Host(environment.spec, partial(_Batch, environment), repeatable=True)


class _Batch:
    def __init__(
        self, environment: Environment, indices: np.ndarray, seed: int, life: int, workers: host.Workers
    ) -> None:
        del workers
        self.environment = environment
        key = acting.streams(random.key(seed), life).actors
        self.key, reset_keys, _ = jax.vmap(acting.own_keys, (None, 0))(key, jnp.asarray(indices, jnp.int32))
        self._first = jax.jit(jax.vmap(environment.reset))(reset_keys)

        @jax.jit
        def step(state, timestep, action, key, count):
            return jax.vmap(partial(advance, environment))(state, timestep, action, acting.step_keys(key, count))

        self._step = step

    def reset(self) -> TimeStep:
        self.state, self.timestep = self._first
        self.count = np.zeros(len(self.timestep.reward), np.int32)
        return jax.tree.map(np.asarray, self.timestep)

    def step(self, action: np.ndarray) -> TimeStep:
        self.state, self.timestep = self._step(self.state, self.timestep, action, self.key, self.count)
        self.count = self.count + 1  # anew: the step above may still be reading the old one
        return jax.tree.map(np.asarray, self.timestep)

    def frame(self) -> np.ndarray:
        if self.environment.render is None:
            raise ValueError(f"{self.environment.spec.name} cannot be drawn: it has no render")
        return self.environment.render(jax.device_get(jax.tree.map(lambda x: x[0], self.state)))

    def close(self) -> None:
        pass
