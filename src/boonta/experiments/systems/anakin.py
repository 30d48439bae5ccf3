"""Anakin as a system: configuration to compiled program, evaluation in the same way."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from boonta import envs
from boonta.architectures import anakin
from boonta.architectures.turns import together
from boonta.core import devices, random, totals
from boonta.core.environment import Environment, check
from boonta.core.totals import Totals
from boonta.core.types import Params, PyTree
from boonta.core.watch import Watch
from boonta.experiments import config as configuration
from boonta.experiments import evaluation, registry
from boonta.experiments.config import Config
from boonta.experiments.devices import describe, take
from boonta.experiments.evaluation import Film, Scores
from boonta.experiments.replays import Arrays, put_back, taken
from boonta.experiments.systems.protocol import beginning_with, done, fitting, replaying, said_of, unheard

ENVS_PER_DEVICE = 16  # fewer, and two CPU devices are slower than one


class Anakin:
    """See `System`."""

    def __init__(self, config: Config) -> None:
        environment = envs.make(config.env, **config.env_settings)
        if not isinstance(environment, Environment):
            raise ValueError(
                f"{config.env} steps on the host, and anakin needs one that compiles; use --on sebulba, seed or fleet"
            )
        if config.run.on_nan == "drop":
            raise ValueError(
                "run.on_nan must be stop or ignore on anakin, got 'drop': it is for environments of the host"
            )
        self.environment, self.spec = environment, environment.spec
        entry = registry.agent(config.agent)
        self.members = configuration.members(config)
        self.given: Params | None = None
        agent = together(entry.factory(self.spec, config.agent_settings))
        batches = [learner.experience.batch for learner in agent.learners.values()]
        count = config.architecture_settings.envs or fitting(agent)
        chosen = _devices(config.architecture_settings.devices, [count, *batches], len(self.members))
        across = int(np.gcd(len(self.members), len(chosen)))
        shards = len(chosen) // across
        unit = anakin.make(agent, environment, count, shards)
        self.iterations = configuration.iterations(config, unit.steps_per_iteration, unit.updates_per_iteration)
        total = self.iterations * unit.updates_per_iteration
        agent = together(entry.factory(self.spec, config.agent_settings, total_updates=total))
        self.agent = beginning_with(agent, lambda: self.given)
        self.unit = anakin.make(self.agent, environment, count, shards)
        self.steps: float = unit.steps_per_iteration
        self.updates, self.environments = unit.updates_per_iteration, count
        self.program = anakin.program(self.unit, devices.mesh(chosen, across))
        self.compile_seconds, self.watch = 0.0, Watch()
        self.progress: Callable[[str], None] = unheard
        self.most, self.remarks = config.run.eval_steps, said_of(config, self.spec)
        self.replaying = replaying(self.agent)
        self._advance: Any = None  # compiled
        self._evaluators: dict[int, Callable[[PyTree], Scores]] = {}

    def at(self, iterations: int) -> int:
        return int(iterations * self.steps)

    def shapes(self) -> PyTree:
        here = SingleDeviceSharding(self.program.mesh.devices.flat[0])
        shapes = self.rest(jax.eval_shape(self.program.start, *configuration.stacked(self.members)))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)

    def rest(self, state: anakin.State) -> anakin.State:
        return state._replace(replays={})

    def replays(self, state: anakin.State) -> AbstractContextManager[Arrays]:
        return nullcontext(taken(state.replays))

    def joined(
        self, rest: anakin.State, fresh: anakin.State, replays: Arrays | None, facts: dict[str, Any]
    ) -> anakin.State:
        del facts
        return rest._replace(replays=put_back(fresh.replays, replays) if replays else fresh.replays)

    def start(self) -> anakin.State:
        check(self.environment)
        everyone = NamedSharding(self.program.mesh, PartitionSpec(devices.POPULATION))
        place = partial(jax.device_put, device=everyone)
        return self.program.start(*jax.tree.map(place, configuration.stacked(self.members)))

    def advance(
        self, state: anakin.State, iterations: int, asked: Callable[[], bool], so_far: Totals | None = None
    ) -> tuple[anakin.State, Totals, float]:
        del asked
        if self._advance is None:
            clock = time.perf_counter()
            self._nothing = self.program.nothing(state)
            self._advance = self.program.advance.lower(state, self._nothing, np.int32(0)).compile()
            self.compile_seconds += time.perf_counter() - clock
        like = self._nothing
        begin = like if so_far is None else totals.fitted(so_far, like)._replace(levels={})
        so_far = jax.tree.map(lambda x, one: np.asarray(x, one.dtype), begin, like)
        clock = time.perf_counter()
        with self.watch.update():
            state, made = self._advance(state, so_far, np.int32(iterations))
            made = fetch(made)
        return state, made, time.perf_counter() - clock

    def tensors(self) -> list[str]:
        return self.unit.tensors()

    def evaluate(self, state: anakin.State, episodes: int) -> "Future[Scores]":
        if episodes not in self._evaluators:
            self._evaluators[episodes] = self._evaluator(episodes)
        return done(self._evaluators[episodes](state.params))

    def _evaluator(self, count: int) -> Callable[[PyTree], Scores]:
        """Params [M, ...] -> Scores [M, episodes], on all devices of the mesh."""
        mesh, specs = self.program.mesh, self.program.specs
        shards = mesh.shape[devices.LEARNERS]
        split = shards if count % shards == 0 else 1

        def one(params: PyTree) -> Scores:
            first = devices.rank() * (count // split) if split > 1 else 0
            key = random.key(evaluation.SEED)
            return evaluation.episodes(
                self.agent, self.environment, params, key, first, count // split, self.most, of=count
            )

        out = specs.actors if split > 1 else specs.updates
        mapped = jax.shard_map(
            lambda params: jax.lax.map(one, params), mesh=mesh, in_specs=(specs.params,), out_specs=out, check_vma=False
        )
        compiled = jax.jit(mapped)
        return lambda params: Scores(*fetch(tuple(compiled(params))))

    def play(self, params: Params, episodes: int) -> Scores:
        def play(params: Params) -> Scores:
            key = random.key(evaluation.SEED)
            return evaluation.episodes(self.agent, self.environment, params, key, 0, episodes, self.most)

        return Scores(*fetch(tuple(jax.jit(play)(params))))

    def film(self, params: Params, seed: int, steps: int) -> Film:
        return evaluation.film(self.agent, self.environment, params, random.key(seed), steps)

    def params(self, state: anakin.State, member: int) -> Params:
        return jax.tree.map(lambda x: x[member], state.params)

    def facts(self) -> dict[str, Any]:
        return {}

    def notices(self) -> list[str]:
        return []

    def check(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        mesh = self.program.mesh
        return describe(list(mesh.devices.flat)) | {"mesh": {name: int(size) for name, size in mesh.shape.items()}}

    def close(self) -> None:
        pass


def _devices(asked: int, numbers: list[int], population: int) -> list[Any]:
    """The devices asked for, or as many as suit: `numbers` (environments first) must be divided among them."""
    there, hosts = jax.devices(), jax.process_count()
    if asked:
        return take(asked, "architecture.devices")
    if hosts > 1 or there[0].platform != "cpu":
        return there

    def suits(n: int) -> bool:
        shards = n // int(np.gcd(population, n))
        divide = all(number % shards == 0 for number in numbers)
        return shards == 1 or (divide and numbers[0] // shards >= ENVS_PER_DEVICE)

    return there[: max(n for n in range(1, len(there) + 1) if suits(n))]


def fetch(tree: PyTree) -> PyTree:
    """A tree of device arrays as NumPy arrays, whole on every host."""

    def one(x: jax.Array) -> np.ndarray:
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(one, tree)
