"""Greedy episodes, counted once each."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core import acting, random
from boonta.core.agent import Agent
from boonta.core.environment import Environment, advance
from boonta.core.faults import Guard, closing
from boonta.core.host import Host, Workers
from boonta.core.types import LAST, Array, Key, Params, PyTree, TimeStep

SEED = 0x5EED  # the same episodes every time: evaluations of a run differ by the agent alone
TELL = 10.0  # seconds between two words on how an evaluation gets on


class Scores(NamedTuple):
    """Of the first episode of each environment.

    Attributes:
        returns: float32 [episodes].
        lengths: int32 [episodes].
        whole: bool [episodes], whether it came to its end within the steps that it had.
    """

    returns: Array
    lengths: Array
    whole: Array


def nothing(members: int) -> Scores:
    """The scores of no episode."""
    empty = np.zeros((members, 0), np.float32)
    return Scores(empty, empty.astype(np.int32), empty.astype(bool))  # type: ignore[arg-type]


def episodes(
    agent: Agent, environment: Environment, params: Params, key: Key, first: Array | int, count: int, most: int,
    of: int = 0,
) -> Scores:  # fmt: skip
    """Play one episode in each of `count` environments at once; compiled as one loop that ends with the last of them.

    Args:
        agent: acts with `exploit`.
        environment: one that compiles.
        params: the agent's groups.
        key: consumed.
        first: int32 scalar, the index of the first environment: it decides which episodes these are.
        count: environments.
        most: steps of an episode; one that has more is cut short.
        of: environments over all devices, if these are a part of them.
    """
    begin = partial(acting.begin, agent, environment, params, count=of or count, key=key)
    actors = jax.vmap(lambda index: begin(index=index))(first + jnp.arange(count, dtype=jnp.int32))

    def play(actor: acting.Actor, total: Array, length: Array, done: Array) -> tuple[acting.Actor, Array, Array, Array]:
        key, act_key, step_key = jax.random.split(actor.key, 3)
        memory, action, _ = agent.exploit(params, actor.memory, actor.timestep, act_key)
        state, timestep = advance(environment, actor.state, actor.timestep, action, step_key)
        total = total + jnp.where(done, 0.0, timestep.reward)
        length = length + jnp.where(done, 0, 1)
        actor = actor._replace(key=key, memory=memory, state=state, timestep=timestep)
        return actor, total, length, done | timestep.last()

    def body(carry: PyTree) -> PyTree:
        steps, *rest = carry
        return steps + 1, *jax.vmap(play)(*rest)

    def unfinished(carry: PyTree) -> Array:
        return ~carry[-1].all() & (carry[0] < most)

    zero = jnp.zeros(count, jnp.int32)
    start = (jnp.int32(0), actors, jnp.zeros(count, jnp.float32), zero, jnp.zeros(count, bool))
    _, _, total, length, done = jax.lax.while_loop(unfinished, body, start)
    return Scores(total, length, done)


class Greedy:
    """An agent that acts greedily in host environments, compiled once for each number of them."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._memory = jax.jit(jax.vmap(agent.memory, (None, 0, 0)))

        @jax.jit
        def act(params: Params, memory: PyTree, keys: Key, timestep: TimeStep, number: Array) -> tuple[PyTree, Array]:
            drawn = acting.act_keys(keys, jnp.full(keys.shape, number, jnp.int32))
            memory, action, _ = jax.vmap(agent.exploit, (None, 0, 0, 0))(params, memory, timestep, drawn)
            return memory, action

        self._act = act

    def player(self, params: Params, count: int) -> Callable[[TimeStep], np.ndarray]:
        """What acts in `count` environments from their beginning on: memory and keys are kept."""
        keys = jax.random.split(random.key(SEED), count)
        memory = self._memory(params, acting.rank(jnp.arange(count), count), keys)
        number = 0

        def play(timestep: TimeStep) -> np.ndarray:
            nonlocal memory, number
            memory, action = self._act(params, memory, keys, timestep, np.int32(number))
            number += 1
            return np.asarray(action)

        return play


class GivenUp(Exception):
    """An evaluation ended before its episodes did, because the run did."""


def on_host(
    greedy: Greedy,
    params: Params,
    batch: Guard,
    count: int,
    most: int,
    ended: Callable[[], bool],
    tell: Callable[[str], None],
) -> Scores:
    """Play one episode in each of `count` host environments at once.

    Args:
        greedy: what acts.
        params: the agent's groups.
        batch: the environments; they are reset.
        count: so many.
        most: steps of an episode; one that has more is cut short.
        ended: asked before every step; whether to give up.
        tell: takes now and then how it gets on.

    Raises:
        Broken: the environments failed.
        GivenUp: it ended.
    """
    returns, lengths = np.zeros(count, np.float32), np.zeros(count, np.int32)
    done = np.zeros(count, bool)
    play = greedy.player(params, count)
    timestep, told = batch.reset(), time.monotonic()
    for step in range(most):
        if ended():
            raise GivenUp
        if time.monotonic() > told + TELL:
            told = time.monotonic()
            tell(f"evaluation: {done.sum()} of {count} episodes have ended, at step {step:,} of at most {most:,}")
        timestep = batch.step(play(timestep))
        returns += np.where(done, 0.0, timestep.reward)
        lengths += ~done
        done |= np.asarray(timestep.step_type == LAST)
        if done.all():
            break
    return Scores(returns, lengths, done)  # type: ignore[arg-type]


def statistics(scores: Scores) -> dict[str, Any]:
    """Mean and spread of whole episodes under the names of the command line; None where there is none."""
    whole = np.asarray(scores.whole, bool)
    returns = np.asarray(scores.returns)[whole]
    return {
        "eval_return_mean": float(np.mean(returns)) if returns.size else None,
        "eval_return_std": float(np.std(returns)) if returns.size else None,
        "eval_episodes": int(returns.size),
        "eval_cut_short": int(np.sum(~whole)),
    }


def mean(scores: Scores) -> float:
    """The mean return of whole episodes; NaN where there is none."""
    found = statistics(scores)["eval_return_mean"]
    return float("nan") if found is None else found


def cut_short(scores: Scores, most: int) -> str:
    """What is to be said of episodes that did not come to their end; nothing where all did."""
    count = int(np.sum(~np.asarray(scores.whole, bool)))
    if not count:
        return ""
    return (
        f"{count} of {np.size(scores.whole)} episodes of the evaluation were cut short after {most:,} steps "
        "(run.eval_steps), and are left out of the returns"
    )


class Film(NamedTuple):
    """One greedy episode: its frames, uint8 [H, W, 3] each, its return so far, and whether it came to its end."""

    frames: list[np.ndarray]
    total: float
    whole: bool


def film(agent: Agent, environment: Environment, params: Params, key: Key, most: int) -> Film:
    """Play one greedy episode of at most so many steps, and draw them.

    Raises:
        ValueError: the environment cannot be drawn.
    """
    if environment.render is None:
        raise ValueError(f"{environment.spec.name} cannot be drawn: it has no render")

    @jax.jit
    def move(state: PyTree, timestep: TimeStep, memory: PyTree, key: Key) -> tuple[PyTree, TimeStep, PyTree]:
        act_key, step_key = jax.random.split(key)
        memory, action, _ = agent.exploit(params, memory, timestep, act_key)
        state, timestep = environment.step(state, action, step_key)
        return state, timestep, memory

    reset_key, memory_key, key = jax.random.split(key, 3)
    state, timestep = jax.jit(environment.reset)(reset_key)
    memory = agent.memory(params, jnp.zeros(()), memory_key)
    frames, total = [environment.render(jax.device_get(state))], 0.0
    for step in range(most):
        state, timestep, memory = move(state, timestep, memory, jax.random.fold_in(key, step))
        total += float(timestep.reward)
        frames.append(environment.render(jax.device_get(state)))
        if timestep.last():
            break
    return Film(frames, total, bool(timestep.last()))


def film_on_host(greedy: Greedy, host: Host, params: Params, seed: int, most: int) -> Film:
    """`film` in a host environment.

    Raises:
        ValueError: the environment cannot be drawn.
    """
    with closing(host.make(np.arange(1), seed, 0, Workers("serial", 1))) as batch:
        play = greedy.player(params, 1)
        timestep = batch.reset()
        frames, total = [batch.frame()], 0.0
        for _ in range(most):
            timestep = batch.step(play(timestep))
            last = timestep.step_type[0] == LAST
            total += float(timestep.reward[0])
            frames.append(batch.frame())
            if last:
                break
    return Film(frames, total, bool(last))
