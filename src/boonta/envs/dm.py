"""The bridge to dm_env (Muldal et al. 2019), and to the control suite that is written in it (Tassa et al. 2018)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from boonta.core import host
from boonta.core.names import ENVS, unknown
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, PyTree, TimeStep
from boonta.envs import drawing, parts, physics, trials, workers
from boonta.envs.door import Door, remarks
from boonta.envs.errors import Unsuitable, failing

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
        raise unknown("environment", name, names(), ENVS, "dm:")
    return of(f"dm:{name}", partial(_one, name, **settings), settings)


def _suite() -> Any:
    try:
        with physics.undrawn():
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
        ValueError: it has a spec that no agent of ours can take.
        Failing: it cannot be made so, or not be reset and stepped; the message has its own error.
    """
    try:
        found = trials.tried(partial(_made_and_tried, name, factory))
    except Unsuitable as error:
        raise ValueError(str(error)) from error
    except ImportError:
        raise
    except Exception as error:  # whatever the environment raises
        raise failing(name, settings, error) from error
    return host_of(name, factory, found)


def host_of(name: str, factory: Callable[..., dm_env.Environment], found: trials.Tried) -> host.Host:
    """Environments of a factory one of whose was tried."""
    observation, action = found.spaces
    spec = _spec(name, observation, action)
    return workers.spread(spec, partial(Serial, spec, observation, action, _seeded(factory)), found.remarks)


def _made_and_tried(name: str, factory: Callable[..., dm_env.Environment]) -> trials.Tried:
    return trial(name, _seeded(factory)(seed=0))


def trial(name: str, one: dm_env.Environment) -> trials.Tried:
    """Reset an environment, step it once and close it, also where it fails.

    Raises:
        Unsuitable, Unfit: it has specs that no agent of ours can take, or gives what is not of its specs.
    """
    return parts.closed_after(name, one, partial(_tried, name, one))


def _tried(name: str, one: dm_env.Environment) -> trials.Tried:
    said = one.observation_spec(), one.action_spec()
    spec = _spec(name, *said)
    out = host.empty(spec, 1)
    door = Door(spec, out.observation, _said(said[0]))
    door.write(0, _plain(one.reset().observation))
    action = host.random_actions(spec, np.random.default_rng(0), out)[0]
    timestep = one.step(_inward(said[1])(action))
    door.write(0, _plain(timestep.observation), timestep.discount == 0.0)
    gained = 0.0 if timestep.first() else timestep.reward
    door.reward(gained)
    told = remarks(name, out.observation, _said(said[0]), [gained])
    return trials.Tried(said, (*parts.mask_remarks(name, said[0]), *told))


def _seeded(factory: Callable[..., dm_env.Environment]) -> Callable[..., dm_env.Environment]:
    """The factory as one of `seed`."""
    return factory if "seed" in inspect.signature(factory).parameters else partial(_unseeded, factory)


def _unseeded(factory: Callable[[], dm_env.Environment], seed: int) -> dm_env.Environment:
    del seed
    return factory()


class Serial:
    """dm_env environments stepped one after the other, written into the arrays of a TimeStep.

    Args:
        spec: Spec.
        observation: what they say of it.
        action: likewise.
        factory: makes one environment from `seed`.
        seeds: one for each environment.
        out: TimeStep [E, ...] of NumPy arrays that is written into.
    """

    def __init__(
        self,
        spec: Spec,
        observation: Any,
        action: Any,
        factory: Callable[..., dm_env.Environment],
        seeds: Sequence[int],
        out: TimeStep,
    ) -> None:
        self.spec, self.out, self.inward = spec, out, _inward(action)
        self.environments = parts.made(spec.name, [partial(factory, seed=seed) for seed in seeds])
        self.doors = [Door(spec, out.observation, _said(observation)) for _ in seeds]

    def reset(self) -> TimeStep:
        for i, environment in enumerate(self.environments):
            self._write(i, environment.reset(), 0)
        return self.out

    def step(self, action: np.ndarray) -> TimeStep:
        for i, environment in enumerate(self.environments):
            if self.out.step_type[i] == LAST:
                self._write(i, environment.reset(), 0)
            else:
                self._write(i, environment.step(self.inward(action[i])), action[i])
        return self.out

    def frame(self) -> np.ndarray:
        physics = getattr(self.environments[0], "physics", None)
        if physics is None:
            raise ValueError(f"{self.spec.name} cannot be drawn: it has no physics")
        try:
            return drawing.frame(self.spec.name, physics.render(*PIXELS, camera_id=0))
        except Exception as error:  # MuJoCo's own, which is known only where MuJoCo is, or a library's
            if not isinstance(error, RuntimeError | ImportError) and type(error).__name__ != "FatalError":
                raise
            raise ValueError(f"{self.spec.name} cannot be drawn: {error} (MUJOCO_GL=egl needs no display)") from error

    def close(self) -> None:
        parts.close_all(self.spec.name, self.environments)

    def _write(self, i: int, timestep: dm_env.TimeStep, action: Any) -> None:
        out = self.out
        over = timestep.last() and timestep.discount == 0.0
        self.doors[i].write(i, _plain(timestep.observation), over)
        out.action[i] = action
        begins = timestep.first()  # then reward and discount are None
        out.reward[i] = 0.0 if begins else self.doors[i].reward(timestep.reward)  # type: ignore[index]
        out.discount[i] = 1.0 if begins else timestep.discount  # type: ignore[index]
        out.step_type[i] = FIRST if begins else LAST if timestep.last() else MID  # type: ignore[index]


def _plain(observation: PyTree) -> PyTree:
    """Mappings of all kinds as dictionaries."""
    if isinstance(observation, Mapping):
        return {key: _plain(part) for key, part in observation.items()}
    return observation


_said = _plain  # the specs at the leaves, as a tree of the observation's structure


def _spec(name: str, observation: Any, action: Any) -> Spec:
    """
    Raises:
        Unsuitable: no agent of ours can take such specs.
    """
    inner = _action(name, action)
    seen = parts.with_mask(name, _observation(name, observation), getattr(inner, "n", 0))
    return Spec(name, seen, inner)


def _observation(name: str, spec: Any, path: str = "observation") -> PyTree:
    if isinstance(spec, Mapping):
        parts.same_kind(name, path, spec)
        return {key: _observation(name, part, f"{path}/{key}") for key, part in spec.items()}
    if isinstance(spec, specs.DiscreteArray):
        return Shape((), np.int32, categories=int(spec.num_values))
    if isinstance(spec, specs.BoundedArray) and spec.dtype == np.uint8:
        low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
        return Shape(spec.shape, np.uint8, parts.bounds(low, high))
    if isinstance(spec, specs.Array) and not isinstance(spec, specs.StringArray):
        return Shape(spec.shape, spec.dtype if spec.dtype in (np.uint8, np.bool_) else np.float32)
    raise Unsuitable(
        f"{name} has the {path} {spec!r}; allowed: arrays of numbers, and mappings of those; a wrapper can leave it "
        "out or encode it"
    )


def _action(name: str, spec: Any) -> Discrete | Continuous:
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values))
    if isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.number):
        parts.some_numbers(name, spec.shape)
        low, high = (np.broadcast_to(x, spec.shape).astype(np.float32) for x in (spec.minimum, spec.maximum))
        return Continuous(tuple(spec.shape), low, high)
    raise Unsuitable(
        f"{name} has actions {spec!r}, which are not supported; allowed: DiscreteArray, and BoundedArray of numbers"
    )


def _inward(spec: Any) -> Callable[[np.ndarray], Any]:
    """From our actions to the spec's own."""
    if isinstance(spec, specs.DiscreteArray):
        return lambda action: spec.dtype.type(action)
    low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
    return parts.clipped(low, high, spec.dtype)
