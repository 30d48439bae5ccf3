"""What the benchmarks share: contestants that take turns, the facts of the machine, result files and tables."""

import argparse
import datetime
import functools
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.table import Table

from benchmarks.contestant import Task, versions
from boonta.experiments import machine as known

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIMIT = 1200.0  # seconds that one compilation or one run may take

Row = dict[str, Any]


def _console(stderr: bool = False) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, soft_wrap=False, width=None if terminal else 140)


notes = _console(stderr=True)


class Contestant:
    """A process of the module `task["module"]`, by default that of Anakin's contestants."""

    def __init__(self, task: Task, python: str = sys.executable) -> None:
        """Start it; it compiles at once. `ready` waits for that."""
        self.task = task
        foreign = python != sys.executable
        path = [str(ROOT)] + ([] if foreign else [p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH")) if p])
        # Contestants share an accelerator, so none may take all of its memory.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # compile times are measured
        if task.get("devices", 1) > 1:
            flag = f"--xla_force_host_platform_device_count={task['devices']}"
            environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - __exit__ closes it
        self._process = subprocess.Popen(
            [python, "-m", task.get("module", "benchmarks.anakin.contestants"), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=ROOT,
        )
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ready(self) -> dict[str, Any]:
        """Wait until it has compiled; what it says about that."""
        return self._answer()

    def go(self, seed: int) -> dict[str, Any]:
        """One measured run."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # then the answer says why
            self._process.stdin.write(f"go {seed}\n".encode())
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        deadline = time.monotonic() + LIMIT
        while b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no answer in {LIMIT:.0f} s from {self.task}")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise RuntimeError(
                    f"{self.task['kind']} died, code {self._process.wait()}: {self.task}\n{self._tail()}"
                )
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _tail(self) -> str:
        self._errors.seek(0)
        return "".join(self._errors.readlines()[-15:])


class Outcome(NamedTuple):
    """What a contestant said when it was ready, and about each measured run."""

    task: Task
    ready: dict[str, Any]
    runs: list[dict[str, Any]]

    def rates(self, idle: bool = False) -> list[float]:
        """Steps/s of each run; idle acts do not count as steps unless `idle`."""
        return [(run["steps"] - (0 if idle else run["idle"])) / run["seconds"] for run in self.runs]

    @property
    def rate(self) -> float:
        """Median steps/s, idle acts not counted."""
        return statistics.median(self.rates())


def compete(
    tasks: Mapping[str, Task], rounds: int, pythons: Mapping[str, str] | None = None, hurry: bool = False
) -> dict[str, Outcome]:
    """Let contestants take turns.

    Args:
        tasks: what each contestant does, by name.
        rounds: measured runs of each; one more comes first and is not counted.
        pythons: interpreters of those that have their own.
        hurry: compile side by side and leave out the first run; compile times mean nothing then.

    Returns:
        What they said, by name.
    """
    with ExitStack() as stack:
        running: dict[str, Contestant] = {}
        ready: dict[str, dict[str, Any]] = {}
        for name, task in tasks.items():
            running[name] = stack.enter_context(Contestant(task, (pythons or {}).get(name, sys.executable)))
            if not hurry:
                ready[name] = running[name].ready()
                running[name].go(0)
        if hurry:
            ready = {name: contestant.ready() for name, contestant in running.items()}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in tasks}
        names = list(tasks)
        for i in range(rounds):
            # The first of a round changes, so that nobody always follows the same one.
            for name in names[i % len(names) :] + names[: i % len(names)]:
                runs[name].append(running[name].go(1 + i))
        return {name: Outcome(tasks[name], ready[name], runs[name]) for name in names}


@functools.cache
def machine() -> dict[str, Any]:
    """The machine: processor, cores, memory, system, and what JAX computes on."""
    # A process of its own: JAX in this one would settle the devices before a script has chosen them.
    probe = "import jax; d = jax.devices(); print(jax.default_backend(), len(d), d[0].device_kind, sep='|')"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=LIMIT)
    backend, count, kind = answer.stdout.splitlines()[-1].split("|")
    facts = known.machine()
    return {
        "cpu": facts["processor"],
        "cores": facts["cores"],
        "memory_gb": round((facts["memory"] or 0) / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "backend": backend,
        "device": kind,
        "devices": int(count),
    }


def devices_for(envs: int) -> int:
    """The devices that the library chooses: all accelerators, or a virtual one for each core while each has enough."""
    from boonta.experiments.systems.anakin import ENVS_PER_DEVICE

    if machine()["backend"] != "cpu":
        return machine()["devices"]
    counts = range(2, machine()["cores"] + 1)
    return max([1, *(n for n in counts if envs % n == 0 and envs // n >= ENVS_PER_DEVICE)])


def parser(
    name: str, doc: str, rounds: int, module: str | None = "anakin", script: str | None = None
) -> argparse.ArgumentParser:
    """The options that all benchmarks have; `name` is of its results and, by default, of the script in `module`."""
    prog = "python -m " + ".".join(word for word in ("benchmarks", module, script or name) if word)
    result = argparse.ArgumentParser(prog=prog, description=doc.splitlines()[0])
    result.add_argument("--rounds", type=int, help=f"measured runs of each contestant (default {rounds})")
    result.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it works; written only with --out"
    )
    result.add_argument(
        "--json", action="store_true", help="print the rows as one JSON object, the last line of stdout"
    )
    result.add_argument("--out", type=Path, help=f"folder of the results (default {RESULTS.relative_to(ROOT)})")
    result.set_defaults(name=name, prog=prog, default_rounds=rounds)
    return result


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options given, completed."""
    args = parser.parse_args(argv)
    given = sys.argv[1:] if argv is None else argv
    # Where things lie on this machine is nobody's business.
    shown = ["PATH" if os.path.isabs(word) else word for word in given]
    args.command = " ".join([args.prog, *shown])
    machine()  # asked before this process, too, may hold an accelerator
    args.rounds = args.rounds or (1 if args.quick else args.default_rounds)
    return args


def numbers(text: str) -> list[int]:
    """A list of whole numbers, as in `1,2,4`."""
    return [int(word) for word in text.split(",")]


def row(args: argparse.Namespace, cell: str, contestant: str, values: Iterable[float], unit: str, **more: Any) -> Row:
    """One line of a result file; `more` may override any key."""
    values = list(values)
    return {
        "name": args.name,
        "cell": cell,
        "contestant": contestant,
        "unit": unit,
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "rounds": len(values),
        "values": values,
        "compile_seconds": None,
        "peak_rss_mb": None,
        **more,
        "machine": machine(),
        "versions": more.get("versions") or versions(),
        "commit": known.commit() or "none",
        "command": args.command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def outcome_row(
    args: argparse.Namespace, cell: str, contestant: str, outcome: Outcome, unit: str = "steps/s", **more: Any
) -> Row:
    """The line of a contestant whose runs were timed; steps are those that an agent chose."""
    task, runs = outcome.task, outcome.runs
    facts: dict[str, Any] = {
        "compile_seconds": outcome.ready["compile_seconds"],
        "peak_rss_mb": max(run["peak_rss_mb"] for run in runs),
        "median_with_idle": statistics.median(outcome.rates(idle=True)),
        "steps": runs[0]["steps"],
        "idle_fraction": statistics.median(run["idle"] / run["steps"] for run in runs),
        "versions": outcome.ready["versions"],
    }
    facts |= {key: task[key] for key in ("environment", "envs", "devices", "agent") if key in task}
    return row(args, cell, contestant, outcome.rates(), unit, **facts, **more)


def finish(
    args: argparse.Namespace, rows: list[Row], *tables: Table, remarks: Sequence[str] = (), some: bool = False
) -> list[Row]:
    """Print the tables, write the file, print the JSON; returns the rows. With `some` or `--only`, others are kept."""
    console = notes if args.json else _console()
    for table in tables:
        console.print(table)
    for remark in remarks:
        console.print(remark)
    if args.out or not args.quick:
        _write((args.out or RESULTS) / f"{args.name}.jsonl", rows, some or bool(getattr(args, "only", None)))
    if args.json:
        print(json.dumps({"name": args.name, "rows": rows}))
    return rows


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and the others numbers."""
    result = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        result.add_column(column, justify="right" if i else "left", no_wrap=True)
    return result


def short(value: float | None) -> str:
    """A rate or a size with three digits: 1.23k, 45.6M."""
    if value is None:
        return "-"
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            break
        value /= 1000
    return f"{value:.3g}{unit}"


def _write(path: Path, rows: list[Row], some: bool) -> None:
    """Rows in place of what there was; of only `some` cells, in place of those that are about the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: list[Row] = []
    if path.exists():
        old = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        new = {row["cell"] for row in rows}
        kept = [row for row in old if some and row["cell"] not in new]
        if gone := [row for row in old if row not in kept]:
            notes.print(
                f"replaces {len(gone)} rows in {path.name} of {gone[0]['date']}, commit {gone[0]['commit'][:12]}"
            )
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text("".join(json.dumps(row) + "\n" for row in [*kept, *rows]), "utf-8")
    os.replace(beside, path)
    notes.print(f"wrote {len(rows)} rows to {path.name}")
