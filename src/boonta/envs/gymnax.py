"""The bridge to gymnax (Lange, 2022): https://github.com/RobertTLange/gymnax."""

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.names import ENVS, unknown
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.trees import strong
from boonta.core.types import Action, Key, PyTree, TimeStep
from boonta.envs import drawing


@contextmanager
def _deferred(name: str) -> Iterator[None]:
    """Modules that are imported meanwhile get one in place of this, which is imported when something of it is used."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module = ModuleType(name)
    module.__getattr__ = lambda attribute: getattr(importlib.import_module(name), attribute)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del sys.modules[name]


try:
    with _deferred("seaborn"):  # only drawings of gymnax need it, and it takes a second or two
        import gymnax
    from gymnax import registration
    from gymnax.environments import spaces
except ImportError as error:
    raise ImportError(f"the family 'gymnax' needs gymnax ({error}): pip install 'gymnax>=1.0'") from error


def names() -> tuple[str, ...]:
    """The names that `make` knows, those the user registered with gymnax included."""
    return tuple(registration.registered_envs)


def make(name: str, **settings: Any) -> Environment:
    """A gymnax environment, without gymnax's own auto-reset.

    Observations have the shapes and dtypes that the environment emits (its declared spaces do not always say so);
    the images of the MinAtar games, which hold only zeros and ones, come as bool [10, 10, C]. A real action is
    clipped to the bounds on its way in; the time step reports it as it was given.

    Args:
        name: as in gymnax, `CartPole-v1`.
        **settings: fields of the environment's EnvParams (`max_steps_in_episode=200`) or arguments of its
            constructor (`size=20` of `DeepSea-bsuite`).

    Raises:
        ValueError: an unknown name or setting, a value that is not of the setting's kind, or actions that are
            neither one integer nor one array of reals.
    """
    if name not in registration.registered_envs:
        raise unknown("environment", name, names(), ENVS, "gymnax:")
    with jax.ensure_compile_time_eval():  # constructors make arrays, which a caller's trace must not catch
        try:
            game, params = _configure(name, settings)
        except OSError as error:
            raise ValueError(f"gymnax:{name} downloads its data, which failed: {error}") from error
    action_space = _action_space(name, game.action_space(params))
    binary = name.endswith("-MinAtar")

    def observed(observation: PyTree) -> PyTree:
        return observation.astype(bool) if binary else strong(observation)

    def reset(key: Key) -> tuple[PyTree, TimeStep]:
        observation, state = game.reset_env(key, params)
        return strong(state), start(observed(observation), action_space)

    def step(state: PyTree, action: Action, key: Key) -> tuple[PyTree, TimeStep]:
        inner = action
        if isinstance(action_space, Continuous):
            inner = jnp.clip(action, action_space.low, action_space.high)
        observation, state, reward, terminated, _ = game.step_env(key, state, inner, params)
        truncated = game.is_truncated(state, params)
        return strong(state), proceed(observed(observation), action, reward, terminated, truncated)

    observation = jax.eval_shape(lambda key: reset(key)[1].observation, jax.random.key(0))
    space = game.observation_space(params)
    if isinstance(space, spaces.Discrete) and observation.shape == ():
        observation = Shape((), observation.dtype, categories=int(space.n))
    return Environment(Spec(f"gymnax:{name}", observation, action_space), reset, step, _renderer(name, game, params))


def _configure(name: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    """The gymnax environment and its parameters; arguments of the constructor go there, the rest are EnvParams."""
    game, params = gymnax.make(name)
    arguments = set(inspect.signature(type(game)).parameters)
    if arguments & settings.keys():
        game, params = gymnax.make(name, **{key: settings[key] for key in settings if key in arguments})
    fields = {field.name for field in dataclasses.fields(params)}
    overrides = {key: settings[key] for key in settings if key not in arguments}
    for key, value in overrides.items():
        if key not in fields:
            raise unknown(f"setting of gymnax:{name}", key, fields | arguments)
        default = getattr(params, key)
        if np.ndim(default) == 0 and (np.ndim(value) or not isinstance(value, bool | int | float | np.generic)):
            raise ValueError(f"setting {key} of gymnax:{name} must be a number (default {default}), got {value!r}")
    return game, dataclasses.replace(params, **overrides)


def _action_space(name: str, space: Any) -> Discrete | Continuous:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
        return Continuous(shape, low, high)
    raise ValueError(f"gymnax:{name} has actions {space!r}; allowed: Discrete and Box")


# Drawing.


def _renderer(name: str, game: Any, params: Any) -> Callable[[PyTree], np.ndarray] | None:
    if name.endswith("-MinAtar"):
        return lambda state: drawing.channels(np.asarray(game.get_obs(state, params)) > 0)
    return partial(_DRAWINGS[name], params=params) if name in _DRAWINGS else None


def _draw_cartpole(state: Any, params: Any) -> np.ndarray:
    reach, x, theta = params.x_threshold, float(state.x), float(state.theta)
    pole = 2 * params.length
    canvas = drawing.canvas(320, 480, left=-1.15 * reach, right=1.15 * reach, bottom=-0.8)
    canvas = drawing.stroke(canvas, (-9 * reach, 0), (9 * reach, 0), 0.03, drawing.GREY)
    for end in (-reach, reach):
        canvas = drawing.stroke(canvas, (end, -0.12), (end, 0.12), 0.03, drawing.RED)
    canvas = drawing.box(canvas, (x, 0), (0.5, 0.3), drawing.INK)
    tip = (x + pole * np.sin(theta), 0.1 + pole * np.cos(theta))
    canvas = drawing.stroke(canvas, (x, 0.1), tip, 0.1, drawing.ORANGE)
    return drawing.finish(drawing.disc(canvas, (x, 0.1), 0.05, drawing.BLUE))


def _draw_pendulum(state: Any, params: Any) -> np.ndarray:
    theta, size = float(state.theta), 1.3 * params.l
    canvas = drawing.canvas(320, 320, left=-size, right=size, bottom=-size)
    tip = (-params.l * np.sin(theta), params.l * np.cos(theta))
    canvas = drawing.stroke(canvas, (0, 0), tip, 0.2 * params.l, drawing.RED)
    canvas = drawing.disc(canvas, (0, 0), 0.05 * params.l, drawing.INK)
    torque = float(np.clip(state.last_u / params.max_torque, -1, 1)) * 0.9 * size
    base = -0.95 * size
    return drawing.finish(drawing.stroke(canvas, (0, base), (-torque, base), 0.06 * params.l, drawing.BLUE))


def _draw_acrobot(state: Any, params: Any) -> np.ndarray:
    first, second = params.link_length_1, params.link_length_2
    size = 1.1 * (first + second)
    angle = float(state.joint_angle1)
    elbow = np.array([np.sin(angle), -np.cos(angle)]) * first
    angle += float(state.joint_angle2)
    hand = elbow + np.array([np.sin(angle), -np.cos(angle)]) * second
    canvas = drawing.canvas(320, 320, left=-size, right=size, bottom=-size)
    canvas = drawing.stroke(canvas, (-9 * size, 1), (9 * size, 1), 0.03, drawing.GREY)
    for start_point, end_point in (((0, 0), elbow), (elbow, hand)):
        canvas = drawing.stroke(canvas, start_point, end_point, 0.2, drawing.SKY)
        canvas = drawing.disc(canvas, start_point, 0.1, drawing.ORANGE)
    return drawing.finish(canvas)


def _draw_mountain_car(state: Any, params: Any) -> np.ndarray:
    def height(x):
        return 0.45 * np.sin(3 * x) + 0.55

    x, goal = float(state.position), params.goal_position
    canvas = drawing.canvas(320, 480, left=params.min_position, right=params.max_position, bottom=0.0)
    canvas = drawing.below(canvas, height, lambda x: 1.35 * np.cos(3 * x), drawing.GREY)
    canvas = drawing.stroke(canvas, (goal, height(goal)), (goal, height(goal) + 0.18), 0.012, drawing.INK)
    canvas = drawing.box(canvas, (goal + 0.04, height(goal) + 0.15), (0.08, 0.06), drawing.GREEN)
    slope = np.arctan(1.35 * np.cos(3 * x))
    normal = np.array([-np.sin(slope), np.cos(slope)])
    along = np.array([np.cos(slope), np.sin(slope)])
    ground = np.array([x, height(x)])
    canvas = drawing.box(canvas, ground + 0.05 * normal, (0.12, 0.05), drawing.BLUE, slope)
    for wheel in (-0.035, 0.035):
        canvas = drawing.disc(canvas, ground + 0.02 * normal + wheel * along, 0.02, drawing.INK)
    return drawing.finish(canvas)


_DRAWINGS: dict[str, Callable[..., np.ndarray]] = {
    "CartPole-v1": _draw_cartpole,
    "Pendulum-v1": _draw_pendulum,
    "Acrobot-v1": _draw_acrobot,
    "MountainCar-v0": _draw_mountain_car,
    "MountainCarContinuous-v0": _draw_mountain_car,
}
