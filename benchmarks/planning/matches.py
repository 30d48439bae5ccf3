"""How strong agents are: matches with sides swapped against an opponent that is not ours."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Row, finish, parse, parser, row, table
from boonta.core import random
from boonta.experiments import runs
from boonta.experiments.games.match import match


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("matches", __doc__ or "", rounds=1, module="planning")
    options.add_argument("--run", type=Path, action="append", default=[], help="an agent; repeatable")
    options.add_argument("--opponent", default="mcts:1000", help="as in `boonta match` (default: mcts:1000)")
    options.add_argument("--games", type=int, default=200, help="half of them with each side (default 200)")
    options.add_argument("--untrained", action="store_true", help="also of each agent before training")
    args = parse(options, argv)
    rows: list[Row] = []
    shown = table(
        f"{args.games} games against {args.opponent}", "agent, game", "steps", "wins", "draws", "losses", "score"
    )
    for folder in args.run:
        trained = runs.open_run(folder, "latest")
        for run in (untrained(trained), trained) if args.untrained else (trained,):
            found = match(run, args.opponent, 4 if args.quick else args.games)
            name = f"{run.config.agent}, {run.config.env}"
            name += "" if found["env_steps"] else ", untrained"
            kept = {key: value for key, value in found.items() if key != "out"}
            rows.append(row(args, name, "ours", [found["score"]], "score", simulations=simulations(run), **kept))
            counts = [str(found[key]) for key in ("wins", "draws", "losses")]
            shown.add_row(name, f"{found['env_steps']:,}", *counts, f"{found['score']:.1%}")
    return finish(args, rows, shown, some=True)


def untrained(run: runs.Run) -> runs.Run:
    """The same agent before training."""
    return run._replace(params=run.system.agent.init(random.key(0)), facts=run.facts | {"env_steps": 0})


def simulations(run: runs.Run) -> int:
    """Of a search outside of training."""
    settings = run.config.agent_settings
    return settings.simulations_greedy or settings.simulations


if __name__ == "__main__":
    main()
