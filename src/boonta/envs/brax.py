"""The bridge to Brax (Freeman et al. 2021), whose environments compile: https://github.com/google/brax."""

import inspect
import sys
from contextlib import redirect_stdout
from typing import Any

import jax

from boonta.core.environment import Environment
from boonta.core.names import ENVS, unknown
from boonta.envs import states
from boonta.envs.errors import not_made

try:
    with redirect_stdout(sys.stderr):  # where MuJoCo's part of it prints that it has no Warp, which it need not have
        from brax import envs
except ImportError as error:
    raise ImportError(f"the family 'brax' needs brax ({error}): pip install 'boonta[brax]'") from error

NOT_PLAYED = ("fast",)  # Brax' own stub for tests


def names() -> tuple[str, ...]:
    """The names that `make` knows, those the user registered with Brax included."""
    return tuple(name for name in envs._envs if name not in NOT_PLAYED)  # it lists them nowhere else


def make(name: str, episode_length: int = 1000, **settings: Any) -> Environment:
    """A Brax environment; see `states.of`.

    Args:
        name: as in Brax, `halfcheetah`.
        episode_length: steps after which an episode is cut.
        **settings: arguments of its constructor, such as `backend` (`generalized`, `mjx`, `spring`, `positional`).

    Raises:
        ValueError: an unknown name or setting, or a value that the environment refuses.
    """
    if name not in names():
        raise unknown("environment", name, names(), ENVS, "brax:")
    known = {*_arguments(envs._envs[name]), *_arguments(envs.PipelineEnv)} - {"sys"}
    for key in settings:
        if key not in known:
            raise unknown(f"setting of brax:{name}", key, known | {"episode_length"})
    with jax.ensure_compile_time_eval():  # constructors make arrays, which a caller's trace must not catch
        try:
            game: Any = envs.get_environment(name, **settings)
        except Exception as error:  # whatever the environment raises
            raise not_made(f"brax:{name}", settings, error) from error
    return states.of(f"brax:{name}", game, episode_length, lambda state: game.render([state.pipeline_state])[0])


def _arguments(kind: type) -> set[str]:
    parameters = inspect.signature(kind).parameters.values()
    return {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
