"""The contract of agents, held by each of ours."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.agents import dqn, ppo, r2d2, vtrace
from boonta.architectures import anakin
from boonta.core import random
from boonta.core.environment import Environment, proceed, start
from boonta.core.settings import Refused
from boonta.core.spec import Continuous, Discrete, Spec
from boonta.core.types import LAST
from boonta.envs import catch, memory, wrappers
from boonta.testing.agent import AgentContract
from tests.marks import full, in_full

SMALL = {"body": "mlp", "hidden": (8,), "unroll": 12, "batch": 4, "core_size": 4}
PLAIN = {"optimizer": "sgd", "learning_rate": 0.1, "max_grad_norm": 1e9}


def reach(limit=5, dimensions=2):
    """A point to be pushed to the origin, with true ends far away and a time limit."""
    bound = np.ones(dimensions, np.float32)
    spec = Spec("reach", jax.ShapeDtypeStruct((dimensions,), jnp.float32), Continuous((dimensions,), -2 * bound, bound))

    def reset(key):
        place = 3 + jax.random.normal(key, (dimensions,))
        return (place, jnp.int32(0)), start(place, spec.action)

    def step(state, action, key):
        place, time = state
        place, time = place + jnp.clip(action, -2, 1), time + 1
        far = jnp.abs(place).max() > 5
        return (place, time), proceed(place, action, -jnp.abs(place).sum(), far, time >= limit)

    return Environment(spec, reset, step)


def choose():
    """Three actions of which one to three are legal, episodes of three steps."""
    shapes = {"seen": jax.ShapeDtypeStruct((2,), jnp.float32), "legal": jax.ShapeDtypeStruct((3,), bool)}
    spec = Spec("choose", shapes, Discrete(3))

    def observe(key, time):
        legal = (jax.random.uniform(key, (3,)) < 0.4).at[time % 3].set(True) | (time >= 3)
        return {"seen": jnp.stack([time / 3, jax.random.uniform(key)]), "legal": legal}

    def reset(key):
        return jnp.int32(0), start(observe(key, 0), spec.action)

    def step(time, action, key):
        time = time + 1
        return time, proceed(observe(key, time), action, (action == time % 3) * 1.0, time >= 3)

    return Environment(spec, reset, step)


def agent(environment, **settings):
    return ppo.ppo(environment.spec, ppo.Settings(**SMALL | settings)), environment


class TestPPO(AgentContract):
    def make(self):
        return agent(catch.make(rows=4, columns=3), epochs=2, minibatches=2)


@full
class TestPPOWithPlainSGD(AgentContract):
    one_device_is_two = True

    def make(self):
        return agent(catch.make(rows=4, columns=3), epochs=2, minibatches=1, **PLAIN)


class TestPPOWithMemory(AgentContract):
    one_device_is_two = True

    def make(self):
        return agent(memory.make(length=3), core="lstm", previous=True, epochs=1, minibatches=1, **PLAIN)


class TestPPOContinuous(AgentContract):
    one_device_is_two = True

    def make(self):
        settings = {"squash": True, "share": True, "normalize_observations": True, "reward_clip": 1.0}
        return agent(reach(), epochs=1, minibatches=1, **settings, **PLAIN)


class TestPPOLegal(AgentContract):
    def make(self):
        return agent(choose(), core="gru", normalize_observations=True, epochs=1, minibatches=2)


class TestVTrace(AgentContract):
    one_device_is_two = True

    def make(self):
        environment = catch.make(rows=4, columns=3)
        return vtrace.vtrace(environment.spec, vtrace.Settings(share=True, **SMALL, **PLAIN)), environment


def valued(module, environment, **settings):
    made = {"body": "mlp", "hidden": (8,), "batch": 4, "huber": None} | settings
    known = {field.name for field in dataclasses.fields(module.Settings)}
    factory = getattr(module, module.__name__.split(".")[-1])
    return factory(environment.spec, module.Settings(**{k: v for k, v in made.items() if k in known})), environment


@full
class TestDQN(AgentContract):
    def make(self):
        return valued(dqn, catch.make(rows=4, columns=3), n_step=5)


class TestDQNWithPlainSGD(AgentContract):
    one_device_is_two = True

    def make(self):
        return valued(dqn, catch.make(rows=4, columns=3), n_step=5, dueling=False, double=False, **PLAIN)


class TestDQNLegal(AgentContract):
    def make(self):
        return valued(dqn, choose(), n_step=4, head=4)


SEQUENCES = {"length": 12, "burn_in": 4, "period": 4, "core_size": 4, "head": 4}


@full
class TestR2D2(AgentContract):
    def make(self):
        return valued(r2d2, memory.make(length=3), **SEQUENCES)


class TestR2D2WithPlainSGD(AgentContract):
    one_device_is_two = True

    def make(self):
        return valued(r2d2, memory.make(length=3), **SEQUENCES | {"burn_in": 0}, **PLAIN)


class TestR2D2Legal(AgentContract):
    def make(self):
        return valued(r2d2, choose(), core="gru", rescale=False, dueling=False, **SEQUENCES)


def test_the_contract_sees_an_update_that_looks_at_idle_actions():
    """The contract itself: an agent that forgets the mask is caught."""
    right = TestPPO._made()[0]
    learner = right.learners["ppo"]

    def update(state, params, sample, key):
        step_type = sample.trajectory.timesteps.step_type
        moved = jnp.where(step_type == LAST, 1, step_type)  # every step looks like any other
        timesteps = sample.trajectory.timesteps._replace(step_type=jnp.where(moved == 0, 1, moved).astype(jnp.int8))
        sample = sample._replace(trajectory=sample.trajectory._replace(timesteps=timesteps))
        return learner.update(state, params, sample, key)

    class Wrong(TestPPO):
        def make(self):
            made, environment = TestPPO().make()
            return made._replace(learners={"ppo": learner._replace(update=update)}), environment

    with pytest.raises(AssertionError, match="not equal"):
        Wrong().test_an_update_does_not_look_at_idle_actions()


@pytest.mark.parametrize("module", [ppo, vtrace])
def test_an_entropy_bonus_alone_leads_to_the_squashed_policy_of_maximum_entropy(module):
    """Nearly uniform over the box; at a standard deviation of 0.87 before tanh by numerical integration."""
    environment = wrappers.scale_reward(reach(dimensions=1), 0.0)
    settings = {"squash": True, "entropy_cost": 1.0, "value_cost": 0.0, "anneal": False, "learning_rate": 0.02}
    settings |= {"log_std": 1.0, "epochs": 1, "minibatches": 1} if module is ppo else {"log_std": 1.0}
    made, _ = valued(module, environment, unroll=4, normalize_advantages=False, **settings)
    unit = anakin.make(made, environment, 4)
    state = unit.init(random.key(0), {})
    state, _ = jax.jit(lambda state: jax.lax.scan(lambda state, _: unit.step(state), state, length=300))(state)
    np.testing.assert_allclose(np.exp(state.params["network"]["log_std"]), 0.87, atol=0.03)
    policy = jax.vmap(lambda memory, step: made.act(state.params, memory, step, random.key(1))[2]["log_prob"])
    density = policy(state.actors.memory, state.actors.timestep)
    assert np.all(density < 0)  # of the uniform one it is -log 2


def test_minibatches_of_one_step_whose_advantages_are_normalized_are_refused():
    """What is normalised by itself alone is 0, and nothing would be learned."""
    settings = {"unroll": 2, "batch": 4, "minibatches": 8}
    made, environment = agent(catch.make(rows=4, columns=3), **settings)
    unit = anakin.make(made, environment, 4)
    with pytest.raises(
        Refused, match=r"agent.minibatches must be at most 4, .*, got 8 of 8 steps: the advantage of one"
    ):
        jax.eval_shape(lambda key: unit.step(unit.init(key, {})), random.key(0))
    made, environment = agent(catch.make(rows=4, columns=3), normalize_advantages=False, **settings)
    unit = anakin.make(made, environment, 4)
    jax.eval_shape(lambda key: unit.step(unit.init(key, {})), random.key(0))


@pytest.mark.parametrize("module", [dqn, *in_full(ppo, vtrace)])
def test_gradients_that_are_not_clipped_are_those_of_a_limit_far_away(module):
    environment = catch.make(rows=4, columns=3)
    made, _ = valued(module, environment, **{"minimum": 4} if module is dqn else {"unroll": 4})
    unit = anakin.make(made, environment, 4)
    init, step = jax.jit(lambda limit: unit.init(random.key(0), {"max_grad_norm": limit})), jax.jit(unit.step)
    states = [init(0.0), *(step(step(init(limit))[0])[0] for limit in (0.0, 1e9))]
    before, none, far = (state.params["network"] for state in states)
    jax.tree.map(np.testing.assert_array_equal, none, far)
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, none, before)))
