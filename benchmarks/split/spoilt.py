"""Pendulum that gives one observation that is not finite, once in a run."""

from pathlib import Path

import gymnasium
import numpy as np

AFTER = 3000  # steps


class Spoilt(gymnasium.Wrapper):
    """See above; the file `mark` says that it has happened."""

    def __init__(self, env: gymnasium.Env, mark: Path) -> None:
        super().__init__(env)
        self.mark, self.steps = mark, 0

    def step(self, action: np.ndarray):
        """As Pendulum's, but for that once."""
        observation, *rest = super().step(action)
        self.steps += 1
        if self.steps == AFTER and not self.mark.exists():
            self.mark.touch()
            observation = np.full_like(observation, np.nan)
        return observation, *rest


def make(mark: str) -> gymnasium.Env:
    """The environment."""
    return Spoilt(gymnasium.make("Pendulum-v1"), Path(mark))
