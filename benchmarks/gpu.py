"""Compiled environments on one accelerator in three stages, by their number: alone, with acting, with learning.

The whole takes at most nine minutes: cells that no longer fit are left out, and named. The contestants of a cell
compile side by side, each in a process of its own, and run one after the other.
"""

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.anakin.peers import AGENT
from benchmarks.common import Row, compete, finish, notes, numbers, outcome_row, parse, parser, short, table

STAGES = {"environments": "ceiling", "acting": "acting", "learning": "ours"}
ENVIRONMENTS = ("gymnax:CartPole-v1", "gymnax:Breakout-MinAtar", "boonta:gridworld")
SIZES = (1024, 8192, 65536)
ITERATIONS, STEPS = 3, 1 << 22  # of a run, at least
MINUTES = 9.0


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("gpu", __doc__ or "", rounds=3, module=None)
    options.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"no cell begins that would pass them ({MINUTES:.0f})"
    )
    options.add_argument("--envs", type=numbers, default=SIZES, help=f"environments ({','.join(map(str, SIZES))})")
    options.add_argument("--only", help="environments whose name has this in it")
    args = parse(options, argv)
    began, longest = time.monotonic(), 0.0
    peers = ("rejax",) if importlib.util.find_spec("rejax") else ()
    sizes = [4] if args.quick else args.envs
    cells = [(env, envs) for envs in sizes for env in ENVIRONMENTS if args.only is None or args.only in env]
    rows: list[Row] = []
    failed: list[str] = []
    shown = table("Steps/s on one device", "environment", "environments", *STAGES, *peers, "of rejax")
    for env, envs in cells:
        if time.monotonic() - began + longest > 60 * args.minutes:
            notes.print(f"LEFT OUT for want of time: {env} x {envs}")
            continue
        cell_began = time.monotonic()
        try:
            outcomes = compete(_tasks(args, env, envs, peers), args.rounds, hurry=True)
        except RuntimeError as error:  # such as one that finds no memory
            failed.append(f"{env} x {envs}")
            notes.print(f"FAILED: {failed[-1]}: {error}", markup=False)
            continue
        longest = max(longest, time.monotonic() - cell_began)
        rates = {name: outcome.rate for name, outcome in outcomes.items()}
        of_rejax = rates["learning"] / rates["rejax"] if "rejax" in rates else None
        for name, outcome in outcomes.items():
            rows.append(outcome_row(args, f"{env}/{envs}", name, outcome, compiled_beside=len(outcomes)))
        told = (short(rates.get(name)) for name in (*STAGES, *peers))
        shown.add_row(env, str(envs), *told, f"{of_rejax:.2f}x" if of_rejax else "-")
    finish(args, rows, shown)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
    return rows


def _tasks(args: Any, env: str, envs: int, peers: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    agent = AGENT | ({"unroll": 8} if args.quick else {})
    steps = 0 if args.quick else max(STEPS, ITERATIONS * envs * agent["unroll"])
    base = {"environment": env, "envs": envs, "steps": steps, "agent": agent, "devices": 1}
    tasks = {name: base | {"kind": kind} for name, kind in STAGES.items()}
    return tasks | {name: base | {"kind": name} for name in peers if env.startswith("gymnax:")}


if __name__ == "__main__":
    main()
