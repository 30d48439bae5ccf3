"""The bridge to the Arcade Learning Environment (Bellemare et al. 2013), by its own pool of C++ threads."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from boonta.core import host
from boonta.core import settings as typed
from boonta.core.names import ENVS, unknown
from boonta.core.settings import setting
from boonta.core.spec import Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, TimeStep

try:
    import ale_py
    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv
except ImportError as error:
    raise ImportError(f"the family 'ale' needs ale-py ({error}): pip install 'boonta[atari]'") from error


@dataclass(frozen=True)
class Settings:
    """How a game is played. Rewards are the true score's; clipping them is the agent's affair."""

    frame_skip: int = setting(
        4, "frames that an action is repeated for; the last two are joined by their maximum", low=1
    )
    stack: int = setting(4, "frames in an observation", low=1)
    size: int = setting(84, "height and width of a frame, grey", low=36)
    noops: int = setting(30, "most no-op actions at the start of an episode", low=0)
    sticky: float = setting(
        0.0, "probability that the emulator repeats the action before (Machado et al. 2018: 0.25)", low=0.0, high=1.0
    )
    full_actions: bool = setting(False, "all 18 actions, not only those that the game knows")
    episodic_life: bool = setting(False, "let a lost life end the episode for the learner")
    fire: bool = setting(
        False, "press FIRE at the start, and in place of the action after a lost life, where the game knows it"
    )
    frames: int = setting(108_000, "frames after which an episode is cut", low=1)


def names() -> tuple[str, ...]:
    """The games, in CamelCase: `Pong`, `SpaceInvaders`."""
    return tuple(sorted(_roms()))


def _roms() -> dict[str, str]:
    return {"".join(part.capitalize() for part in rom.split("_")): rom for rom in roms.get_all_rom_ids()}


def make(name: str, **values: Any) -> host.Host:
    """A game of the Atari 2600.

    Observations are uint8 [size, size, stack], the newest frame last.

    Raises:
        ValueError: an unknown game or setting.
    """
    options = typed.build(Settings, values, "env")
    if name not in (known := _roms()):
        raise unknown("environment", name, names(), ENVS, "ale:")
    rom = known[name]
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    probe = _vector(rom, 1, options, 1)
    actions = Discrete(int(probe.single_action_space.n))  # type: ignore[attr-defined]
    probe.close()
    observation = Shape((options.size, options.size, options.stack), np.uint8)
    spec = Spec(f"ale:{name}", observation, actions, options.frame_skip, options.stack)
    examiner = make(name, **values | {"episodic_life": False}) if options.episodic_life else None
    return host.Host(spec, partial(_Batch, spec, rom, options), examiner=examiner, repeatable=True)


def _vector(rom: str, count: int, options: Settings, threads: int) -> AtariVectorEnv:
    return AtariVectorEnv(
        rom,
        count,
        num_threads=threads,
        max_num_frames_per_episode=options.frames,
        repeat_action_probability=options.sticky,
        full_action_space=options.full_actions,
        img_height=options.size,
        img_width=options.size,
        stack_num=options.stack,
        frameskip=options.frame_skip,
        noop_max=options.noops,
        episodic_life=options.episodic_life,
        reward_clipping=False,
        use_fire_reset=options.fire,
    )


def _actions(rom: str, options: Settings) -> list[ale_py.Action]:
    game = ale_py.ALEInterface()
    game.loadROM(str(roms.get_rom_path(rom)))
    return game.getLegalActionSet() if options.full_actions else game.getMinimalActionSet()


class _Batch:
    """The pool, in our terms."""

    def __init__(
        self, spec: Spec, rom: str, options: Settings, indices: np.ndarray, seed: int, life: int, workers: host.Workers
    ) -> None:
        self.pool = _vector(rom, len(indices), options, workers.count)
        self.seeds = np.asarray([host.seed_of(seed, int(i), life) for i in indices], np.int64)
        self.out = host.empty(spec, len(indices))
        # The pool itself presses FIRE where an episode begins: after each life, if that ends one.
        known = _actions(rom, options) if options.fire and not options.episodic_life else []
        self.fire = known.index(ale_py.Action.FIRE) if ale_py.Action.FIRE in known else None
        self.lives, self.lost = np.zeros(len(indices), int), np.zeros(len(indices), bool)

    def reset(self) -> TimeStep:
        observation, facts = self.pool.reset(seed=self.seeds)
        self.lives, self.lost = facts["lives"], np.zeros_like(self.lost)
        self.out.action[:] = 0
        self.out.reward[:], self.out.discount[:], self.out.step_type[:] = 0.0, 1.0, FIRST  # type: ignore[index]
        return self._seen(observation)

    def step(self, action: np.ndarray) -> TimeStep:
        if self.fire is not None:
            action = np.where(self.lost, self.fire, action)
        observation, reward, terminated, truncated, facts = self.pool.step(np.asarray(action, np.int32))
        self.lives, self.lost = facts["lives"], facts["lives"] < self.lives
        out, ended = self.out, np.asarray(self.out.step_type == LAST)  # those reset in this step: it ignores the action
        out.action[:] = np.where(ended, 0, action)
        out.reward[:] = np.where(ended, 0, reward)  # type: ignore[index]
        out.discount[:] = np.where(terminated & ~ended, 0.0, 1.0)  # type: ignore[index]
        out.step_type[:] = np.where(ended, FIRST, np.where(terminated | truncated, LAST, MID))  # type: ignore[index]
        return self._seen(observation)

    def _seen(self, observation: np.ndarray) -> TimeStep:
        for frame in range(observation.shape[1]):  # four times faster than a transposed copy
            self.out.observation[..., frame] = observation[:, frame]
        return self.out

    def frame(self) -> np.ndarray:
        newest = np.kron(self.out.observation[0, ..., -1], np.ones((3, 3), np.uint8))
        return np.repeat(newest[..., None], 3, axis=-1)

    def close(self) -> None:
        self.pool.close()
