"""What a learned model is held to: returns that bootstrap from searches, and the targets of an unroll.

Both see one sequence of one environment, in which episodes may end and begin.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.types import Array, TimeStep
from boonta.ops.returns import n_step_returns

TURNS = (-1.0, 0.0, 1.0)  # the discounts that there are: the turn passes, the episode ends, the same player goes on


class Targets(NamedTuple):
    """Of the K + 1 answers from one root, and where they count.

    Attributes:
        policy: float32 [K+1, A].
        value: float32 [K+1].
        reward: float32 [K+1]; what is at 0 is not used.
        turn: float32 [K+1, 3], one-hot of `TURNS`; what is at 0 is not used.
        has_policy: float32 [K+1], 0 where no policy is known: at LAST and beyond.
        has_turn: float32 [K+1], 0 beyond LAST.
        known: float32 [K+1], 0 beyond a time limit, where nobody knows what would have been.
    """

    policy: Array
    value: Array
    reward: Array
    turn: Array
    has_policy: Array
    has_turn: Array
    known: Array


def search_returns(timesteps: TimeStep, value: Array, discount: Array | float, n: int) -> Array:
    """n-step returns of one sequence (MooZi, section 5.2.8), with the sign of whoever is to move.

    Args:
        timesteps: TimeStep [T+1].
        value: float32 [T], what searches found at steps 0 ... T-1.
        discount: gamma.
        n: steps before bootstrapping from `value`.

    Returns:
        float32 [T]: 0 at a true end, the value itself at a time limit and at the last step.
    """
    acted = jax.tree.map(lambda x: x[:-1], timesteps)
    arrived = jax.tree.map(lambda x: x[1:], acted)
    ahead = n_step_returns(arrived.reward, discount * arrived.discount, value, n, arrived.first())
    return jnp.where(_ended(acted), 0.0, jnp.append(ahead, value[-1]))


def unroll_targets(
    timesteps: TimeStep, policy: Array, returns: Array, root: Array, steps: int, dummy: bool = False
) -> tuple[Array, Targets]:
    """Of the unroll that begins at step `root` of a sequence.

    Beyond a true end the values and rewards are 0. There, and at the end, a dummy action, the last, is what the policy
    should take and what is taken; without one any action is taken and no policy asked for.

    Args:
        timesteps: TimeStep [T+1].
        policy: float32 [T, A], what searches found.
        returns: float32 [T].
        root: int32 [], at most T - 1 - K.
        steps: K.
        dummy: whether the last of the A actions is a dummy; ends are then not among the discounts.

    Returns:
        The actions, int32 [K], and Targets.
    """
    at = root + jnp.arange(steps + 1)
    here = jax.tree.map(lambda x: x[at], timesteps)
    last = here.last()
    over = _before(last)
    ended = _ended(here) & ~over  # what comes after is another episode
    finished = _before(ended)
    action, improved = here.action[1:], policy[at]
    has_policy, has_turn = ~last & ~over, ~over
    if dummy:
        done, nothing = ended | finished, policy.shape[-1] - 1
        action = jnp.where(done[:-1], nothing, action)
        improved = jnp.where(done[:, None], jax.nn.one_hot(nothing, nothing + 1, dtype=improved.dtype), improved)
        has_policy, has_turn = has_policy | done, has_turn & ~ended
    turn = here.discount[:, None] == jnp.asarray(TURNS)
    numbers = improved, jnp.where(over, 0.0, returns[at]), jnp.where(over, 0.0, here.reward)
    flags = turn, has_policy, has_turn, ~over | finished
    return action, Targets(*numbers, *(flag.astype(jnp.float32) for flag in flags))


def _ended(timesteps: TimeStep) -> Array:
    """bool [...], whether the episode truly ended there."""
    return timesteps.last() & (timesteps.discount == 0)


def _before(flag: Array) -> Array:
    """bool [K+1], whether `flag` was True at an earlier step."""
    return jnp.cumsum(flag) - flag > 0
