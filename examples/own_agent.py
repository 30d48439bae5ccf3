"""An agent of one's own: REINFORCE with a baseline (Williams 1992), for any environment and any number of devices.

Train it: boonta train examples.own_agent:reinforce gymnax:CartPole-v1 --sweep learning_rate=1e-3,3e-3"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from boonta.core import Agent, Experience, Feedback, Learner
from boonta.core.devices import average
from boonta.core.settings import setting, traced
from boonta.nets.actor_critic import actor_critic
from boonta.ops.returns import lambda_returns


@dataclass(frozen=True)
class Settings:
    """What `--set agent.KEY=VALUE` knows; what is traced can be swept."""

    learning_rate: float = setting(3e-3, "step size of Adam", low=0.0, traced=True)
    discount: float = setting(0.99, "gamma", low=0.0, high=1.0, traced=True)
    unroll: int = setting(64, "T, steps of a trajectory", low=1)
    batch: int = setting(32, "trajectories in one update over all devices", low=1)


def reinforce(spec, settings, total_updates=0):
    """The agent for an environment: one way of acting, `act`, and one of learning, `update`."""
    net = actor_critic(spec)

    def init(key):
        return {"network": net.init(key), "settings": jax.tree.map(jnp.float32, traced(settings))}

    def act(params, memory, timestep, key):
        memory, policy, _ = net.step(params["network"], memory, timestep)
        sample = policy.sample(key)
        return memory, net.action(policy, sample), {"sample": sample}

    def exploit(params, memory, timestep, key):
        memory, policy, _ = net.step(params["network"], memory, timestep)
        return memory, net.action(policy, policy.mode()), {}

    def loss(network, hyper, trajectory):
        policy, v = net.unroll(network, trajectory.memory, trajectory.timesteps)  # [B, T+1]
        log_prob = jax.tree.map(lambda x: x[:, :-1], policy).log_prob(trajectory.extras["sample"])
        arrived = jax.tree.map(lambda x: x[:, 1:], trajectory.timesteps)  # an action's reward comes with the next step
        reward, discount, bootstrap = arrived.reward, hyper["discount"] * arrived.discount, jax.lax.stop_gradient(v)
        returns = jax.vmap(lambda_returns, (0, 0, 0, None, 0))(reward, discount, bootstrap, 1.0, arrived.first())
        advantage = returns - v[:, :-1]  # zero where the act was idle, from LAST to FIRST: nothing is learnt there
        return jnp.mean(0.5 * advantage**2 - log_prob * jax.lax.stop_gradient(advantage))

    def update(state, params, sample, key):
        value, grads = average(jax.value_and_grad(loss)(params["network"], params["settings"], sample.trajectory))
        steps, state = optax.adam(params["settings"]["learning_rate"]).update(grads, state)
        return state, {"network": optax.apply_updates(params["network"], steps)}, Feedback({"loss/total": value})

    experience = Experience(settings.unroll, settings.batch)
    learner = Learner(("network",), ("settings",), experience, lambda p: optax.adam(0.0).init(p["network"]), update)
    return Agent(init, lambda params, rank, key: net.memory(), act, exploit, ("network",), {"reinforce": learner})
