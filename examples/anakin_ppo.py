"""Anakin without the command line: four seeds of PPO on CartPole, compiled into one program.

python examples/anakin_ppo.py
"""

import jax
import jax.numpy as jnp

from boonta import envs
from boonta.agents import ppo
from boonta.architectures import anakin
from boonta.core import devices, episodes

SETTINGS = ppo.Settings(batch=32, unroll=64, learning_rate=2.5e-3, entropy_cost=0.001)


def main(settings: ppo.Settings = SETTINGS, seeds: int = 4, chunks: int = 10, iterations: int = 20) -> jax.Array:
    """Trains for chunks x iterations updates; the mean return of the last chunk, one for each seed."""
    environment = envs.make("gymnax:CartPole-v1")
    agent = ppo.ppo(environment.spec, settings, total_updates=chunks * iterations)
    unit = anakin.make(agent, environment, envs=settings.batch)  # two pure functions: init, and step: state -> state
    program = anakin.program(unit, devices.mesh(jax.devices()[:1]))  # compiled for a mesh; here, of one device
    state = program.start(jnp.arange(seeds, dtype=jnp.int32), {})
    returns = jnp.zeros(seeds)
    for chunk in range(1, chunks + 1):
        state, metrics = program.run(state, iterations)  # the state given is used up; metrics are [seeds, iterations]
        finished = jax.vmap(episodes.merge)(episodes.Finished(*(metrics[field] for field in episodes.Finished._fields)))
        returns = episodes.summary(finished)["episode/return_mean"]
        print(f"{chunk * iterations * unit.steps_per_iteration:>9,} steps: {jnp.round(returns)}")
    return returns


if __name__ == "__main__":
    main()
