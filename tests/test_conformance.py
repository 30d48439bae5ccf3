"""Every agent on every architecture: the same seed and frozen parameters make the same experience."""

import contextlib
import dataclasses
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta import envs
from boonta.agents import alphazero, ddpg, dqn, muzero, ppo, r2d2, sac, td3, vtrace
from boonta.architectures import (
    anakin,
    fleet_roles,
    sebulba,
    seed,
    seed_inference,
    seed_threads,
    split_pace,
    split_roles,
    split_wiring,
)
from boonta.architectures.batching import Closed
from boonta.architectures.sebulba_threads import Plan, Threads
from boonta.architectures.turns import together
from boonta.core import acting, devices, random
from boonta.core.host import Workers
from boonta.core.trace import Trace
from boonta.envs.served import serve
from boonta.transport.shm import SharedMemory
from tests.marks import full, in_full, slow
from tests.meetings import unordered
from tests.watching import watched

SEED, ENVS, LENGTH, UNROLLS = 3, 4, 6, 5

SEQUENCES = {"length": 2 * LENGTH, "period": LENGTH, "burn_in": LENGTH, "replay_ratio": 1.0}

PLANNING = {"body": "mlp", "width": 16, "head": 16, "simulations": 4}
SMALL = {"body": "resnet", "channels": 4, "blocks": (1, 1, 0), "search": "puct", "history": 1}

CRITICS = {"hidden": (8,), "value_batch": ENVS, "policy_batch": ENVS}

# name: agent's factory and settings, environment
TABLE = {
    "ppo": (ppo.ppo, ppo.Settings, {"minibatches": 1}, "gymnax:CartPole-v1"),
    "ppo, recurrent": (ppo.ppo, ppo.Settings, {"minibatches": 1, "core": "lstm"}, "boonta:tmaze"),
    "ppo, continuous": (ppo.ppo, ppo.Settings, {"minibatches": 1}, "gymnax:Pendulum-v1"),
    "vtrace": (vtrace.vtrace, vtrace.Settings, {}, "gymnax:CartPole-v1"),
    "vtrace, recurrent": (vtrace.vtrace, vtrace.Settings, {"core": "gru"}, "boonta:memory"),
    "vtrace, images": (vtrace.vtrace, vtrace.Settings, {"body": "grid_cnn"}, "gymnax:Breakout-MinAtar"),
    "dqn": (dqn.dqn, dqn.Settings, {"n_step": 2, "unroll": LENGTH, "explore_last": 0.5}, "gymnax:CartPole-v1"),
    "dqn, images": (dqn.dqn, dqn.Settings, {"body": "grid_cnn", "unroll": LENGTH}, "gymnax:Breakout-MinAtar"),
    "muzero": (muzero.muzero, muzero.Settings, {**PLANNING, "history": 2, "explore": 0.2}, "pgx:tic_tac_toe"),
    "muzero, images": (muzero.muzero, muzero.Settings, {**PLANNING, **SMALL}, "gymnax:Breakout-MinAtar"),
    "alphazero": (alphazero.alphazero, alphazero.Settings, PLANNING, "pgx:tic_tac_toe"),
    "ddpg": (ddpg.ddpg, ddpg.Settings, {**CRITICS, "noise_correlation": 0.7}, "gymnax:Pendulum-v1"),
    "td3": (td3.td3, td3.Settings, {**CRITICS, "n_step": 2}, "gymnax:MountainCarContinuous-v0"),
    "sac": (sac.sac, sac.Settings, {**CRITICS, "normalize_observations": True}, "gymnax:Pendulum-v1"),
    "r2d2": (r2d2.r2d2, r2d2.Settings, {"hidden": (8,), "core_size": 8, "head": 8, **SEQUENCES}, "boonta:tmaze"),
}


def made(name):
    factory, settings, values, env = TABLE[name]
    environment = envs.make(env, **({"model": True} if name == "alphazero" else {}))
    frozen = {"batch": ENVS, "learning_rate": 0.0, "value_learning_rate": 0.0, "policy_learning_rate": 0.0}
    frozen |= {"unroll": LENGTH} if "period" not in values else {}
    known = {field.name for field in dataclasses.fields(settings)}
    frozen = {name: value for name, value in frozen.items() if name in known}
    return together(factory(environment.spec, settings(**frozen | values))), environment


def on_anakin(agent, environment):
    streams = acting.streams(random.key(SEED))
    params = agent.init(streams.params)
    actors = jax.vmap(lambda i: acting.begin(agent, environment, params, i, ENVS, streams.actors))(jnp.arange(ENVS))
    unroll = jax.jit(lambda actors: acting.unroll(agent, environment, params, actors, LENGTH, jnp.int32(0)))
    for _ in range(UNROLLS):
        actors, trajectory, _ = unroll(actors)
        yield trajectory


def on_sebulba(agent, environment):
    unit = sebulba.make(agent, environment.spec, ENVS, 1)
    device = jax.devices()[0]
    host, plan = serve(environment), Plan([device], [device], 1, ENVS, lag=0)
    threads = Threads(unit, lambda index, life: host.make(index, SEED, life, Workers()), plan, SEED, Trace())
    state = threads.init()
    threads.compile(state, environment.spec)
    items = watched(threads)
    threads.start(state)
    try:
        for _ in range(UNROLLS):
            state, _, _ = threads.iterate(state)
            yield items.pop().trajectory
    finally:
        threads.stop()


def on_seed(agent, environment):
    """One client with all environments, so that batches are as wide as elsewhere."""
    unit = seed.make(agent, environment.spec, ENVS, ENVS)
    params = jax.jit(agent.init)(acting.streams(random.key(SEED)).params)
    plan = seed_inference.Plan([jax.devices()[0]], ENVS, ENVS, ENVS, ENVS, 1.0)
    threads = seed_threads.Threads(unit, environment.spec, plan, SEED, Trace())
    threads.compile(params)
    threads.publish(jax.device_put(params, jax.devices()[0]), jnp.int32(0))
    threads.start()
    session = threads.join(ENVS, -1, "all")

    def play():
        batch = serve(environment).make(np.arange(ENVS), SEED, session.life, Workers())
        timestep = batch.reset()
        with contextlib.suppress(Closed):
            while True:
                timestep = batch.step(session.act(timestep))

    client = threading.Thread(target=play, name="client", daemon=True)
    client.start()
    try:
        for _ in range(UNROLLS):
            item = None
            while item is None:
                item = threads.take()
            yield item.chunk
    finally:
        threads.stop()
        client.join(20)


@functools.lru_cache(1)  # the architectures of one agent are tested in a row
def of_anakin(name):
    agent, environment = made(name)
    return agent, environment, list(on_anakin(agent, environment))


def on_fleet(agent, environment):
    """One training worker with all environments."""
    parts = fleet_roles.Parts(agent, serve(environment), lambda params, episodes: None)
    params = agent.init(acting.streams(random.key(SEED)).params)
    worker = fleet_roles.Rollout(lambda: parts, 0, ENVS, ENVS, 0, SEED, Workers(), False)
    for _ in range(UNROLLS):
        trajectory, _ = worker.run(params, 0)
        yield trajectory


def on_split(agent, environment):
    """One process of environments with all of them; what it passes on is read where learners read it."""
    moved = ENVS * next(iter(agent.learners.values())).experience.period
    pace = split_pace.pace(agent, minimum=0, moved=moved, free=True)
    plan = split_wiring.Plan(1, ENVS, dict.fromkeys(agent.learners, 1), pace, capacity=100, seed=SEED)
    wiring = split_wiring.Wiring(agent, environment.spec, plan)
    exchange = SharedMemory(wiring.layout)
    parts = fleet_roles.Parts(agent, serve(environment), lambda params, episodes: None)
    acting = split_roles.Acting(lambda: parts, wiring, exchange, which=0, life=0)
    exchange.put(split_wiring.LIMIT, UNROLLS * wiring.quota)
    process = threading.Thread(target=acting.run, name="environments", daemon=True)
    process.start()
    until = time.monotonic() + 300
    while wiring.lengths(exchange) != [UNROLLS] and process.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    exchange.put(split_wiring.STOP, 1)
    process.join(20)
    for entry in exchange.read("pieces/0", 0, UNROLLS).data:
        yield wiring.pieces.unpack(entry)


ARCHITECTURES = {"sebulba": on_sebulba, "seed": on_seed, "fleet": on_fleet, "split": on_split}
NOT_SPLIT = ("ppo", "vtrace", "r2d2")  # agents without replay, or that give first priorities
# With memory, with learners that meet and own statistics, with a search: on each architecture that has them.
QUICK = {
    *(("vtrace, recurrent", on) for on in ("sebulba", "seed", "fleet")),
    *(("sac", on) for on in ARCHITECTURES),
}


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        pytest.param(name, on, marks=() if (name, on) in QUICK else full)
        for name in TABLE
        for on in ARCHITECTURES
        if on != "split" or not name.startswith(NOT_SPLIT)
    ],
)
def test_experience_is_that_of_anakin(name, architecture):
    agent, environment, trajectories = of_anakin(name)
    for expected, actual in zip(trajectories, ARCHITECTURES[architecture](agent, environment), strict=True):
        same = ("action", "step_type", "discount")
        for field in same:
            np.testing.assert_array_equal(getattr(actual.timesteps, field), getattr(expected.timesteps, field))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
            (actual.timesteps, actual.extras, actual.memory),
            (expected.timesteps, expected.extras, expected.memory),
        )
        for field in ("environment", "life", "step"):
            np.testing.assert_array_equal(getattr(actual.origin, field), getattr(expected.origin, field))


@pytest.mark.parametrize("name", NOT_SPLIT)
def test_split_says_what_it_is_not_for(name):
    with pytest.raises(ValueError, match="split"):
        next(on_split(*made(name)))


@pytest.mark.parametrize("name", ["vtrace", "sac", *in_full("ppo, continuous", "dqn", "r2d2", "muzero")])
@slow
def test_devices_meet_in_one_order(name):
    """Nothing else orders a collective within a loop and one beside it."""
    agent, environment = made(name)
    mesh = devices.mesh(jax.devices()[:2])
    program = anakin.program(anakin.make(agent, environment, ENVS, 2), mesh)
    state = jax.eval_shape(program.start, jnp.zeros(1, jnp.int32), {})
    text = program.run.lower(state, 2).compile().as_text()
    assert "all-reduce" in text
    assert unordered(text) == []


SGD = {"optimizer": "sgd", "learning_rate": 0.1, "anneal": False}
LEARNING = {
    "ppo": (ppo.ppo, ppo.Settings, {"minibatches": 2, "epochs": 2, **SGD}),
    "vtrace": (vtrace.vtrace, vtrace.Settings, SGD),
}


# PPO shuffles the steps of each device, so its devices must hold the same environments: then only one thread will do.
@pytest.mark.parametrize(
    ("name", "shards", "actor_threads"),
    [
        ("vtrace", 2, 2),
        *in_full(("ppo", 2, 1), ("ppo", 1, 1), ("ppo", 1, 2), ("vtrace", 1, 1), ("vtrace", 2, 1)),
    ],
)
@slow
def test_synchronous_learning_is_that_of_anakin(name, shards, actor_threads):
    factory, settings, values = LEARNING[name]
    environment = envs.make("boonta:catch")
    agent = factory(environment.spec, settings(batch=8, unroll=LENGTH, hidden=(16,), **values))

    program = anakin.program(anakin.make(agent, environment, 8, shards), devices.mesh(jax.devices()[:shards]))
    expected, metrics = program.run(program.start(jnp.array([SEED], jnp.int32), {}), 20)

    unit = sebulba.make(agent, environment.spec, 8 // actor_threads, shards)
    host = serve(environment)
    plan = Plan([jax.devices()[-1]], jax.devices()[:shards], actor_threads, 8 // actor_threads, lag=0)
    threads = Threads(unit, lambda index, life: host.make(index, SEED, life, Workers()), plan, SEED, Trace())
    state = threads.init()
    threads.compile(state, environment.spec)
    threads.start(state)
    try:
        for i in range(20):
            state, mine, _ = threads.iterate(state)
            assert mine["policy_lag_max"] == 0
            np.testing.assert_allclose(mine["loss/value"], metrics["loss/value"][0, i], rtol=1e-3, atol=1e-5)
    finally:
        threads.stop()
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=0, atol=1e-5)
    assert int(state.updates) == int(expected.updates[0])
