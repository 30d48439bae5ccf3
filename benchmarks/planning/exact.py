"""Whether agents found the exact solution: trained by the commands shown, then looked at from every start there is.

Tic-tac-toe: every line that an opponent can play, from both sides, against the agent's deployed search, which must not
lose one. Tasks of one agent: from every first state the discounted return of the greedy agent beside the optimal one,
by value iteration over all states that can be reached. A run folder that is done is only read again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import Row, finish, notes, parse, parser, row, table
from benchmarks.learning import Task, train
from boonta import envs
from boonta.core.types import LAST
from boonta.experiments import runs
from boonta.experiments.files import read_json
from boonta.experiments.games.lines import every_line

STARTS = 2000  # resets, by which every first state is found
TASKS = {
    "tic-tac-toe": "muzero pgx:tic_tac_toe",
    "tic-tac-toe-fleet": "muzero openspiel:tic_tac_toe --on fleet",
    "catch": "muzero boonta:catch",
    "gridworld": "muzero boonta:gridworld --set env.preset=sparse",
}


class Graph(NamedTuple):
    """Every state of a deterministic task: what follows each action, int [n, A]; its reward; whether it ends."""

    following: np.ndarray
    reward: np.ndarray
    ends: np.ndarray


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("exact", __doc__ or "", rounds=1, module="planning")
    options.add_argument("--only", choices=list(TASKS), help="one of them")
    options.add_argument("--runs", type=Path, default=Path("runs/exact"), help="where the run folders are")
    args = parse(options, argv)
    rows: list[Row] = []
    shown = table("Exactly solved", "task", "right", "of", "steps", "seconds")
    for name, words in TASKS.items():
        if args.only not in (None, name):
            continue
        notes.print(name)
        train(Task(words + (" --steps 2000" if args.quick else ""), None), 0, args.runs / name)
        run = runs.open_run(args.runs / name, "latest")
        right, of, more = _lines(run) if name.startswith("tic-tac-toe") else _starts(run)
        result = read_json(run.folder / "run.json")["result"]
        more |= {key: result[key] for key in ("env_steps", "seconds")} | {"of": of, "train": f"boonta train {words}"}
        rows.append(row(args, name, "ours", [right], "right", **more))
        shown.add_row(name, str(right), str(of), f"{result['env_steps']:,}", f"{result['seconds']:.0f}")
    return finish(args, rows, shown)


def _lines(run: runs.Run) -> tuple[int, int, dict[str, Any]]:
    found = every_line(run)
    return found["lines"] - found["losses"], found["lines"], {key: found[key] for key in ("first", "second")}


def _starts(run: runs.Run) -> tuple[int, int, dict[str, Any]]:
    environment = envs.make(run.config.env, **dict(run.config.env_settings))
    graph, ids, begun = graph_of(environment)
    gamma = float(run.params["settings"]["discount"])
    best, found = values(graph, gamma)[ids], returns(run, environment, begun, gamma)
    right = int(np.sum(found >= best - 1e-5))
    return right, len(ids), {"return": float(np.mean(found)), "optimal_return": float(np.mean(best))}


def returns(run: runs.Run, environment: Any, begun: tuple[Any, Any], gamma: float) -> np.ndarray:
    """The discounted return of the greedy agent from each of these states and first time steps."""
    agent, count = run.system.agent, len(begun[1].reward)
    key = jax.random.key(0)

    @jax.jit
    def step(states: Any, steps: Any, memory: Any) -> tuple[Any, Any, Any]:
        memory, action, _ = jax.vmap(agent.exploit, (None, 0, 0, None))(run.params, memory, steps, key)
        states, steps = jax.vmap(environment.step, (0, 0, None))(states, action, key)
        return states, steps, memory

    memory = jax.vmap(agent.memory, (None, 0, None))(run.params, jnp.zeros(count), key)
    states, steps = begun
    total, weight, on = np.zeros(count), 1.0, np.ones(count, bool)
    while on.any():
        states, steps, memory = step(states, steps, memory)
        total += weight * np.asarray(steps.reward) * on
        weight *= gamma
        on &= np.asarray(steps.step_type) != LAST
    return total


def graph_of(environment: Any) -> tuple[Graph, np.ndarray, tuple[Any, Any]]:
    """All states of a deterministic task that its observations tell apart; the ids of the first ones, and these."""
    actions = environment.spec.action.n
    every = jax.jit(jax.vmap(jax.vmap(environment.step, (None, 0, None)), (0, None, None)))
    ids: dict[bytes, int] = {}

    def known(steps: Any) -> tuple[list[int], list[int]]:
        """The id of each, and the places of those that are new."""
        before, found, new = len(ids), [], []
        for i, seen in enumerate(np.asarray(steps.observation)):
            found.append(ids.setdefault(seen.tobytes(), len(ids)))
            if len(ids) > before:
                before, new = len(ids), [*new, i]
        return found, new

    states, steps = jax.device_get(jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), STARTS)))
    firsts, new = known(steps)
    states, begun = (jax.tree.map(lambda x: x[new], states), jax.tree.map(lambda x: x[new], (states, steps)))
    rows = []
    while new:
        after = jax.device_get(every(states, jnp.arange(actions), jax.random.key(0)))
        states, steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), after)
        found, new = known(steps)
        ends = (steps.step_type == LAST) & (steps.discount == 0)
        rows.append([np.reshape(x, (-1, actions)) for x in (found, steps.reward, ends)])
        states = jax.tree.map(lambda x, new=new: x[new], states)
    return Graph(*(np.concatenate(x) for x in zip(*rows, strict=True))), np.unique(firsts), begun


def values(graph: Graph, gamma: float) -> np.ndarray:
    """The optimal discounted return from each state."""
    best = np.zeros(len(graph.reward))
    while True:
        after = np.max(graph.reward + gamma * np.where(graph.ends, 0.0, best[graph.following]), axis=1)
        if np.max(np.abs(after - best)) < 1e-7:
            return after
        best = after


if __name__ == "__main__":
    main()
