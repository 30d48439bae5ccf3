"""The bridge to Gymnasium (Towers et al. 2024): https://gymnasium.farama.org."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from boonta.core import host
from boonta.core.names import ENVS, unknown
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, PyTree, TimeStep
from boonta.envs import drawing, parts, physics, trials, workers
from boonta.envs.door import Door, remarks
from boonta.envs.errors import Unfit, Unsuitable, failing


def names() -> tuple[str, ...]:
    """The names that `make` knows, those that the user registered included; ALE's games are a family apart."""
    return tuple(name for name in sorted(gymnasium.registry) if not name.startswith(("ALE/", "GymV")))


def make(name: str, /, hide: Sequence[int] = (), **settings: Any) -> host.Host:
    """A Gymnasium environment called `name`.

    Args:
        name: as Gymnasium knows it.
        hide: entries of a flat observation that are left out, such as CartPole's velocities 1 and 3.
        **settings: keyword arguments of `gymnasium.make`.

    Raises:
        ValueError: Gymnasium does not know the name or a setting, or has a space that no agent of ours can take.
    """
    if name.startswith("ALE/"):
        game = name.removeprefix("ALE/").rpartition("-v")[0] or name.removeprefix("ALE/")
        raise ValueError(f"gym:{name} is an Atari game, which has a family of its own: take ale:{game}")
    try:
        gymnasium.spec(name)
    except gymnasium.error.DeprecatedEnv as error:  # it says which version to take
        raise ValueError(f"gym:{name}: {error}") from error
    except gymnasium.error.Error as error:
        raise unknown("environment", name, names(), ENVS, "gym:") from error
    hidden = tuple(hide) if isinstance(hide, Sequence) else (hide,)
    made = of(f"gym:{name}", partial(_one, name, hidden, **settings), settings | ({"hide": hide} if hide else {}))
    if "render_mode" in settings:
        return made
    return made._replace(drawn=partial(make, name, hide=hide, render_mode="rgb_array", **settings))


def _one(name: str, hide: tuple[int, ...], /, **settings: Any) -> gymnasium.Env:
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
        ValueError: it has a space that no agent of ours can take.
        Failing: it cannot be made so, or not be reset and stepped; the message has its own error.
    """
    try:
        found = trials.tried(partial(_made_and_tried, name, factory))
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ImportError(f"{name} needs a package that is not installed: {error}") from error
    except Unsuitable as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # whatever the environment raises
        raise failing(name, settings, error) from error
    return host_of(name, factory, found)


def host_of(name: str, factory: Callable[[], gymnasium.Env], found: trials.Tried) -> host.Host:
    """Environments of a factory one of whose was tried."""
    observation, action = found.spaces
    spec = _spec(name, observation, action)
    return workers.spread(spec, partial(Serial, spec, observation, action, factory), found.remarks, repeatable=True)


def _made_and_tried(name: str, factory: Callable[[], gymnasium.Env]) -> trials.Tried:
    return trial(name, factory())


def trial(name: str, one: gymnasium.Env) -> trials.Tried:
    """Reset an environment, step it once and close it, also where it fails.

    Raises:
        Unsuitable, Unfit: it has spaces that no agent of ours can take, or gives what is not of its spaces.
    """
    return parts.closed_after(name, one, partial(_tried, name, one))


def _tried(name: str, one: gymnasium.Env) -> trials.Tried:
    spaces_ = one.observation_space, one.action_space
    spec = _spec(name, *spaces_)
    out = host.empty(spec, 1)
    door = Door(spec, out.observation, _said(spaces_[0]), _start(spaces_[0]))
    door.write(0, _pair(one.reset(seed=0)))
    inward = _inward(spaces_[1])
    action = host.random_actions(spec, np.random.default_rng(0), out)[0]
    answer = one.step(inward(action))
    if not isinstance(answer, tuple) or len(answer) != 5:
        count = len(answer) if isinstance(answer, tuple) else 1
        raise Unfit(
            f"step returned {count} values, where Gymnasium's is 5: observation, reward, terminated, truncated, info; "
            "an environment of the old API needs a wrapper, such as shimmy's"
        )
    observation, gained, terminated, truncated, _ = answer
    _ends(terminated, truncated)
    door.write(0, observation, bool(terminated))
    door.reward(gained)
    told = remarks(name, out.observation, _said(spaces_[0]), [gained])
    return trials.Tried(spaces_, (*parts.mask_remarks(name, spaces_[0]), *told))


def _pair(answer: Any) -> Any:
    """The observation that `reset` returned."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
        raise Unfit("reset must return an observation and a dictionary, as Gymnasium's does")
    return answer[0]


def _ends(terminated: Any, truncated: Any) -> None:
    if np.size(terminated) != 1 or np.size(truncated) != 1:
        raise Unfit(f"terminated and truncated must each be true or false, got {terminated!r} and {truncated!r}")


class Serial:
    """Gymnasium environments stepped one after the other, written into the arrays of a TimeStep.

    Args:
        spec: Spec.
        observation: their space.
        action: likewise.
        factory: makes one environment.
        seeds: of each environment's first reset; later ones go on with its random stream.
        out: TimeStep [E, ...] of NumPy arrays that is written into.
    """

    def __init__(
        self,
        spec: Spec,
        observation: spaces.Space,
        action: spaces.Space,
        factory: Callable[[], gymnasium.Env],
        seeds: Sequence[int],
        out: TimeStep,
    ) -> None:
        self.spec, self.seeds, self.out = spec, seeds, out
        self.inward = _inward(action)
        self.environments = parts.made(spec.name, [factory] * len(seeds))
        self.doors = [Door(spec, out.observation, _said(observation), _start(observation)) for _ in seeds]

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
            observation, gained, terminated, truncated, _ = environment.step(self.inward(action[i]))
            self.doors[i].write(i, observation, terminated)
            out.action[i] = action[i]
            out.reward[i] = self.doors[i].reward(gained)  # type: ignore[index]
            out.discount[i] = 0.0 if terminated else 1.0  # type: ignore[index]
            out.step_type[i] = LAST if terminated or truncated else MID  # type: ignore[index]
        return out

    def frame(self) -> np.ndarray:
        if self.environments[0].render_mode != "rgb_array":
            raise ValueError(f"{self.spec.name} cannot be drawn: its render_mode is not 'rgb_array'")
        try:
            return drawing.frame(self.spec.name, self.environments[0].render())
        except gymnasium.error.Error as error:  # such as a package that is not installed
            raise ValueError(f"{self.spec.name} cannot be drawn: {error}") from error
        except Exception as error:  # MuJoCo's own, which is known only where MuJoCo is
            if type(error).__name__ != "FatalError":
                raise
            raise ValueError(f"{self.spec.name} cannot be drawn: {error} (MUJOCO_GL=egl needs no display)") from error

    def close(self) -> None:
        parts.close_all(self.spec.name, self.environments)

    def _begin(self, i: int, seed: int | None = None) -> None:
        observation, _ = self.environments[i].reset(seed=seed)
        out = self.out
        self.doors[i].write(i, observation)
        out.action[i] = 0
        out.reward[i], out.discount[i], out.step_type[i] = 0.0, 1.0, FIRST  # type: ignore[index]


def _spec(name: str, observation: spaces.Space, action: spaces.Space) -> Spec:
    """
    Raises:
        Unsuitable: no agent of ours can take such spaces.
    """
    inner = _action(name, action)
    return Spec(name, parts.with_mask(name, _observation(name, observation), getattr(inner, "n", 0)), inner)


def _observation(name: str, space: spaces.Space, path: str = "observation") -> PyTree:
    if isinstance(space, spaces.Dict):
        parts.same_kind(name, path, space.spaces)
        return {key: _observation(name, part, f"{path}/{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_observation(name, part, f"{path}/{i}") for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        if space.dtype != np.uint8:
            return Shape(space.shape, space.dtype if space.dtype == np.bool_ else np.dtype(np.float32))
        return Shape(space.shape, np.uint8, parts.bounds(space.low, space.high))
    if isinstance(space, spaces.MultiBinary):
        return Shape(space.shape, np.bool_)
    if isinstance(space, spaces.Discrete):
        return Shape((), np.int32, categories=int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return Shape(space.shape, np.int32, categories=parts.entries(space.nvec))
    raise Unsuitable(
        f"{name} has the {path} {space!r}; allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of "
        "those; a wrapper such as gymnasium.wrappers.TransformObservation can leave it out or encode it"
    )


def _said(space: spaces.Space) -> PyTree:
    """The spaces at the leaves, as a tree of the observation's structure."""
    if isinstance(space, spaces.Dict):
        return {key: _said(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_said, space.spaces))
    return space


def _start(space: spaces.Space) -> PyTree:
    """What the environment calls the first category, at each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: _start(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_start, space.spaces))
    return getattr(space, "start", 0)


def _action(name: str, space: spaces.Space) -> Discrete | Continuous:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.Box):
        parts.some_numbers(name, space.shape)
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        return Continuous(tuple(space.shape), low, high)
    raise Unsuitable(
        f"{name} has actions {space!r}, which are not supported; allowed: Discrete, and Box; a wrapper such as "
        "gymnasium.wrappers.TransformAction can make them one of those"
    )


def _inward(space: spaces.Space) -> Callable[[np.ndarray], Any]:
    """From our actions to the space's own."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: int(action) + start
    assert isinstance(space, spaces.Box)  # `_action` has let no other in
    return parts.clipped(space.low, space.high, space.dtype)
