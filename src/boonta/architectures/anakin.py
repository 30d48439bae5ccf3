"""Anakin (Hessel et al. 2021): agent, environment and learning in one compiled program, on every device alike.

`make` gives the minimal unit as two pure functions; `program` fills the devices with it: a loop over iterations inside,
devices of the axis `learners` sharing one agent, devices of the axis `population` training different ones.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from boonta.architectures.learning import Stored, fused, gathered, initial, repeat, spread
from boonta.core import acting, devices, episodes, health, random, totals
from boonta.core.agent import Agent, check
from boonta.core.environment import Environment
from boonta.core.totals import Totals
from boonta.core.types import Array, Key, Params, PyTree, Trajectory


class State(NamedTuple):
    """Everything a run is; what a checkpoint keeps.

    Attributes:
        params: the agent's groups.
        learners: each learner's private state, by name.
        actors: Actor [E, ...].
        replays: what learners have to learn from besides an iteration's own experience, by name, `learning.spread`.
        key: random stream of the updates.
        updates: int32, updates made: the version of the parameters.
        iterations: int32, calls of `step` made.
    """

    params: Params
    learners: dict[str, PyTree]
    actors: acting.Actor
    replays: Stored
    key: Key
    updates: Array
    iterations: Array


class Anakin(NamedTuple):
    """The minimal unit.

    Attributes:
        init: (key, settings) -> State; `settings` overrides scalars of the parameter group `settings`.
        step: State -> (State, metrics), one iteration: unroll, then learn. Differentiable where learning is on-policy.
        steps_per_iteration: environment steps of one iteration, over all learner devices.
        updates_per_iteration: updates of one iteration, once there is enough to learn from.
        tensors: () -> the names that metrics["health"] - 1 points to; 0 says that all is finite.
    """

    init: Callable[[Key, dict[str, Array]], State]
    step: Callable[[State], tuple[State, dict[str, Array]]]
    steps_per_iteration: int
    updates_per_iteration: int
    tensors: Callable[[], list[str]]


def make(agent: Agent, environment: Environment, envs: int, shards: int = 1) -> Anakin:
    """The unit for an agent in an environment.

    Args:
        agent: its learners run fused, in order.
        environment: one that compiles.
        envs: environments over all learner devices.
        shards: learner devices that will share them.

    Raises:
        ValueError: environments or a batch that devices, or each other, do not divide; learners that do not fit.
    """
    check(agent, jax.eval_shape(agent.init, jax.random.key(0)))
    learning = fused(agent, envs, shards, stack=environment.spec.stack)
    local = envs // shards
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    observed_names = health.names({"observation": environment.spec.observation, "reward": scalar})

    def init(key: Key, settings: dict[str, Array]) -> State:
        streams = acting.streams(key)
        params, learners = initial(agent, streams.params, settings)
        index = devices.rank() * local + jnp.arange(local, dtype=jnp.int32)
        begin = jax.vmap(lambda i: acting.begin(agent, environment, params, i, envs, streams.actors))
        zero = jnp.zeros((), jnp.int32)
        actors = begin(index)
        replays = spread(learning.lasting(piece(params, actors)))
        return State(params, learners, actors, replays, streams.updates, zero, zero)

    def unrolled(params: Params, actors: acting.Actor, version: Array | int) -> tuple[acting.Actor, Trajectory, Any]:
        return acting.unroll(agent, environment, params, actors, learning.unroll, jnp.asarray(version, jnp.int32))

    def piece(params: Params, actors: acting.Actor) -> Trajectory:
        """The shapes of one environment's."""
        _, many, _ = jax.eval_shape(partial(unrolled, version=0), params, actors)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), many)

    def collect(state: State) -> tuple[Stored, acting.Actor, episodes.Finished, PyTree]:
        """Unroll into each learner's replay."""
        one_piece = piece(state.params, state.actors)
        lasting = gathered(state.replays, jax.eval_shape(learning.lasting, one_piece))

        def one(carry: tuple[PyTree, acting.Actor], _: None) -> tuple[tuple[PyTree, acting.Actor], Any]:
            stored, actors = carry
            actors, trajectories, finished = unrolled(state.params, actors, state.updates)
            stored = learning.insert(state.params, stored, trajectories)
            observed = {"observation": trajectories.timesteps.observation, "reward": trajectories.timesteps.reward}
            return (stored, actors), (finished, health.first_bad(observed))

        start = (lasting | learning.passing(one_piece), state.actors)
        (stored, actors), (finished, bad) = repeat(one, start, learning.rounds)
        return stored, actors, episodes.merge(finished), health.earliest(bad)

    def step(state: State) -> tuple[State, dict[str, Array]]:
        stored, actors, finished, bad = collect(state)
        key, update_key = jax.random.split(state.key)
        update_key = jax.random.fold_in(update_key, devices.rank())
        learned = learning.learn(state.params, state.learners, stored, update_key, state.updates)
        worse = health.first_bad(learned.metrics)
        bad = jnp.where(bad > 0, bad, jnp.where(worse > 0, worse + len(observed_names), 0))
        each, codes = devices.gather((finished, bad))
        metrics = learned.metrics | episodes.merge(each)._asdict()
        metrics |= {"health": health.earliest(codes), "made": learned.updates, "policy_lag_mean": learned.lag}
        replays = spread({name: learned.stored[name] for name in state.replays})
        updates = state.updates + learned.updates
        return State(learned.params, learned.states, actors, replays, key, updates, state.iterations + 1), metrics

    def tensors() -> list[str]:
        _, metrics = jax.eval_shape(step, jax.eval_shape(init, random.key(0), {}))
        ours = {*episodes.Finished._fields, "policy_lag_mean"}
        return observed_names + health.names({k: v for k, v in metrics.items() if k not in ours})

    steps = envs * learning.rounds * learning.unroll
    return Anakin(init, step, steps, learning.updates, tensors)


class Program(NamedTuple):
    """The unit, compiled for a mesh and a population.

    Attributes:
        start: (seeds int32 [M], settings {name: [M]}) -> State [M, ...] on the devices.
        run: (State [M, ...], iterations) -> (State, metrics {name: [M, iterations]}). The state given is donated; every
            number of iterations is compiled anew.
        advance: (State [M, ...], Totals [M], iterations int32 []) -> (State, Totals), to which these are added one by
            one: sums do not depend on how many are made at once. The state given is donated; one program makes
            any number of iterations.
        nothing: State [M, ...] -> the Totals [M] to begin with.
        mesh: with the axes `population` and `learners`.
        specs: how each part of the state lies on the mesh.
    """

    start: Callable[[Array, dict[str, Array]], State]
    run: Callable[[State, int], tuple[State, dict[str, Array]]]
    advance: Any
    nothing: Callable[[State], Totals]
    mesh: Mesh
    specs: State


def program(unit: Anakin, mesh: Mesh) -> Program:
    """Replicate the unit over the axis `learners`, and M members over the axis `population`.

    M must be a multiple of the population axis. Members of one device run one after the other on a CPU, where a batched
    matrix product is slower than several plain ones, and side by side elsewhere.
    """
    everyone, own = P(devices.POPULATION), P(devices.POPULATION, devices.LEARNERS)
    specs: Any = State(*(own if field in ("actors", "replays") else everyone for field in State._fields))  # type: ignore[arg-type]
    shard = partial(jax.shard_map, mesh=mesh, check_vma=False)

    def members(function: Callable) -> Callable:
        def mapped(*args: PyTree) -> PyTree:
            if jax.tree.leaves(args)[0].shape[0] == 1:
                return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args)))
            if jax.default_backend() == "cpu":
                return jax.lax.map(lambda args: function(*args), args)
            return jax.vmap(function)(*args)

        return mapped

    def begin(seed: Array, settings: dict[str, Array]) -> State:
        return unit.init(random.key(seed), settings)

    start = jax.jit(shard(members(begin), in_specs=(everyone, everyone), out_specs=specs))

    @partial(jax.jit, static_argnums=1, donate_argnums=0)
    def run(state: State, iterations: int) -> tuple[State, dict[str, Array]]:
        loop = members(lambda state: jax.lax.scan(lambda s, _: unit.step(s), state, length=iterations))
        return shard(loop, in_specs=(specs,), out_specs=(specs, everyone))(state)

    def once(state: State) -> tuple[State, Totals]:
        state, metrics = unit.step(state)
        return state, totals.once(metrics, jnp)

    def summed(state: State, so_far: Totals, iterations: Array) -> tuple[State, Totals]:
        def body(_: Array, carry: tuple[State, Totals]) -> tuple[State, Totals]:
            state, new = once(carry[0])
            return state, totals.merge(carry[1], new, jnp)

        return jax.lax.fori_loop(0, iterations, body, (state, so_far))

    @partial(jax.jit, donate_argnums=0)
    def advance(state: State, so_far: Totals, iterations: Array) -> tuple[State, Totals]:
        loop = lambda state, so_far, iterations: members(partial(summed, iterations=iterations))(state, so_far)  # noqa: E731
        shared = shard(loop, in_specs=(specs, everyone, P()), out_specs=(specs, everyone))
        return shared(state, so_far, iterations)

    def nothing(state: State) -> Totals:
        told = shard(members(lambda state: once(state)[1]), in_specs=(specs,), out_specs=everyone)
        return totals.nothing(jax.eval_shape(told, state))

    return Program(start, run, advance, nothing, mesh, specs)
