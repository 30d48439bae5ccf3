"""The bridge to MuJoCo Playground (Zakka et al. 2025): https://github.com/google-deepmind/mujoco_playground."""

import sys
from contextlib import redirect_stdout
from typing import Any

import jax

from boonta.core.environment import Environment
from boonta.core.names import ENVS, unknown
from boonta.envs import states
from boonta.envs.errors import not_made

try:
    from mujoco_playground import registry
except ImportError as error:
    raise ImportError(
        f"the family 'playground' needs playground ({error}): pip install 'boonta[playground]'"
    ) from error


def names() -> tuple[str, ...]:
    """The names that `make` knows. Robots are downloaded when one of them is first made; the control suite is not."""
    return tuple(registry.ALL_ENVS)


def make(name: str, impl: str = "jax", **settings: Any) -> Environment:
    """An environment of MuJoCo Playground; see `states.of`.

    Args:
        name: as there, `CheetahRun`.
        impl: what simulates: `jax` on every device, `warp` on NVIDIA's.
        **settings: entries of its configuration, such as `episode_length`.

    Raises:
        ValueError: an unknown name or setting, a value that is not of the setting's kind, or a robot that cannot be
            downloaded.
    """
    if name not in names():
        raise unknown("environment", name, names(), ENVS, "playground:")
    config: Any = registry.get_default_config(name)
    for key in settings:
        if key not in config:
            raise unknown(f"setting of playground:{name}", key, config)
    with jax.ensure_compile_time_eval():  # constructors make arrays, which a caller's trace must not catch
        try:
            config.update({**settings, "impl": impl})
            with redirect_stdout(sys.stderr):  # where it prints that it downloads
                game = registry.load(name, config)
        except Exception as error:  # whatever the environment raises, or git
            raise not_made(f"playground:{name}", settings, error) from error
    return states.of(f"playground:{name}", game, config.episode_length, lambda state: game.render([state])[0])
