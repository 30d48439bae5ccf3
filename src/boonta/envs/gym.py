"""The bridge to Gymnasium (Towers et al. 2024): https://gymnasium.farama.org."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from boonta.core import host
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, PyTree, TimeStep
from boonta.envs import parts, physics, workers
from boonta.envs.errors import not_made, unknown


def names() -> tuple[str, ...]:
    """The names that `make` knows, those that the user registered included; ALE's games are a family apart."""
    return tuple(name for name in sorted(gymnasium.registry) if not name.startswith(("ALE/", "GymV")))


def make(name: str, hide: Sequence[int] = (), **settings: Any) -> host.Host:
    """A Gymnasium environment called `name`.

    Args:
        name: as Gymnasium knows it.
        hide: entries of a flat observation that are left out, such as CartPole's velocities 1 and 3.
        **settings: keyword arguments of `gymnasium.make`.

    Raises:
        ValueError: Gymnasium does not know the name or a setting, or has a space that no agent of ours can take.
    """
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise unknown("environment of the family 'gym'", name, names()) from error
    hidden = tuple(hide) if isinstance(hide, Sequence) else (hide,)
    made = of(f"gym:{name}", partial(_one, name, hidden, **settings), settings | ({"hide": hide} if hide else {}))
    if "render_mode" in settings:
        return made
    return made._replace(drawn=partial(make, name, hide, render_mode="rgb_array", **settings))


def _one(name: str, hide: tuple[int, ...], **settings: Any) -> gymnasium.Env:
    if "mujoco" in str(gymnasium.spec(name).entry_point):
        physics.quieten()
    # Gymnasium's checker looks at every step; the spaces are looked at here, and a run checks what it learns from.
    environment = gymnasium.make(name, **{"disable_env_checker": True} | settings)
    if not hide:
        return environment
    space = environment.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not all(0 <= i < space.shape[0] for i in hide):
        raise ValueError(f"env.hide must be places in a flat observation, got {list(hide)} for {space!r}")
    kept = np.delete(np.arange(space.shape[0]), hide)
    seen = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype)  # type: ignore[arg-type]
    return gymnasium.wrappers.TransformObservation(environment, lambda x: x[kept], seen)


def of(name: str, factory: Callable[[], gymnasium.Env], settings: Mapping[str, Any] | None = None) -> host.Host:
    """Environments of a factory that makes one Gymnasium environment. The factory travels to processes by pickle.

    Raises:
        ValueError: it cannot be made so, or has a space that no agent of ours can take.
    """
    try:
        one = workers.within(workers.TRIAL, factory)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"{name} needs a package that is not installed: {error}") from error
    except ImportError:
        raise
    except Exception as error:  # whatever the environment raises
        raise not_made(name, settings, error) from error
    spec = Spec(name, _observation(name, one.observation_space), _action(name, one.action_space))
    one.close()
    return workers.spread(spec, partial(Serial, spec, factory))


class Serial:
    """Gymnasium environments stepped one after the other, written into the arrays of a TimeStep.

    Args:
        spec: Spec.
        factory: makes one environment.
        seeds: of each environment's first reset; later ones go on with its random stream.
        out: TimeStep [E, ...] of NumPy arrays that is written into.
    """

    def __init__(self, spec: Spec, factory: Callable[[], gymnasium.Env], seeds: Sequence[int], out: TimeStep) -> None:
        self.spec, self.factory, self.seeds, self.out = spec, factory, seeds, out
        self.environments = [factory() for _ in seeds]

    def reset(self) -> TimeStep:
        for i, seed in enumerate(self.seeds):
            self._begin(i, seed)
        return self.out

    def step(self, action: np.ndarray) -> TimeStep:
        out = self.out
        for i, environment in enumerate(self.environments):
            if out.step_type[i] == LAST:
                self._begin(i)
                continue
            observation, reward, terminated, truncated, _ = environment.step(parts.inward(self.spec, action[i]))
            host.write(out.observation, i, observation)
            out.action[i] = action[i]
            out.reward[i] = reward  # type: ignore[index]
            out.discount[i] = 0.0 if terminated else 1.0  # type: ignore[index]
            out.step_type[i] = LAST if terminated or truncated else MID  # type: ignore[index]
        return out

    def frame(self) -> np.ndarray:
        if self.environments[0].render_mode != "rgb_array":
            raise ValueError(f"{self.spec.name} cannot be drawn: its render_mode is not 'rgb_array'")
        try:
            return np.asarray(self.environments[0].render(), np.uint8)
        except gymnasium.error.Error as error:  # such as a package that is not installed
            raise ValueError(f"{self.spec.name} cannot be drawn: {error}") from error
        except Exception as error:  # MuJoCo's own, which is known only where MuJoCo is
            if type(error).__name__ != "FatalError":
                raise
            raise ValueError(f"{self.spec.name} cannot be drawn: {error} (MUJOCO_GL=egl needs no display)") from error

    def close(self) -> None:
        parts.close_all(self.environments)

    def _begin(self, i: int, seed: int | None = None) -> None:
        observation, _ = self.environments[i].reset(seed=seed)
        out = self.out
        host.write(out.observation, i, observation)
        out.action[i] = 0
        out.reward[i], out.discount[i], out.step_type[i] = 0.0, 1.0, FIRST  # type: ignore[index]


def _observation(name: str, space: spaces.Space) -> PyTree:
    if isinstance(space, spaces.Dict):
        return {key: _observation(name, part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_observation(name, part) for part in space.spaces)
    if isinstance(space, spaces.Box):
        kept = space.dtype in (np.uint8, np.bool_)
        return Shape(space.shape, space.dtype if kept else np.dtype(np.float32))
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return Shape(space.shape or (), np.dtype(np.float32))
    raise ValueError(
        f"{name} has observations {space!r}; "
        "allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of those"
    )


def _action(name: str, space: spaces.Space) -> Discrete | Continuous:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        return Continuous(tuple(space.shape), low, high)
    raise ValueError(f"{name} has actions {space!r}; allowed: Discrete from 0, and Box")
