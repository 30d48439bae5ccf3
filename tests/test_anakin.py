"""Anakin: the same learning on any number of devices, differentiable, in populations, and loud about NaN."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from boonta.agents import ppo, vtrace
from boonta.architectures import anakin
from boonta.core import devices, random
from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Discrete, Spec
from boonta.envs import catch
from tests.marks import in_full, slow, some_of

TINY = {"body": "mlp", "hidden": (16,), "unroll": 8, "batch": 8, "anneal": False}
AGENTS = {
    "vtrace": lambda spec, **more: vtrace.vtrace(spec, vtrace.Settings(**TINY, **more)),
    "ppo": lambda spec, **more: ppo.ppo(spec, ppo.Settings(**TINY, epochs=2, minibatches=2, **more)),
}
names = pytest.mark.parametrize("name", some_of(AGENTS, "vtrace"))
ITERATIONS = 50
SGD = {"optimizer": "sgd", "learning_rate": 0.1}  # Adam would hide a wrong scale of the gradient


def unit(shards=1, name="vtrace", environment=None, envs=8, **settings):
    environment = environment or catch.make(rows=5, columns=3)
    return anakin.make(AGENTS[name](environment.spec, **(settings or SGD)), environment, envs, shards)


@cache
def program(count=1, population=1, name="vtrace"):
    return anakin.program(unit(count // population, name), devices.mesh(jax.devices()[:count], population))


def trained(program, seeds=(0,), iterations=ITERATIONS, **swept):
    """The state [M, ...] after training, its keys as their data, and the metrics."""
    swept = {key: np.asarray(values, np.float32) for key, values in swept.items()}
    state, metrics = program.run(program.start(np.asarray(seeds, np.int32), swept), iterations)
    return jax.tree.map(np.asarray, (state._replace(key=(), actors=state.actors.timestep), metrics))


def member(tree, i):
    return jax.tree.map(lambda x: x[i : i + 1], tree)


def assert_close(one, other, most=0.0):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=most)


def differ(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("count", [2, *in_full(8)])
def test_devices_do_not_change_what_is_learned(count):
    alone, metrics = trained(program())
    together, metrics_together = trained(program(count))
    begun = program().start(np.zeros(1, np.int32), {}).params["network"]
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), begun, alone.params["network"])
    assert max(jax.tree.leaves(moved)) > 0.1
    assert_close(alone.params, together.params, 1e-5)
    assert_close(metrics["count"], metrics_together["count"])
    assert_close(metrics["loss/value"], metrics_together["loss/value"], 1e-5)


@names
def test_a_seed_is_a_run(name):
    one, again, other = (trained(program(name=name), [seed]) for seed in (3, 3, 4))
    assert_close(one, again)
    assert differ(one[0].params["network"], other[0].params["network"])
    assert differ(one[0].actors, other[0].actors)


def test_a_population_is_its_members():
    everyone = trained(program(name="ppo"), [5, 6, 7, 8])
    for i in range(4):
        assert_close(member(everyone, i), trained(program(name="ppo"), [5 + i]))


@slow
def test_a_population_over_a_mesh_is_its_members():
    everyone, _ = trained(program(4, population=2), [5, 6, 7, 8])
    assert program(4, population=2).mesh.shape == {"population": 2, "learners": 2}
    for i in range(4):
        assert_close(member(everyone.params, i), trained(program(), [5 + i])[0].params, 1e-6)


@slow
def test_a_sweep_is_runs_with_those_settings():
    rates = (0.0, 0.3)
    everyone, metrics = trained(program(), [1, 1], learning_rate=rates)
    np.testing.assert_array_equal(everyone.params["settings"]["learning_rate"], np.float32(rates))
    np.testing.assert_array_equal(metrics["loss/learning_rate"], np.tile(np.float32(rates)[:, None], ITERATIONS))
    for i, rate in enumerate(rates):
        alone = anakin.program(unit(optimizer="sgd", learning_rate=rate), devices.mesh(jax.devices()[:1]))
        assert_close(member(everyone.params, i), trained(alone, [1])[0].params)


@pytest.mark.parametrize(
    ("envs", "shards", "numbers"), [(8, 3, ("8", "3")), (10, 4, ("10", "4")), (12, 1, ("12", "8"))]
)
def test_what_does_not_divide_is_refused(envs, shards, numbers):
    with pytest.raises(ValueError, match=r"must (be a multiple of|divide)") as refusal:
        unit(shards, envs=envs)
    assert all(number in str(refusal.value) for number in numbers)
    with pytest.raises(ValueError, match="multiple of the population axis, got 3 and 2"):
        devices.mesh(jax.devices()[:3], 2)


# --- differentiating through the unit --------------------------------------------------------------------------------


@cache
def objective(count, steps):
    """Settings -> (a loss of policy and value after `steps` steps, its gradient), both averaged over devices."""
    environment = catch.make(rows=5, columns=3)
    agent = AGENTS["vtrace"](environment.spec, **SGD, max_grad_norm=1e3)
    made = anakin.make(agent, environment, 8, count)

    def loss(settings):
        state = made.init(random.key(0), settings)
        for _ in range(steps):
            state, _ = made.step(state)
        observed = jax.lax.stop_gradient(state.actors)
        act, exploit = (
            jax.vmap(lambda memory, step, way=way: way(state.params, memory, step, random.key(1))[2])
            for way in (agent.act, agent.exploit)
        )
        log_prob = act(observed.memory, observed.timestep)["log_prob"]
        value = exploit(observed.memory, observed.timestep)["value"]
        return jnp.mean(log_prob**2 + (value - 1.0) ** 2)

    def both(settings):
        return devices.average(jax.value_and_grad(loss)(settings))

    mesh = devices.mesh(jax.devices()[:count])
    return jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))


META = {"learning_rate": jnp.float32(0.1), "entropy_cost": jnp.float32(0.05)}


@pytest.mark.parametrize("count", [2, *in_full(8)])
@slow
def test_the_meta_gradient_does_not_depend_on_the_devices(count):
    value, grads = objective(1, 2)(META)
    value_together, grads_together = objective(count, 2)(META)
    np.testing.assert_allclose(value, value_together, rtol=1e-5)
    for name, grad in grads.items():
        assert grad != 0
        np.testing.assert_allclose(grad, grads_together[name], rtol=1e-5, err_msg=name)


# After one step a rate's slope is the gradient; later targets hold values, through which no gradient flows.
@pytest.mark.parametrize(("name", "steps", "width"), [("learning_rate", 1, 0.01), ("entropy_cost", 3, 1.0)])
def test_the_meta_gradient_is_the_slope(name, steps, width):
    at = objective(1, steps)
    _, grads = at(META)
    high, low = (at(META | {name: META[name] + sign * width})[0] for sign in (1, -1))
    np.testing.assert_allclose(grads[name], (high - low) / (2 * width), rtol=2e-3)


@pytest.mark.parametrize("optimizer", ["adam", *in_full("rmsprop", "sgd")])
@slow
def test_the_meta_gradient_is_finite_where_gradients_are_zero(optimizer):
    """Of an agent whose body has a unit that nothing reaches: forward and reverse mode say the same."""
    environment = catch.make(rows=5, columns=3)
    agent = AGENTS["vtrace"](environment.spec, optimizer=optimizer, max_grad_norm=0.5)
    made = anakin.make(agent, environment, 8)

    def loss(rate):
        state = made.init(random.key(0), {"learning_rate": rate})
        body = jax.tree.map(lambda x: x.at[..., 0].set(0.0), state.params["network"])
        state = state._replace(params=state.params | {"network": body})
        for _ in range(2):
            state, metrics = made.step(state)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(state.params["network"])) + metrics["loss/grad_norm"]

    reverse, forward = jax.jit(lambda x: (jax.grad(loss)(x), jax.jacfwd(loss)(x)))(jnp.float32(0.1))
    assert np.isfinite(reverse) and reverse != 0
    np.testing.assert_allclose(forward, reverse, rtol=1e-3)


# --- what is not finite ----------------------------------------------------------------------------------------------


def broken(where="reward", after=12, length=40):
    """Emits NaN at step `after` of every episode, in the observation or the reward."""
    spec = Spec("broken", {"speed": jax.ShapeDtypeStruct((2,), jnp.float32)}, Discrete(2))

    def observe(count):
        bad = (count == after) & (where == "observation")
        return {"speed": jnp.where(bad, jnp.nan, jnp.full(2, count / length))}

    def reset(key):
        return jnp.int32(0), start(observe(jnp.int32(0)), spec.action)

    def step(state, action, key):
        count = state + 1
        reward = jnp.where((count == after) & (where == "reward"), jnp.nan, 0.1 * action)
        return count, proceed(observe(count), action, reward, count >= length)

    return Environment(spec, reset, step)


@pytest.mark.parametrize(
    ("where", "name", "count"),
    [
        ("reward", "reward", 1),
        ("observation", "observation/speed", 2),
        *in_full(("reward", "reward", 2), ("observation", "observation/speed", 1)),
    ],
)
def test_a_bad_tensor_of_the_environment_is_named(where, name, count):
    made = unit(count, environment=broken(where))
    _, metrics = trained(anakin.program(made, devices.mesh(jax.devices()[:count])), iterations=3)
    health = metrics["health"][0]
    assert health[0] == 0
    assert made.tensors()[health[1] - 1] == name


@names
def test_a_bad_loss_is_named(name):
    made = unit(name=name, optimizer="sgd", learning_rate=1e30)
    _, metrics = trained(anakin.program(made, devices.mesh(jax.devices()[:1])), iterations=5)
    bad = metrics["health"][0]
    assert made.tensors()[bad[bad > 0][0] - 1].startswith("loss/")
