"""How long the first commands take, by an outside clock, and what they say of it; beside another checkout.

The compilation cache is warm: each command is run once before it is measured.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Row, finish, notes, parse, parser, row, table

LIMIT = 900.0  # seconds that a command may take
BREAKOUT = ["train", "ppo", "gymnax:Breakout-MinAtar", "--steps", "1e6", "--seeds", "4", "--out", "runs/breakout"]
COMMANDS = {
    "train": ["train", "--json"],
    "breakout": [*BREAKOUT, "--json"],
    "watch": ["watch", "runs/breakout"],
    "report": ["report", "runs/breakout"],
    "sebulba": ["train", "ppo", "gym:CartPole-v1", "--on", "sebulba", "--steps", "200000", "--json"],
}
FIRST = ["train", "--set", "run.log_every=1", "--out", "runs/first"]
QUICK = ["--steps", "20000", "--set", "run.eval_episodes=4"]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("times", __doc__ or "", rounds=3, module="newcomer")
    options.add_argument("--against", metavar="CHECKOUT", type=Path, help="another checkout, with the same interpreter")
    options.add_argument("--only", help="commands whose name has this in it")
    args = parse(options, argv)
    who = {"ours": ROOT} | ({"before": args.against.resolve()} if args.against else {})
    wanted = [name for name in (*COMMANDS, "first update") if args.only is None or args.only in name]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {(name, one): [] for name in wanted for one in who}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds + 1):  # the first warms the caches
            for one, checkout in list(who.items())[:: 1 if turn % 2 else -1]:
                place = Path(folder) / f"{one}-{turn}"
                place.mkdir()
                for name in wanted:
                    if name in ("watch", "report") and not (place / "runs/breakout").exists():
                        _run(checkout, place, [*BREAKOUT, *QUICK * args.quick])
                    run = _first_update(checkout, place) if name == "first update" else _run(
                        checkout, place, [*COMMANDS[name], *QUICK * (args.quick and COMMANDS[name][0] == "train")]
                    )  # fmt: skip
                    runs[name, one] += [run] * (turn > 0)
    rows, shown = [], table("The first commands, seconds", "", "who", "in all", "told", *_names())
    for (name, one), made in runs.items():
        told = [run.get("wall_seconds") for run in made]
        parts = {key: [run.get("parts", {}).get(key) for run in made] for key in _names()}
        seconds = [run["seconds"] for run in made]
        rows.append(row(args, name, one, seconds, "s", told=told, parts=parts, checkout=_commit(who[one])))
        middle = sorted(made, key=lambda run: run["seconds"])[len(made) // 2]
        cells = [f"{x:.1f}" if x else "-" for x in (middle["seconds"], middle.get("wall_seconds"))]
        shown.add_row(name, one, *cells, *(f"{middle.get('parts', {}).get(key, 0.0):.1f}" for key in _names()))
    return finish(args, rows, shown, some=bool(args.only))


def _names() -> tuple[str, ...]:
    from boonta.experiments.parts import NAMES

    return NAMES


def _environment(checkout: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(checkout / "src")}


def _run(checkout: Path, place: Path, words: list[str]) -> dict[str, Any]:
    """The seconds of a command, and its answer where that is an object."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "boonta", *words], cwd=place, env=_environment(checkout), capture_output=True,
        text=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    seconds = time.monotonic() - began
    notes.print(f"{checkout.name}: {' '.join(words)[:60]}: {seconds:.1f} s")
    (*_, last) = done.stdout.splitlines() or [""]
    answer = json.loads(last) if last.startswith("{") else {}
    return answer | {"train_seconds": answer.get("seconds"), "seconds": seconds}


def _first_update(checkout: Path, place: Path) -> dict[str, Any]:
    """The seconds until the first row of metrics is there, which is written after the first update."""
    began = time.monotonic()
    words = [sys.executable, "-P", "-m", "boonta", *FIRST]
    with subprocess.Popen(
        words, cwd=place, env=_environment(checkout), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        file = place / "runs/first/metrics.jsonl"
        while not (file.exists() and file.stat().st_size):
            if process.poll() is not None or time.monotonic() > began + LIMIT:
                raise RuntimeError(f"{' '.join(FIRST)} has logged nothing")
            time.sleep(0.005)
        seconds = time.monotonic() - began
        process.send_signal(signal.SIGTERM)
    return {"seconds": seconds}


def _commit(checkout: Path) -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
