"""From a configuration to agent, environment and compiled program, on the devices there are."""

from typing import Any, NamedTuple

import jax
import numpy as np

from boonta import envs
from boonta.architectures import anakin
from boonta.core import devices
from boonta.core.agent import Agent
from boonta.core.environment import Environment
from boonta.experiments import config as configuration
from boonta.experiments import registry
from boonta.experiments.config import Config

ENVS_PER_DEVICE = 16  # fewer, and two CPU devices are slower than one


class Built(NamedTuple):
    """What a configuration makes."""

    agent: Agent
    environment: Environment
    unit: anakin.Anakin
    program: anakin.Program
    members: list[configuration.Member]
    iterations: int


def build(config: Config) -> Built:
    """Agent, environment and program of a configuration, on the devices there are.

    Raises:
        ValueError: more devices asked than there are, or numbers that do not divide.
    """
    environment = envs.make(config.env, **config.env_settings)
    entry = registry.agent(config.agent)
    population = configuration.members(config)
    agent = entry.factory(environment.spec, config.agent_settings)
    batches = [learner.experience.batch for learner in agent.learners.values()]
    count = config.architecture_settings.envs or max(batches)
    chosen = _devices(config, [count, *batches], len(population))
    across = int(np.gcd(len(population), len(chosen)))
    shards = len(chosen) // across
    unit = anakin.make(agent, environment, count, shards)
    iterations = max(1, config.run.steps // unit.steps_per_iteration)
    total = iterations * unit.updates_per_iteration
    if total >= 2**31:  # State.updates counts in int32
        most = (2**31 - 1) // unit.updates_per_iteration * unit.steps_per_iteration
        raise ValueError(f"run.steps must be at most {most} with these settings, got {config.run.steps}")
    agent = entry.factory(environment.spec, config.agent_settings, total_updates=total)
    unit = anakin.make(agent, environment, count, shards)
    program = anakin.program(unit, devices.mesh(chosen, across))
    return Built(agent, environment, unit, program, population, iterations)


def _devices(config: Config, numbers: list[int], population: int) -> list[Any]:
    """The devices asked for, or as many as suit: `numbers` (environments first) must be divided among them."""
    there, hosts = jax.devices(), jax.process_count()
    asked = config.architecture_settings.devices
    if asked > len(there):
        raise ValueError(
            f"architecture.devices is {asked}, but there are {len(there)} of {there[0].platform}; "
            f"allowed: 1 to {len(there)}, or 0 for auto"
        )
    if asked % hosts:
        raise ValueError(f"architecture.devices must be a multiple of the number of hosts, got {asked} and {hosts}")
    if asked:
        return [d for host in range(hosts) for d in [d for d in there if d.process_index == host][: asked // hosts]]
    if hosts > 1 or there[0].platform != "cpu":
        return there

    def suits(n: int) -> bool:
        shards = n // int(np.gcd(population, n))
        divide = all(number % shards == 0 for number in numbers)
        return shards == 1 or (divide and numbers[0] // shards >= ENVS_PER_DEVICE)

    return there[: max(n for n in range(1, len(there) + 1) if suits(n))]


def describe(built: Built) -> dict[str, Any]:
    """The devices, for `run.json`."""
    there = built.program.mesh.devices
    first = there.flat[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": int(there.size),
        "mesh": {name: int(size) for name, size in built.program.mesh.shape.items()},
        "processes": jax.process_count(),
    }
