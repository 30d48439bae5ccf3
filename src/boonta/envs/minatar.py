"""MinAtar's own games (Young and Tian 2019), which are under the GPL: an optional package, of which nothing is here."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np

from boonta.core import host
from boonta.core.names import ENVS, unknown
from boonta.envs import drawing, gym
from boonta.envs.errors import require

try:
    from minatar.gym import BaseEnv
except ImportError as error:
    raise ImportError(
        f"the family 'minatar' needs MinAtar ({error}), which is under the GPL: pip install minatar"
    ) from error


def names() -> tuple[str, ...]:
    """The games."""
    return ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def make(
    name: str, sticky: float = 0.1, ramping: bool = True, full_actions: bool = True, limit: int = 5000
) -> host.Host:
    """One of MinAtar's games; observations are bool [10, 10, C].

    Args:
        name: the game.
        sticky: probability that the action before is taken instead.
        ramping: whether the game becomes harder as it goes on.
        full_actions: all six actions, or only those that the game knows.
        limit: steps after which an episode is cut; 0 for never.

    Raises:
        ValueError: an unknown game, or a probability that is none.
    """
    if name not in names():
        raise unknown("environment", name, names(), ENVS, "minatar:")
    require(0.0 <= sticky <= 1.0, "env.sticky", sticky, "from 0 to 1")
    require(limit >= 0, "env.limit", limit, "at least 0")
    return gym.of(f"minatar:{name}", partial(_one, name, sticky, ramping, full_actions, limit))


def _one(name: str, sticky: float, ramping: bool, full_actions: bool, limit: int) -> gymnasium.Env:
    game = _Game(name, sticky_action_prob=sticky, difficulty_ramping=ramping, use_minimal_action_set=not full_actions)
    return gymnasium.wrappers.TimeLimit(game, limit) if limit else game


class _Game(BaseEnv):
    """Drawn as our other boards are."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, render_mode="rgb_array", **settings)

    def render(self) -> np.ndarray:
        return drawing.channels(self.game.state())
