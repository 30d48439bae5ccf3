"""Gridworlds with objects to collect and to avoid.

The family is that of Oh et al. (2020), "Discovering Reinforcement Learning Algorithms", appendix; the presets are
reconstructions of its training environments, not copies of its code.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.names import unknown
from boonta.core.spec import Discrete, Shape, Spec
from boonta.core.types import Action, Array, Key, TimeStep
from boonta.envs import drawing
from boonta.envs.errors import require


class Preset(NamedTuple):
    """Size of the room, its objects as (count, reward, termination, respawn), and the time limit."""

    height: int
    width: int
    objects: tuple[tuple[int, float, float, float], ...]
    limit: int


PRESETS = {
    "dense": Preset(11, 11, ((2, 1.0, 0.0, 0.05), (1, -1.0, 0.5, 0.1), (1, -1.0, 0.0, 0.5)), 500),
    "sparse": Preset(13, 13, ((1, 1.0, 1.0, 0.0), (1, -1.0, 1.0, 0.0)), 50),
    "long_horizon": Preset(11, 11, ((2, 1.0, 0.0, 0.01), (2, -1.0, 0.5, 1.0)), 1000),
    "longer_horizon": Preset(7, 9, ((2, 1.0, 0.1, 0.01), (5, -1.0, 0.8, 1.0)), 2000),
    "long_dense": Preset(11, 11, ((4, 1.0, 0.0, 0.005),), 2000),
}

# Row and column steps: stay, the four sides, the four corners.
_MOVES = np.array([(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1)])


class State(NamedTuple):
    """A gridworld of m objects; cells are numbered row by row.

    Attributes:
        agent: int32 [], its cell.
        objects: int32 [m], their cells.
        present: bool [m], whether they can be collected.
        time: int32 [].
    """

    agent: Array
    objects: Array
    present: Array
    time: Array


def make(
    preset: str = "dense",
    objects: Sequence[Sequence[float]] | None = None,
    height: int | None = None,
    width: int | None = None,
    walls: Sequence[str] | None = None,
    limit: int | None = None,
    actions: int = 9,
    observation: str = "vector",
    random: bool = False,
    layout: int = 0,
) -> Environment:
    """A gridworld: what the other settings leave at None comes from the preset.

    At every step the agent moves, unless a wall or the border is there. Each object in its cell is collected: it gives
    its reward, ends the episode with its termination probability, and is gone. Each object that was gone before
    the step comes back with its respawn probability (and is collected at the next step if the agent is there). At the
    time limit the episode is cut, which is no termination.

    The agent starts in a random free cell. The objects' cells are always the same, or, with `random`, drawn anew for
    each episode and at each respawn (where two objects may then meet). So the optimal return depends on the settings;
    it is 1 in `sparse`, and never more than `limit` times the sum of the positive rewards. At random, in the mean over
    100 episodes of each preset: -0.6 in dense, -0.1 in sparse, -0.7 in long_horizon, -0.6 in longer_horizon and 18 in
    long_dense, with standard errors of 0.25, 0.06, 0.15, 0.08 and 0.3.

    Args:
        preset: dense, sparse, long_horizon, longer_horizon or long_dense.
        objects: rows of (count, reward, termination probability, respawn probability per step).
        height: of the grid, in cells.
        width: of the grid, in cells.
        walls: the map instead of `height` and `width`: strings of one length, `#` for a wall and anything else free.
        limit: steps in an episode at most.
        actions: 9 (stay, four sides, four corners) or 5 (stay, four sides).
        observation: `vector`, bool [H * W + m]: where the agent is, one-hot, and which objects are present;
            `index`, int32 []: the same as one number below H * W * 2^m, for tables;
            `image`, bool [H, W, 2 + K]: the agent, walls, and the objects present of each of the K rows of `objects`.
        random: place the objects anew in each episode; needs `image`, as the others do not show where they are.
        layout: seed of the cells where the objects are if they are not `random`.

    Raises:
        ValueError: a setting is out of its range, or there are fewer free cells than objects and the agent.
    """
    if preset not in PRESETS:
        raise unknown("preset of boonta:gridworld", preset, PRESETS)
    base = PRESETS[preset]
    kinds = _kinds(base.objects if objects is None else objects)
    wall = _walls(walls, base.height if height is None else height, base.width if width is None else width)
    limit = base.limit if limit is None else limit
    require(limit >= 1, "limit", limit, "at least 1")
    require(actions in (5, 9), "actions", actions, "5 or 9")
    if observation not in ("vector", "index", "image"):
        raise unknown("observation of boonta:gridworld", observation, ("vector", "index", "image"))
    require(
        not random or observation == "image", "observation", observation, "'image' when objects are placed at random"
    )

    kind = np.repeat(np.arange(len(kinds)), [count for count, *_ in kinds])
    rewards, terminations, respawns = (np.array([row[i] for row in kinds], np.float32)[kind] for i in (1, 2, 3))
    rows, columns, m = *wall.shape, len(kind)
    cells = rows * columns
    free = np.flatnonzero(~wall.ravel()).astype(np.int32)
    require(len(free) > m, "objects", m, f"fewer than the {len(free)} free cells")
    require(observation != "index" or cells << m < 2**31, "observation", observation, "'vector' with so many states")
    moves = _move_table(wall)[:, :actions]
    fixed = np.random.default_rng(layout).permutation(free)
    home, vacant = fixed[:m], np.sort(fixed[m:])

    shapes = {
        "vector": jax.ShapeDtypeStruct((cells + m,), bool),
        "index": Shape((), np.int32, categories=cells << m),
        "image": jax.ShapeDtypeStruct((rows, columns, 2 + len(kinds)), bool),
    }
    spec = Spec("boonta:gridworld", shapes[observation], Discrete(actions))

    def observe(state: State) -> Array:
        if observation == "vector":
            return jnp.concatenate([jnp.arange(cells) == state.agent, state.present])
        if observation == "index":
            return state.agent + cells * jnp.sum(state.present << np.arange(m), dtype=jnp.int32)
        return planes(state)

    def planes(state: State) -> Array:
        here = (jnp.arange(cells)[:, None] == state.objects) & state.present
        agent = jnp.arange(cells) == state.agent
        of_kind = [jnp.any(here[:, kind == k], axis=1) for k in range(len(kinds))]
        return jnp.stack([agent, wall.ravel(), *of_kind], axis=-1).reshape(rows, columns, -1)

    def reset(key: Key) -> tuple[State, TimeStep]:
        if random:
            placed = jax.random.choice(key, free, (m + 1,), replace=False)
            agent, where = placed[0], placed[1:]
        else:
            agent, where = jax.random.choice(key, vacant), jnp.asarray(home)
        state = State(agent, where, jnp.ones((m,), bool), jnp.zeros((), jnp.int32))
        return state, start(observe(state), spec.action)

    def step(state: State, action: Action, key: Key) -> tuple[State, TimeStep]:
        end_key, respawn_key, place_key = jax.random.split(key, 3)
        agent = jnp.asarray(moves)[state.agent, action]
        collected = state.present & (state.objects == agent)
        ends = collected & (jax.random.uniform(end_key, (m,), jnp.float32) < terminations)
        back = ~state.present & (jax.random.uniform(respawn_key, (m,), jnp.float32) < respawns)
        where = jnp.where(back, jax.random.choice(place_key, free, (m,)), state.objects) if random else state.objects
        state = State(agent, where, state.present & ~collected | back, state.time + 1)
        reward = jnp.sum(collected * rewards)
        return state, proceed(observe(state), action, reward, jnp.any(ends), state.time >= limit)

    def render(state: State) -> np.ndarray:
        picture = np.asarray(planes(state))
        colours = np.full((rows, columns, 3), drawing.INK, np.uint8)
        colours[picture[..., 1]] = drawing.GREY
        for k, (_, reward, *_) in enumerate(kinds):
            colours[picture[..., 2 + k]] = _COLOURS[reward > 0][k % 3]
        colours[picture[..., 0]] = drawing.WHITE
        return drawing.tiles(colours)

    return Environment(spec, reset, step, render)


_COLOURS = {True: (drawing.GREEN, drawing.SKY, drawing.BLUE), False: (drawing.RED, drawing.ORANGE, drawing.PINK)}


def _kinds(objects: Sequence[Sequence[float]]) -> list[tuple[int, float, float, float]]:
    kinds = []
    for row in objects:
        require(
            len(row) == 4 and row[0] >= 1 and row[0] == int(row[0]) and 0 <= row[2] <= 1 and 0 <= row[3] <= 1,
            "objects",
            row,
            "rows of (count of at least 1, reward, termination probability, respawn probability)",
        )
        kinds.append((int(row[0]), float(row[1]), float(row[2]), float(row[3])))
    require(bool(kinds), "objects", objects, "at least one row")
    return kinds


def _walls(walls: Sequence[str] | None, height: int, width: int) -> np.ndarray:
    """bool [H, W]."""
    if walls is None:
        require(height >= 1 and width >= 1, "height, width", (height, width), "at least 1")
        return np.zeros((height, width), bool)
    require(len({len(row) for row in walls}) == 1, "walls", walls, "strings of one length")
    return np.array([[cell == "#" for cell in row] for row in walls])


def _move_table(wall: np.ndarray) -> np.ndarray:
    """int32 [H * W, 9], where each move leads from each cell."""
    height, width = wall.shape
    here = np.stack(np.divmod(np.arange(height * width), width), axis=-1)
    there = here[:, None] + _MOVES
    inside = np.all((there >= 0) & (there < (height, width)), axis=-1)
    row, column = np.where(inside[..., None], there, 0).transpose(2, 0, 1)
    open_ = inside & ~wall[row, column]
    return np.where(open_, row * width + column, np.arange(height * width)[:, None]).astype(np.int32)
