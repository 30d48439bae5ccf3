"""Learning runs: the commands of the documentation, their results and curves kept as data and drawn.

A run folder that is done is only read again; one that was stopped goes on.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from boonta.experiments.files import read_json, write_bytes, write_text
from boonta.experiments.metrics import read_metrics
from boonta.experiments.report import write_report
from boonta.testing.redis_servers import serving

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "learning"
PICTURES = ROOT / "docs" / "curves"
CURVE = ("env_steps", "seconds", "member", "member_name", "episode/return_mean", "eval/return_mean", "eval/return_std")


class Task(NamedTuple):
    """What `boonta train` is given, and the evaluation mean that it should reach (None: a comparison).

    Sebulba trains one member at a time: `seeds` runs of their own, with the seeds 0, 1, ..., are then one result. Over
    Redis each of them has a server of its own.
    """

    arguments: str
    bar: float | None
    seeds: int = 1
    redis: bool = False

    def folders(self, runs: Path, name: str) -> list[Path]:
        """The run folders of each seed."""
        return [runs / name] if self.seeds == 1 else [runs / f"{name}-{seed}" for seed in range(self.seeds)]


TASKS = {
    "ppo-cartpole": Task("ppo gymnax:CartPole-v1 --steps 500000 --seeds 8", 490),
    "vtrace-cartpole": Task("vtrace gymnax:CartPole-v1 --steps 1000000 --seeds 8", 450),
    "ppo-pendulum": Task("ppo gymnax:Pendulum-v1 --steps 2000000 --seeds 4", -200),
    "ppo-playground-cartpole": Task("ppo playground:CartpoleBalance --seeds 3", 950),
    "ppo-acrobot": Task("ppo gymnax:Acrobot-v1 --steps 500000 --seeds 4", -90),
    "ppo-tmaze": Task("ppo boonta:tmaze --steps 1000000 --seeds 4", 0.95),
    "ppo-tmaze-without-memory": Task("ppo boonta:tmaze --steps 1000000 --seeds 4 --set agent.core=none", None),
    "ppo-minatar-breakout": Task("ppo gymnax:Breakout-MinAtar --steps 10000000 --seeds 3", 28),
    "ppo-minatar-asterix": Task("ppo gymnax:Asterix-MinAtar --steps 10000000 --seeds 3", 12),
    "ppo-minatar-freeway": Task("ppo gymnax:Freeway-MinAtar --steps 10000000 --seeds 3", 50),
    "ppo-minatar-spaceinvaders": Task("ppo gymnax:SpaceInvaders-MinAtar --steps 10000000 --seeds 3", 110),
    "sebulba-ppo-cartpole": Task("ppo gym:CartPole-v1 --on sebulba --steps 1000000", 475, 3),
    "sebulba-vtrace-cartpole": Task("vtrace gym:CartPole-v1 --on sebulba --steps 1000000", 475, 3),
    "sebulba-ppo-blind-cartpole": Task(
        "ppo gym:CartPole-v1 --on sebulba --steps 2000000 --set env.hide=[1,3] --set agent.core=lstm", 350, 3
    ),
    "sebulba-ppo-halfcheetah": Task("ppo gym:HalfCheetah-v5 --on sebulba --steps 1000000", 1500, 3),
    "sebulba-ppo-hopper": Task("ppo gym:Hopper-v5 --on sebulba --steps 1000000", None, 3),
    "sebulba-ppo-lunarlander": Task("ppo gym:LunarLander-v3 --on sebulba --steps 1000000", 200, 3),
    "sebulba-ppo-acrobot": Task("ppo gym:Acrobot-v1 --on sebulba --steps 500000", -90, 3),
    "sebulba-ppo-bipedalwalker": Task("ppo gym:BipedalWalker-v3 --on sebulba --steps 3000000", 200),
    "sebulba-dqn-mountain-car": Task("dqn gym:MountainCar-v0", -120, 3),
    "ppo-frozenlake": Task("ppo gym:FrozenLake-v1 --set env.is_slippery=false", 0.95, 3),
    "dqn-cliffwalking": Task("dqn gym:CliffWalking-v1", -15, 3),
    "dqn-taxi": Task("dqn gym:Taxi-v4", 7, 3),
    "sebulba-vtrace-pong": Task("vtrace ale:Pong --on sebulba", 18),
    "sebulba-ppo-pong": Task("ppo ale:Pong --on sebulba", 18),
    "dqn-minatar-breakout": Task("dqn gymnax:Breakout-MinAtar --steps 3000000 --seeds 3", 10),
    "r2d2-minatar-breakout": Task("r2d2 gymnax:Breakout-MinAtar --steps 3000000 --seeds 3", None),
    "r2d2-memory": Task("r2d2 boonta:memory --set env.length=20 --seeds 3", 0.95),
    "dqn-memory": Task("dqn boonta:memory --set env.length=20 --steps 400000 --seeds 3", None),
    "seed-r2d2-blind-cartpole": Task("r2d2 gym:CartPole-v1 --on seed --set env.hide=[1,3]", 400, 3),
    "seed-ppo-cartpole": Task("ppo gym:CartPole-v1 --on seed", 475, 3),
    "seed-vtrace-pong": Task("vtrace ale:Pong --on seed", 18),
    "seed-r2d2-pong": Task("r2d2 ale:Pong --on seed", -15),
    "muzero-catch": Task("muzero boonta:catch --seeds 3", 1.0),
    "muzero-cartpole": Task("muzero gymnax:CartPole-v1 --seeds 3", 475),
    "muzero-minatar-breakout": Task("muzero gymnax:Breakout-MinAtar --seeds 3", None),
    "ppo-minatar-breakout-300k": Task("ppo gymnax:Breakout-MinAtar --steps 300000 --seeds 3", None),
    "sebulba-muzero-minatar-breakout": Task("muzero minatar:breakout --on sebulba", None, 3),
    "fleet-vtrace-cartpole": Task("vtrace gym:CartPole-v1 --on fleet", 475),
    "fleet-dqn-cartpole": Task("dqn gym:CartPole-v1 --on fleet", 475),
    "fleet-r2d2-blind-cartpole": Task("r2d2 gym:CartPole-v1 --on fleet --set env.hide=[1,3]", 400),
    "ddpg-pendulum": Task("ddpg gymnax:Pendulum-v1 --seeds 5", -200),
    "td3-pendulum": Task("td3 gymnax:Pendulum-v1 --seeds 5", -200),
    "sac-pendulum": Task("sac gymnax:Pendulum-v1 --seeds 5", -200),
    "split-ddpg-pendulum": Task("ddpg gym:Pendulum-v1 --on split", -200, 5),
    "split-td3-pendulum": Task("td3 gym:Pendulum-v1 --on split", -200, 5),
    "split-sac-pendulum": Task("sac gym:Pendulum-v1 --on split", -200, 5),
    "redis-ddpg-pendulum": Task("ddpg gym:Pendulum-v1 --on split", -200, 5, redis=True),
    "redis-td3-pendulum": Task("td3 gym:Pendulum-v1 --on split", -200, 5, redis=True),
    "redis-sac-pendulum": Task("sac gym:Pendulum-v1 --on split", -200, 5, redis=True),
    "ddpg-mountaincar": Task("ddpg gymnax:MountainCarContinuous-v0 --seeds 5", 90),
    "split-sac-halfcheetah": Task("sac gym:HalfCheetah-v5 --on split", 5000),
    "sebulba-sac-hopper": Task("sac gym:Hopper-v5 --on sebulba", 2000),
    "sebulba-vtrace-breakout": Task("vtrace ale:Breakout --on sebulba --steps 5000000", 30),
}


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Run what is not done yet, keep every result, draw every curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"all, or some of: {', '.join(TASKS)}")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folders are")
    parser.add_argument("--collect", action="store_true", help="run nothing, only read what is done")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}; allowed: {', '.join(TASKS)}")
    rows = []
    for name in args.tasks or TASKS:
        task = TASKS[name]
        folders = task.folders(args.runs, name)
        if not args.collect:
            for seed, folder in enumerate(folders):
                train(task, seed, folder)
        if all((f / "run.json").is_file() and read_json(f / "run.json")["status"] == "done" for f in folders):
            rows.append(_keep(name, task, folders))
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['name']:28} {row['eval_return_mean']:8.2f} ± {row['eval_return_std_over_members']:6.2f}")
    return rows


def train(task: Task, seed: int, folder: Path) -> None:
    """The run of one seed; nothing where it is done."""
    record = folder / "run.json"
    if record.is_file() and read_json(record)["status"] == "done":
        return
    new = [*task.arguments.split(), "--seed", str(seed), "--out", str(folder)]
    words = ["--resume", str(folder)] if record.is_file() else new
    with ExitStack() as stack:
        if task.redis:
            place = stack.enter_context(tempfile.TemporaryDirectory())
            words += ["--transport", stack.enter_context(serving(Path(place))).address]
        boonta = [sys.executable, "-P", "-m", "boonta", "train"]
        subprocess.run([*boonta, *words, "--json"], check=True, stdout=subprocess.DEVNULL)


def _keep(name: str, task: Task, folders: list[Path]) -> dict[str, Any]:
    """Write the curves, the summary and the picture of finished runs; return the summary."""
    records = [read_json(folder / "run.json") for folder in folders]
    results = [record["result"] for record in records]
    members = [member["eval_return_mean"] for result in results for member in result.get("members", [result])]
    curve = [
        {"member": seed} | {key: row[key] for key in CURVE if key in row}
        for seed, folder in enumerate(folders)
        for row in read_metrics(folder)
    ]
    record = records[-1]
    summary = {
        "name": name,
        "command": f"boonta train {task.arguments}" + (" --transport redis://HOST:PORT" if task.redis else ""),
        "runs": task.seeds,
        "bar": task.bar,
        "eval_return_mean": float(np.mean(members)),
        "eval_return_std_over_members": float(np.std(members)),
        "eval_episodes": sum(result["eval_episodes"] for result in results),
        "env_steps": sum(result["env_steps"] for result in results),
        "seconds": sum(result["seconds"] for result in results),
        "members": members,
        "config": tomllib.loads((folders[0] / "config.toml").read_text("utf-8")),
        **{key: record[key] for key in ("machine", "versions", "devices", "commit", "finished")},
    }
    lines = [json.dumps({"summary": summary}), *(json.dumps(row) for row in curve)]
    write_text(RESULTS / f"{name}.jsonl", "\n".join(lines) + "\n")
    page = write_report(folders, None if len(folders) == 1 else folders[0].with_name(f"{name}.html"))
    write_bytes(PICTURES / f"{name}.png", page.with_suffix(".png").read_bytes())
    return summary


if __name__ == "__main__":
    main()
