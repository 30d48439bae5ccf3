"""What travels round the ring: time steps, trajectories, samples and feedback.

The conventions are dm_env's: the reward and the discount of a time step belong
to the action that led to it, and an episode is FIRST, MID ..., LAST.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import jax

    Array = jax.Array
    Key = jax.Array
else:  # environments of other machines know no JAX
    Array = Key = Any
PyTree = Any
Params = dict[str, PyTree]
Memory = PyTree
Action = PyTree
Extras = PyTree

FIRST = np.int8(0)
MID = np.int8(1)
LAST = np.int8(2)


class TimeStep(NamedTuple):
    """What an environment says at time t.

    Attributes:
        observation: pytree of arrays. If it is a mapping with the key `legal`, that is a bool mask over the
            actions with at least one True in every step, and all True where the discount is 0. Where a time limit ends
            the episode it stays the environment's own, as what follows is estimated from there.
        action: a_{t-1}, exactly as it was given to `step`; zeros at FIRST.
        reward: float32 [], r_t, of whoever acted; zero at FIRST.
        discount: float32 [], 0 only at a true end, 1 otherwise (also when a time limit cut the episode),
            -1 where the turn passes to the opponent of a zero-sum game; 1 and unused at FIRST.
        step_type: int8 [], FIRST, MID or LAST. After LAST comes FIRST; the action taken at LAST is ignored.
    """

    observation: PyTree
    action: PyTree
    reward: Array
    discount: Array
    step_type: Array

    def first(self) -> Array:
        """bool, whether an episode starts here."""
        return self.step_type == FIRST

    def last(self) -> Array:
        """bool, whether an episode ends here."""
        return self.step_type == LAST


class Origin(NamedTuple):
    """Where and when a trajectory was made.

    Attributes:
        environment: int32 [], the environment's global index.
        life: int32 [], how often that environment was started anew; no window of replay crosses lives.
        step: int32 [], steps this environment had made in this life when the trajectory began.
        version: int32 [], updates behind the parameters that acted; the learner's minus this is the policy lag.
    """

    environment: Array
    life: Array
    step: Array
    version: Array


class Trajectory(NamedTuple):
    """T consecutive steps of one environment: the only thing ever stored or sent.

    Attributes:
        memory: the agent's memory before it acted at step 0.
        timesteps: TimeStep [T+1, ...]; the last one is the first of the next trajectory.
        extras: pytree [T, ...], what `act` wants `update` to know.
        origin: Origin.
    """

    memory: Memory
    timesteps: TimeStep
    extras: Extras
    origin: Origin


class Ids(NamedTuple):
    """What replay calls its windows, so that a priority which comes late finds its own or none.

    Attributes:
        place: int32 [...], where it begins; below 0 for none.
        generation: int32 [...], how often something else had been there before.
    """

    place: Array
    generation: Array


class Sample(NamedTuple):
    """A batch drawn from replay.

    Attributes:
        trajectory: Trajectory [B, ...].
        weights: float32 [B], importance weights (N P(i))^-beta; ones where sampling is uniform.
        ids: Ids [B], where the priorities of `Feedback` go.
    """

    trajectory: Trajectory
    weights: Array
    ids: Ids


class Feedback(NamedTuple):
    """What an update says back.

    Attributes:
        metrics: dict of float32 scalars, already averaged over devices.
        priorities: float32 [B], new priorities of the sample, or None.
    """

    metrics: dict[str, Array]
    priorities: Array | None = None
