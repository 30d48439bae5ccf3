"""Environments for drills and benchmarks: CartPole with something wrong with it, and pixels that cost nothing."""

import time

import gymnasium
import numpy as np


class _Slow(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return self.env.step(action)


class _NaN(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, after: int) -> None:
        super().__init__(env)
        self._left = after

    def step(self, action):
        observation, *rest = self.env.step(action)
        self._left -= 1
        return (observation if self._left else np.full_like(observation, np.nan)), *rest


def slow(seconds: float = 0.05) -> gymnasium.Env:
    """CartPole whose steps take long."""
    return _Slow(gymnasium.make("CartPole-v1"), seconds)


def nan(after: int = 200) -> gymnasium.Env:
    """CartPole that shows NaN after so many steps."""
    return _NaN(gymnasium.make("CartPole-v1"), after)


class _Blank(gymnasium.Env):
    """The pixels of Atari games, always the same, in episodes of a thousand steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self) -> None:
        self._seen, self._left = np.zeros((84, 84, 4), np.uint8), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 1000
        return self._seen, {}

    def step(self, action):
        self._left -= 1
        return self._seen, 0.0, not self._left, False, {}


def blank() -> gymnasium.Env:
    """Observations as of Atari games, at no cost."""
    return _Blank()
