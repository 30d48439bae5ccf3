"""The bridge to dm_env (Muldal et al. 2019), and to the control suite that is written in it (Tassa et al. 2018)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from boonta.core import host
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, PyTree, TimeStep
from boonta.envs import parts, physics, workers
from boonta.envs.errors import not_made, unknown

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError(f"the family 'dm' needs dm-control ({error}): pip install 'boonta[control]'") from error

PIXELS = (240, 320)  # of a drawn frame


def names() -> tuple[str, ...]:
    """The tasks of the control suite: `cartpole-swingup`."""
    return tuple(sorted(f"{domain}-{task}" for domain, task in _suite().ALL_TASKS))


def make(name: str, **settings: Any) -> host.Host:
    """A task of the control suite.

    Args:
        name: `domain-task`.
        **settings: keyword arguments of the task, such as `time_limit` in seconds.

    Raises:
        ValueError: the suite does not know the task or a setting.
    """
    if name not in names():
        raise unknown("environment of the family 'dm'", name, names())
    return of(f"dm:{name}", partial(_one, name, **settings), settings)


def _suite() -> Any:
    try:
        from dm_control import suite
    except ImportError as error:
        raise ImportError(f"the family 'dm' needs dm-control ({error}): pip install 'boonta[control]'") from error
    return suite


def _one(name: str, seed: int, **settings: Any) -> dm_env.Environment:
    physics.quieten()
    domain, _, task = name.rpartition("-")
    return _suite().load(domain, task, task_kwargs=settings | {"random": seed})


def of(name: str, factory: Callable[..., dm_env.Environment], settings: Mapping[str, Any] | None = None) -> host.Host:
    """Environments of a factory that makes one dm_env environment. The factory travels to processes by pickle.

    Args:
        name: for messages.
        factory: takes `seed` where it has a parameter of that name; else all its environments are as random as it
            makes them.
        settings: for messages.

    Raises:
        ValueError: it cannot be made so, or has a spec that no agent of ours can take.
    """
    if "seed" not in inspect.signature(factory).parameters:
        factory = partial(_unseeded, factory)
    try:
        one = workers.within(workers.TRIAL, partial(factory, seed=0))
    except ImportError:
        raise
    except Exception as error:  # whatever the environment raises
        raise not_made(name, settings, error) from error
    spec = Spec(name, _observation(name, one.observation_spec()), _action(name, one.action_spec()))
    one.close()
    return workers.spread(spec, partial(Serial, spec, factory))


def _unseeded(factory: Callable[[], dm_env.Environment], seed: int) -> dm_env.Environment:
    del seed
    return factory()


class Serial:
    """dm_env environments stepped one after the other, written into the arrays of a TimeStep.

    Args:
        spec: Spec.
        factory: makes one environment from `seed`.
        seeds: one for each environment.
        out: TimeStep [E, ...] of NumPy arrays that is written into.
    """

    def __init__(
        self, spec: Spec, factory: Callable[..., dm_env.Environment], seeds: Sequence[int], out: TimeStep
    ) -> None:
        self.spec, self.out = spec, out
        self.environments = [factory(seed=seed) for seed in seeds]

    def reset(self) -> TimeStep:
        for i, environment in enumerate(self.environments):
            self._write(i, environment.reset(), 0)
        return self.out

    def step(self, action: np.ndarray) -> TimeStep:
        for i, environment in enumerate(self.environments):
            if self.out.step_type[i] == LAST:
                self._write(i, environment.reset(), 0)
            else:
                self._write(i, environment.step(parts.inward(self.spec, action[i])), action[i])
        return self.out

    def frame(self) -> np.ndarray:
        physics = getattr(self.environments[0], "physics", None)
        if physics is None:
            raise ValueError(f"{self.spec.name} cannot be drawn: it has no physics")
        try:
            return np.asarray(physics.render(*PIXELS, camera_id=0), np.uint8)
        except Exception as error:  # MuJoCo's own, which is known only where MuJoCo is, or a library's
            if not isinstance(error, RuntimeError | ImportError) and type(error).__name__ != "FatalError":
                raise
            raise ValueError(f"{self.spec.name} cannot be drawn: {error} (MUJOCO_GL=egl needs no display)") from error

    def close(self) -> None:
        parts.close_all(self.environments)

    def _write(self, i: int, timestep: dm_env.TimeStep, action: Any) -> None:
        out = self.out
        host.write(out.observation, i, _plain(timestep.observation))
        out.action[i] = action
        begins = timestep.first()  # then reward and discount are None
        out.reward[i] = 0.0 if begins else timestep.reward  # type: ignore[index]
        out.discount[i] = 1.0 if begins else timestep.discount  # type: ignore[index]
        out.step_type[i] = FIRST if begins else LAST if timestep.last() else MID  # type: ignore[index]


def _plain(observation: PyTree) -> PyTree:
    """Mappings of all kinds as dictionaries."""
    if isinstance(observation, Mapping):
        return {key: _plain(part) for key, part in observation.items()}
    return observation


def _observation(name: str, spec: Any) -> PyTree:
    if isinstance(spec, Mapping):
        return {key: _observation(name, part) for key, part in spec.items()}
    if isinstance(spec, specs.Array) and not isinstance(spec, specs.StringArray):
        return Shape(spec.shape, spec.dtype if spec.dtype in (np.uint8, np.bool_) else np.float32)
    raise ValueError(f"{name} has observations {spec!r}; allowed: arrays of numbers, and mappings of those")


def _action(name: str, spec: Any) -> Discrete | Continuous:
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values))
    if isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.floating):
        low, high = (np.broadcast_to(x, spec.shape).astype(np.float32) for x in (spec.minimum, spec.maximum))
        return Continuous(tuple(spec.shape), low, high)
    raise ValueError(f"{name} has actions {spec!r}; allowed: DiscreteArray, and BoundedArray of floats")
