"""Gymnasium environments that register a vectorized form of their own, which steps all of them in one call.

https://gymnasium.farama.org/api/vector
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from boonta.core import host, nests
from boonta.core.spec import Discrete, Spec
from boonta.core.types import FIRST, LAST, MID, TimeStep
from boonta.envs import gym_spaces, parts
from boonta.envs.door import Door
from boonta.envs.errors import Unfit


def is_registered(name: str) -> bool:
    """Whether the environment called `name` has a vectorized form beside the one that is stepped singly."""
    spec = gymnasium.spec(name)
    return bool(spec.vector_entry_point and spec.entry_point) and not spec.additional_wrappers


def why_not(spec: Spec, name: str, observation: spaces.Space, action: spaces.Space) -> str:
    """Why the vectorized form cannot stand for environments with this spec and these spaces; nothing where it can."""
    try:
        out = host.empty(spec, 2)
        made = Vectorized(spec, name, observation, action, [0, 1], out)
        try:
            made.reset()
            made.step(host.random_actions(spec, np.random.default_rng(0), out))
        finally:
            made.close()
    except Exception as error:  # whatever the environment raises
        return f"{type(error).__name__}: {error}" if not isinstance(error, Unfit) else str(error)
    return ""


class Vectorized:
    """Gymnasium's own vectorized environments, written into the arrays of a TimeStep.

    Args:
        spec: of one environment.
        name: as Gymnasium knows it.
        observation: the space of one.
        action: likewise.
        seeds: as many as environments, of which the first is that of the random stream that they share.
        out: TimeStep [E, ...] of NumPy arrays that is written into.

    Raises:
        Unfit: they are not many of that environment, or begin episodes otherwise than in the step after the last; from
            `reset` and `step`, what they gave is not of their spaces.
    """

    def __init__(
        self,
        spec: Spec,
        name: str,
        observation: spaces.Space,
        action: spaces.Space,
        seeds: Sequence[int],
        out: TimeStep,
    ) -> None:
        self.spec, self.seed, self.out, self.count = spec, seeds[0], out, len(seeds)
        self.environments = gymnasium.make_vec(name, self.count, vectorization_mode="vector_entry_point")
        if unlike := _unlike(self.environments, observation, action):
            self.close()
            raise Unfit(unlike)
        many = nests.mapped(lambda leaf: replace(leaf, shape=(self.count, *leaf.shape)), spec.observation)
        whole = nests.mapped(lambda x: x[None], out.observation)
        self.door = Door(
            spec._replace(observation=many), whole, gym_spaces.said(observation), gym_spaces.starts(observation)
        )
        self.inward = gym_spaces.inward(action)
        if isinstance(spec.action, Discrete):
            start = spec.action.start
            self.inward = lambda chosen: chosen.astype(np.int64) + start

    def reset(self) -> TimeStep:
        observation, _ = self.environments.reset(seed=self.seed)
        self.door.write(0, observation)
        out = self.out
        out.action[:] = 0
        out.reward[:], out.discount[:], out.step_type[:] = 0.0, 1.0, FIRST  # type: ignore[index]
        return out

    def step(self, action: np.ndarray) -> TimeStep:
        out, begin = self.out, self.out.step_type == LAST
        observation, gained, terminated, truncated, _ = self.environments.step(self.inward(action))
        terminated, truncated = self._column(terminated, np.bool_), self._column(truncated, np.bool_)
        over = terminated | truncated
        if (over & begin).any():
            raise Unfit(f"{self.spec.name}: an episode ended in the step that began it")
        self.door.write(0, observation)
        out.action[:] = action
        out.action[begin] = 0
        out.reward[:] = np.where(begin, 0.0, self._column(gained, np.float64))  # type: ignore[index]
        out.discount[:] = ~terminated  # type: ignore[index]
        out.step_type[:] = np.where(begin, FIRST, np.where(over, LAST, MID))  # type: ignore[index]
        return out

    def frame(self) -> np.ndarray:
        raise ValueError(f"{self.spec.name} cannot be drawn in its vectorized form; take architecture.workers=serial")

    def close(self) -> None:
        parts.close_all(self.spec.name, [self.environments])

    def _column(self, values: Any, dtype: Any) -> np.ndarray:
        if np.shape(values) != (self.count,):
            raise Unfit(
                f"{self.spec.name}: rewards, terminated and truncated must be arrays [{self.count}], got {values!r}"
            )
        return np.asarray(values, dtype)


def _unlike(made: gymnasium.vector.VectorEnv, observation: spaces.Space, action: spaces.Space) -> str:
    """What of them is otherwise than it must be; nothing where they fit."""
    mode, theirs = made.metadata.get("autoreset_mode"), (made.single_observation_space, made.single_action_space)
    if mode != AutoresetMode.NEXT_STEP:
        return f"autoreset_mode must be {AutoresetMode.NEXT_STEP}, got {mode}"
    if theirs != (observation, action):
        return f"its spaces must be {observation} and {action}, got {theirs[0]} and {theirs[1]}"
    if isinstance(observation, spaces.Dict) and any(key in parts.MASKS for key in observation.spaces):
        return "a mask of legal actions must be looked at singly"
    return ""
