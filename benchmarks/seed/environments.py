"""Environments for the drills: Gymnasium's CartPole with something wrong with it."""

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
