"""MuZero beside muzero-general and LightZero: moves a second in self-play, and updates a second.

Peers by their own settings, and ours with as many simulations, a network of about the same size, and updates of as many
windows, unrolled as far. All play with networks that have learned nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Row, compete, finish, notes, outcome_row, parse, parser, short, table

MODULE = "benchmarks.planning.muzeros_contestants"


class Match(NamedTuple):
    """A peer on one of its games, and our settings that are like its own."""

    peer: str
    game: str
    environment: str
    settings: dict[str, Any]


MATCHES = (
    Match(
        "muzero-general", "tic-tac-toe", "pgx:tic_tac_toe",
        {
            "search": "puct", "simulations": 25, "body": "resnet", "channels": 16, "blocks": [1, 1, 0], "head": 8,
            "history": 0, "batch": 64, "unroll_steps": 20, "n_step": 20, "support_limit": 10.0, "support_bins": 21,
        },
    ),
    Match(
        "muzero-general", "cartpole", "gymnax:CartPole-v1",
        {
            "search": "puct", "simulations": 50, "body": "mlp", "width": 16, "head": 16, "history": 0, "batch": 128,
            "unroll_steps": 10, "n_step": 50, "support_limit": 10.0, "support_bins": 21,
        },
    ),
    Match(
        "lightzero", "cartpole", "gymnax:CartPole-v1",
        {
            "search": "puct", "simulations": 25, "body": "mlp", "width": 128, "head": 32, "norm": "batch",
            "history": 0, "batch": 256, "unroll_steps": 5, "n_step": 5, "support_limit": 300.0, "support_bins": 601,
            "consistency_coefficient": 2.0,
        },
    ),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("muzeros", __doc__ or "", rounds=3, module="planning")
    options.add_argument("--seconds", type=float, default=10.0, help="of a run (default 10)")
    options.add_argument("--envs", type=int, default=64, help="our environments side by side (default 64)")
    options.add_argument("--lightzero", nargs=1, metavar="PYTHON", help="interpreter of an environment that has it")
    options.add_argument(
        "--muzero-general", nargs=2, metavar=("PYTHON", "FOLDER"), help="the same of what it needs, and its sources"
    )
    args = parse(options, argv)
    rows: list[Row] = []
    shown = table("Ours and theirs", "peer, game", "part", "ours", "theirs", "times")
    for match in MATCHES:
        given = getattr(args, match.peer.replace("-", "_"))
        if given is None:
            notes.print(f"NO PEER: --{match.peer} says where it is")
        for part, unit in (("play", "steps/s"), ("learn", "updates/s")):
            settings = match.settings | ({"simulations": 2, "batch": 4, "unroll_steps": 2} if args.quick else {})
            task = {"module": MODULE, "part": part, "game": match.game, "seconds": 1 if args.quick else args.seconds}
            ours = {"kind": "ours", "environment": match.environment, "envs": args.envs, "settings": settings}
            tasks, pythons = {"ours": task | ours}, {}
            if given:
                tasks[match.peer] = task | {"kind": match.peer, "checkout": str(Path(given[-1]).resolve())}
                pythons = {match.peer: given[0]}
            outcomes = compete(tasks, args.rounds, pythons)
            times = outcomes["ours"].rate / outcomes[match.peer].rate if given else None
            for name, outcome in outcomes.items():
                cell = f"{match.peer}, {match.game}/{part}"
                rows.append(outcome_row(args, cell, name, outcome, unit, times=times))
            theirs = short(outcomes[match.peer].rate) if given else "-"
            ratio = f"{times:.1f}" if times else "-"
            shown.add_row(f"{match.peer}, {match.game}", part, short(outcomes["ours"].rate), theirs, ratio)
    return finish(args, rows, shown)


if __name__ == "__main__":
    main()
