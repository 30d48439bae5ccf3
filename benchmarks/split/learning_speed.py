"""How fast critics and policy learn: beside peers and beside bare products of matrices, and by what carries experience.

Peers: one environment, one update of critics and policy for each of its steps, at equal networks, batches and
precision; SBX on the host, rejax compiled. Forms: updates of the critics a second while environments step, in one
process, and in processes that never wait for one another; sizes: the same by width, layers and value processes (the
paper's Fig. 4). Carriers: entries a second from who acts to who learns. Goal: seconds of learning until HalfCheetah
runs.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.common import (
    Contestant,
    Outcome,
    Row,
    compete,
    finish,
    notes,
    outcome_row,
    parse,
    parser,
    row,
    short,
    table,
)

MODULE = "benchmarks.split.contestants"
BATCH, MINIMUM = 256, 500
TOGETHER = 16  # steps acted before as many updates
HOST = [256, 256]  # widths
COMPILED = [64, 64]
PEERS = {  # cell: (algorithm, ours, theirs, observation, action, widths, steps of a run)
    "host/ddpg": ("ddpg", "gym:Pendulum-v1", "Pendulum-v1", 3, 1, HOST, 3000),
    "host/sac": ("sac", "gym:Pendulum-v1", "Pendulum-v1", 3, 1, HOST, 2000),
    "cheetah/sac": ("sac", "gym:HalfCheetah-v5", "HalfCheetah-v5", 17, 6, HOST, 2000),
    "compiled/td3": ("td3", "gymnax:Pendulum-v1", "Pendulum-v1", 3, 1, COMPILED, 20_000),
    "compiled/sac": ("sac", "gymnax:Pendulum-v1", "Pendulum-v1", 3, 1, COMPILED, 10_000),
}
FORMS = {
    "one process": {"on": "sebulba", "more": []},
    "processes": {"on": "split", "more": ["architecture.free_running=true"]},
    "processes over redis": {"on": "split", "more": ["architecture.free_running=true"], "redis": True},
}
SIZES: dict[str, dict[str, list[str]]] = {  # axis: what of it: words
    "width": {str(width): [f"agent.hidden={[width] * 2}"] for width in (64, 256, 1024)},
    "layers": {str(layers): [f"agent.hidden={[256] * layers}"] for layers in (1, 2, 4)},
    "value processes": {str(number): [f"architecture.value_processes={number}"] for number in (1, 2)},
}
GOAL = 5000.0  # return of HalfCheetah
CAPACITY = 1_000_000  # steps that replay keeps there, as in the paper of SAC
TURN, TURNS, EPISODES = 10_000, 40, 5  # steps between evaluations, how many at most, and their episodes
CARRIERS = ("in-process", "shm", "redis", "pipelines")
ENTRIES = {"Pendulum": 64, "HalfCheetah": 256, "pixels": 28_288}  # bytes of a step


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("learning_speed", __doc__ or "", rounds=5, module="split")
    options.add_argument("--sbx", metavar="PYTHON", help="interpreter of an environment that has SBX")
    options.add_argument("--rejax", metavar="PYTHON", help="interpreter of an environment that has rejax")
    options.add_argument("--only", choices=list(PARTS), help="one part")
    args = parse(options, argv)
    if not (args.sbx and args.rejax):
        notes.print("NOT ALL PEERS: --sbx and --rejax name interpreters that have them")
    rows, tables = [], []
    for name, part in PARTS.items():
        if args.only in (None, name):
            made, shown = part(args)
            rows += made
            tables.append(shown)
    return finish(args, rows, *tables)


def _peers(args: Any) -> tuple[list[Row], Any]:
    rows, shown = [], table("One update for each step", "", "who", "steps/s", "of the peer", "of the products")
    for cell, (algorithm, ours, theirs, observation, action, hidden, steps) in PEERS.items():
        steps = 600 if args.quick else steps
        host = not cell.startswith("compiled")
        words = [algorithm, ours, f"agent.hidden={hidden}", f"agent.minimum={MINIMUM}", "architecture.envs=1"]
        if not host and algorithm == "td3":
            words.append("agent.activation=silu")  # rejax' own
        task = {"module": MODULE, "algorithm": algorithm, "batch": BATCH, "minimum": MINIMUM, "hidden": hidden}
        peer, python = ("sbx", args.sbx) if host else ("rejax", args.rejax)
        together = [f"agent.unroll={TOGETHER}", f"agent.minimum={-(-MINIMUM // TOGETHER) * TOGETHER}"]
        one = {"module": MODULE, "kind": "ours", "on": "sebulba" if host else "anakin", "words": words}
        one |= {"iterations": steps}
        tasks: dict[str, dict[str, Any]] = {
            "ours": one | {"words": [*words, *together], "iterations": steps // TOGETHER},
            "ours, step by step": one,
            "products": task | {"kind": "products", "observation": observation, "action": action, "steps": steps},
        }
        if host:
            tasks["ours, step by step, synchronous"] = one | {"words": [*words, "architecture.lag=0"]}
        pythons = {}
        if python:
            tasks[peer] = task | {"kind": peer, "environment": theirs, "steps": steps}
            pythons[peer] = python
            if host:
                tasks[also := f"{peer}, {TOGETHER} steps together"] = tasks[peer] | {"together": TOGETHER}
                pythons[also] = python
        outcomes = compete(tasks, args.rounds, pythons)
        of = {name: outcomes["ours"].rate / outcome.rate for name, outcome in outcomes.items()}
        rows += [outcome_row(args, cell, name, outcome, ours_of=of) for name, outcome in outcomes.items()]
        for name, outcome in outcomes.items():
            beside = [outcomes.get(one) for one in (peer, "products")]
            shares = [f"{outcome.rate / one.rate:.2f}" if one else "-" for one in beside]
            shown.add_row(cell, name, short(outcome.rate), *shares)
            notes.print(f"{cell}, {name}: {short(outcome.rate)}")
    return rows, shown


def _forms(args: Any) -> tuple[list[Row], Any]:
    columns = ("", "updates of the critics/s", "environment steps/s", "of one process")
    rows, shown = [], table("While environments step", *columns)
    tasks = {name: _updates(args, form) for name, form in FORMS.items()}
    outcomes = compete(tasks, args.rounds)  # who has no turn waits for the driver
    for name, outcome in outcomes.items():
        steps = _env_steps(outcome)
        of = outcome.rate / outcomes["one process"].rate
        rows.append(outcome_row(args, "forms", name, outcome, env_steps=steps, of_one_process=of, unit="updates/s"))
        shown.add_row(name, short(outcome.rate), short(steps), f"{of:.2f}")
    return rows, shown


def _sizes(args: Any) -> tuple[list[Row], Any]:
    rows, shown = [], table("By size", "", "updates of the critics/s", "environment steps/s", "of the first")
    form = FORMS["processes"]
    for axis, choices in SIZES.items():
        outcomes = compete(
            {f"{axis} {name}": _updates(args, form, more) for name, more in choices.items()}, args.rounds
        )
        first = next(iter(outcomes.values())).rate
        for name, outcome in outcomes.items():
            steps, of = _env_steps(outcome), outcome.rate / first
            rows.append(outcome_row(args, "sizes", name, outcome, env_steps=steps, of_first=of, unit="updates/s"))
            shown.add_row(name, short(outcome.rate), short(steps), f"{of:.2f}")
    return rows, shown


def _updates(args: Any, form: Mapping[str, Any], more: Sequence[str] = ()) -> dict[str, Any]:
    """A contestant whose updates of the critics are counted; of words that say the same the last holds."""
    words = ["ddpg", "gym:Pendulum-v1", f"agent.hidden={HOST}", f"agent.minimum={MINIMUM}", "architecture.envs=1"]
    task = {"module": MODULE, "kind": "updates", "warm": 600, "words": [*words, *form["more"], *more]}
    return {**form, **task, "iterations": 200 if args.quick else _iterations(form)}


def _env_steps(outcome: Outcome) -> float:
    """Environment steps/s, the median of the rounds."""
    return statistics.median(run["env_steps"] / run["seconds"] for run in outcome.runs)


def _iterations(form: Mapping[str, Any]) -> int:
    """Of some ten seconds: environments that wait for nobody are faster."""
    return 3000 if form["on"] == "sebulba" else 5000


def _carriers(args: Any) -> tuple[list[Row], Any]:
    rows, shown = [], table("From who acts to who learns, entries/s", "bytes of an entry", *CARRIERS)
    seconds = 1.0 if args.quick else 5.0
    for cell, size in ENTRIES.items():
        tasks = {
            by: {"module": MODULE, "kind": "carrier", "by": by, "size": size, "seconds": seconds} for by in CARRIERS
        }
        outcomes = compete(tasks, args.rounds)
        rows += [
            outcome_row(args, f"carriers/{cell}", by, outcome, size=size, unit="entries/s")
            for by, outcome in outcomes.items()
        ]
        shown.add_row(f"{cell}, {size}", *(short(outcome.rate) for outcome in outcomes.values()))
    return rows, shown


def _goal(args: Any) -> tuple[list[Row], Any]:
    """SAC on HalfCheetah, in turns, until an evaluation says that the goal is reached."""
    columns = ("", "seconds of learning", "steps", "return")
    rows, shown = [], table(f"HalfCheetah to {GOAL:g}", *columns)
    turn, turns = (300, 1) if args.quick else (TURN, TURNS)
    about = {"module": MODULE, "steps": turn, "episodes": 1 if args.quick else EPISODES}
    equal = [f"agent.hidden={HOST}", f"agent.capacity={CAPACITY}", "agent.minimum=10_000", "architecture.envs=1"]
    words = ["sac", "gym:HalfCheetah-v5", *equal]
    forms = {"sebulba": [f"agent.unroll={TOGETHER}"], "split": [f"architecture.band={TOGETHER}"]}
    tasks: dict[str, dict[str, Any]] = {
        f"ours, {on}": about | {"kind": "taught", "on": on, "words": [*words, *more]} for on, more in forms.items()
    }
    if args.sbx:
        peer = {"kind": "sbx", "algorithm": "sac", "environment": "HalfCheetah-v5", "hidden": HOST, "batch": BATCH}
        tasks["sbx"] = about | peer | {"capacity": CAPACITY, "minimum": 10_000}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(Contestant(task, args.sbx if name == "sbx" else sys.executable))
            for name, task in tasks.items()
        }
        ready = {name: one.ready() for name, one in running.items()}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in tasks}
        for i in range(turns):
            for name, one in running.items():
                if not runs[name] or runs[name][-1]["return"] < GOAL:
                    runs[name].append(one.go(i))
                    notes.print(f"{name}: {runs[name][-1]['return']:.0f} after {(i + 1) * turn} steps")
    for name, made in runs.items():
        seconds, steps, last = (
            sum(run["seconds"] for run in made),
            sum(run["steps"] for run in made),
            made[-1]["return"],
        )
        curve = [run["return"] for run in made]
        more = {"reached": last >= GOAL, "env_steps": steps, "curve": curve, "versions": ready[name]["versions"]}
        rows.append(row(args, "goal", name, [seconds], "seconds", **more))
        shown.add_row(name, f"{seconds:.0f}", short(steps), f"{last:.0f}")
    return rows, shown


PARTS = {"peers": _peers, "forms": _forms, "sizes": _sizes, "carriers": _carriers, "goal": _goal}

if __name__ == "__main__":
    main()
