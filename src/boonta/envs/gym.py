"""The bridge to Gymnasium (Towers et al. 2024): https://gymnasium.farama.org."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from boonta.core import host
from boonta.core.names import ENVS, unknown
from boonta.core.spec import Spec
from boonta.core.types import FIRST, LAST, MID, TimeStep
from boonta.envs import drawing, gym_spaces, gym_vector, parts, physics, trials, workers
from boonta.envs.door import Door, remarks
from boonta.envs.errors import Unfit, Unsuitable, failing

# What brings the package that Gymnasium misses, by a word of its message.
EXTRAS = {"box2d": "box2d", "pygame": "box2d", "mujoco": "mujoco"}


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
    told = settings | ({"hide": hide} if hide else {})
    plain = not told and gym_vector.is_registered(name)
    made = of(f"gym:{name}", partial(_one, name, hidden, **settings), told, name if plain else None)
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


def of(
    name: str,
    factory: Callable[[], gymnasium.Env],
    settings: Mapping[str, Any] | None = None,
    vectorized: str | None = None,
) -> host.Host:
    """Environments of a factory that makes one Gymnasium environment. The factory travels to processes by pickle.

    `vectorized` is the name under which Gymnasium has a vectorized form of them, where it has.

    Raises:
        ValueError: it has a space that no agent of ours can take.
        Failing: it cannot be made so, or not be reset and stepped; the message has its own error.
    """
    try:
        found = trials.tried(partial(_made_and_tried, name, factory))
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        extra = next((extra for word, extra in EXTRAS.items() if word in str(error).lower()), "")
        told = f"pip install 'boonta[{extra}]', or in a clone: pip install -e '.[{extra}]'" if extra else str(error)
        raise ImportError(f"{name} needs a package that is not installed: {told}") from error
    except Unsuitable as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # whatever the environment raises
        raise failing(name, settings, error) from error
    return host_of(name, factory, found, vectorized)


def host_of(
    name: str, factory: Callable[[], gymnasium.Env], found: trials.Tried, vectorized: str | None = None
) -> host.Host:
    """Environments of a factory one of whose was tried."""
    observation, action = found.spaces
    spec = gym_spaces.spec_of(name, observation, action)
    told, whole = found.remarks, None
    if vectorized:
        whole = partial(gym_vector.Vectorized, spec, vectorized, observation, action)
        if reason := trials.tried(partial(gym_vector.why_not, spec, vectorized, observation, action)):
            told, whole = (*told, f"{name}: its vectorized form is not used: {reason}"), None
    one = partial(Serial, spec, observation, action, factory)
    return workers.spread(spec, one, told, repeatable=True, vectorized=whole)


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
    spec = gym_spaces.spec_of(name, *spaces_)
    out = host.empty(spec, 1)
    door = Door(spec, out.observation, gym_spaces.said(spaces_[0]), gym_spaces.starts(spaces_[0]))
    door.write(0, _pair(one.reset(seed=0)))
    inward = gym_spaces.inward(spaces_[1])
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
    told = remarks(name, out.observation, gym_spaces.said(spaces_[0]), [gained])
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
        self.inward = gym_spaces.inward(action)
        self.environments = parts.made(spec.name, [factory] * len(seeds))
        self.doors = [
            Door(spec, out.observation, gym_spaces.said(observation), gym_spaces.starts(observation)) for _ in seeds
        ]

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
