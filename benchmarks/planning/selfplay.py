"""Moves of self-play a second, beside a plain loop of pgx and mctx with the same network and as many simulations.

Ours is on the devices that Anakin would choose, and, where these are several, on one as well, as the plain loop is.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, devices_for, finish, notes, outcome_row, parse, parser, short, table

GAMES = ("pgx:tic_tac_toe", "pgx:connect_four")
NETWORK: dict[str, Any] = {"body": "resnet", "channels": 32, "head": 32, "simulations": 32}
BLOCKS: dict[str, list[int]] = {"alphazero": [2], "muzero": [2, 2, 0]}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("selfplay", __doc__ or "", rounds=7, module="planning")
    options.add_argument("--envs", type=int, default=64, help="games side by side (default 64)")
    options.add_argument("--steps", type=int, default=40, help="steps of each in a run (default 40)")
    args = parse(options, argv)
    rows: list[Row] = []
    columns = ("agent, game", "who", "devices", "moves/s", "of the plain loop", "idle acts")
    result = table("Self-play, 32 simulations, 32 channels x 2 blocks", *columns)
    chosen = devices_for(args.envs)
    for agent, blocks in BLOCKS.items():
        for game in GAMES:
            notes.print(f"{agent} on {game}")
            history = {"history": 0} if agent == "muzero" else {}
            settings = NETWORK | {"blocks": blocks} | history | ({"simulations": 2} if args.quick else {})
            task = {"module": "benchmarks.planning.contestants", "agent": agent, "game": game, "envs": args.envs}
            task |= {"steps": 4 if args.quick else args.steps, "settings": settings, "environment": game}
            who = {"ours": task | {"kind": "ours", "devices": chosen}, "plain": task | {"kind": "plain", "devices": 1}}
            if chosen > 1:
                who["ours on one device"] = task | {"kind": "ours", "devices": 1}
            outcomes = compete(who, args.rounds, hurry=args.quick)
            for name, outcome in outcomes.items():
                share = outcome.rate / outcomes["plain"].rate
                rows.append(outcome_row(args, f"{agent}/{game}", name, outcome, of_plain=share))
                result.add_row(
                    f"{agent}, {game}", name, str(who[name]["devices"]), short(outcome.rate), f"{share:.2f}",
                    f"{rows[-1]['idle_fraction']:.0%}",
                )  # fmt: skip
    return finish(args, rows, result)


if __name__ == "__main__":
    main()
