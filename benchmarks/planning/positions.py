"""How often an agent's move is right: connect-four positions of at least 14 stones, with what every move is worth.

`--make` writes the positions anew (random play, values by the exact solver), `--run RUN` asks an agent, untrained and
trained, with searches of its own size and with smaller ones: the less is searched, the more the network has to know.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Row, finish, parse, parser, row, table
from benchmarks.planning import matches

FILE = Path(__file__).with_name("connect_four.jsonl")
COUNT, LEAST, MOST = 600, 14, 34  # positions, stones in them
WIDTH = 7


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("positions", __doc__ or "", rounds=1, module="planning")
    options.add_argument("--make", action="store_true", help="write the positions, and end")
    options.add_argument("--run", type=Path, action="append", default=[], help="an agent of this game; repeatable")
    options.add_argument("--checkpoint", default="latest", help="latest (default), best, or a step count")
    options.add_argument(
        "--simulations", type=int, nargs="+", default=[0, 16], help="of a search; 0: the run's own (default: 0 16)"
    )
    args = parse(options, argv)
    if args.make:
        FILE.write_text("".join(json.dumps(one) + "\n" for one in made(COUNT)), "utf-8")
        return []
    positions = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    luck = float(np.mean([_luck(one) for one in positions]))
    rows: list[Row] = []
    result = table(f"{len(positions)} positions of connect four", "agent", "simulations", "step", "right moves")
    for folder in args.run:
        for simulations in args.simulations:
            run = _opened(folder, args.checkpoint, simulations)
            for one in (matches.untrained(run), run):
                right = accuracy(one, positions)
                step, name, searched = one.facts["env_steps"], run.config.agent, matches.simulations(run)
                more = {"env_steps": step, "simulations": searched, "by_chance": luck, "positions": len(positions)}
                rows.append(row(args, f"{name}/{searched}/{step}", name, [right], "share of right moves", **more))
                result.add_row(name, str(searched), f"{step:,}", f"{right:.1%}")
    result.caption = f"by chance: {luck:.1%}"
    return finish(args, rows, result, some=True)


def _opened(folder: Path, checkpoint: str, simulations: int) -> Any:
    """A run whose searches are of another size, unless that is 0."""
    from boonta.experiments import config, runs, systems

    run = runs.open_run(folder, checkpoint)
    settings = run.config.agent_settings
    greedy = simulations or settings.simulations_greedy
    changed = run.config._replace(agent_settings=dataclasses.replace(settings, simulations_greedy=greedy))
    return run._replace(config=changed, system=systems.build(config.alone(changed)))


def made(count: int) -> list[dict[str, Any]]:
    """Positions after random moves, no two alike, in which not every move is worth the same."""
    from boonta.experiments.games.players import solver

    values, generator = solver("pgx:connect_four"), np.random.default_rng(0)
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    while len(found) < count:
        moves = _random_moves(generator, int(generator.integers(LEAST, MOST + 1)))
        if moves is None or _board(moves) in found:
            continue
        worth = values(tuple(moves))
        if len(set(worth.values())) > 1:
            found[_board(moves)] = {"moves": moves, "values": {str(move): value for move, value in worth.items()}}
    return list(found.values())


def accuracy(run: Any, positions: list[dict[str, Any]]) -> float:
    """The share of positions in which the agent's move is worth the most that any move is."""
    chosen = choices(run, [one["moves"] for one in positions])
    right = [
        one["values"].get(str(move), -2) == max(one["values"].values())
        for one, move in zip(positions, chosen, strict=True)
    ]
    return float(np.mean(right))


def choices(run: Any, games: list[list[int]]) -> list[int]:
    """What the agent, greedy, plays after these moves. It is shown as many steps up to then as it looks back on."""
    import jax

    from boonta.core.host import Workers
    from boonta.experiments.games.match import table as board
    from boonta.experiments.games.players import Trained

    count, lengths = len(games), np.array([len(moves) for moves in games])
    back = min(getattr(run.config.agent_settings, "history", 0), lengths.min())
    batch = board(run.config.env, dict(run.config.env_settings)).make(np.arange(count), 0, 0, Workers("serial"))
    timestep, shown = batch.reset(), []
    for t in range(lengths.max() + 1):
        shown.append(jax.tree.map(np.copy, timestep))
        legal = np.asarray(timestep.observation["legal"])
        forced = [moves[t] if t < len(moves) else int(np.argmax(legal[i])) for i, moves in enumerate(games)]
        timestep = batch.step(np.asarray(forced, np.int32))
    batch.close()
    agent, everybody, action = Trained(run), np.arange(count), np.zeros(count, int)
    agent.begin(count)
    steps = jax.tree.map(lambda *each: np.stack(each), *shown)
    for turn in range(-back, 1):
        now = jax.tree.map(lambda x, at=lengths + turn: x[at, everybody], steps)
        action = np.asarray(agent.act(now, np.ones(count, bool)))
    return [int(move) for move in action]


def _luck(position: dict[str, Any]) -> float:
    worth = list(position["values"].values())
    return worth.count(max(worth)) / len(worth)


def _random_moves(generator: np.random.Generator, stones: int) -> list[int] | None:
    """So many random moves of a game that is not over then; None if it ended before."""
    import pyspiel

    state, moves = pyspiel.load_game("connect_four").new_initial_state(), []
    for _ in range(stones):
        moves.append(int(generator.choice(state.legal_actions())))
        state.apply_action(moves[-1])
        if state.is_terminal():
            return None
    return moves


def _board(moves: list[int]) -> tuple[int, ...]:
    """The position, whatever order its moves came in."""
    columns: list[list[int]] = [[] for _ in range(WIDTH)]
    for i, move in enumerate(moves):
        columns[move].append(i % 2)
    return tuple(stone for column in columns for stone in (*column, *[2] * (6 - len(column))))


if __name__ == "__main__":
    main()
