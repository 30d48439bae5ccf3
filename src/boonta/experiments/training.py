"""A training run on Anakin, from configuration to result: the driver around the compiled program."""

import datetime
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from boonta import envs
from boonta.architectures import anakin
from boonta.core import devices, random
from boonta.core import episodes as counting
from boonta.core.agent import Agent
from boonta.core.environment import Environment, check
from boonta.core.settings import Refused
from boonta.core.types import PyTree
from boonta.experiments import config as configuration
from boonta.experiments import evaluation, files, machine, registry
from boonta.experiments.checkpoint import FOLDER, Checkpoints
from boonta.experiments.config import Config
from boonta.experiments.metrics import MetricsLog
from boonta.experiments.progress import Progress

ENVS_PER_DEVICE = 16  # fewer, and two CPU devices are slower than one


class Failed(Exception):
    """The run ended for a reason that the message tells; the exit code is 1."""


class Interrupted(Exception):
    """A signal asked the run to end; it was saved. `signal` is its number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


class Built(NamedTuple):
    """What a configuration makes."""

    agent: Agent
    environment: Environment
    unit: anakin.Anakin
    program: anakin.Program
    members: list[configuration.Member]
    iterations: int


def build(config: Config) -> Built:
    """Agent, environment and program of a configuration, on the devices there are.

    Raises:
        ValueError: more devices asked than there are, or numbers that do not divide.
    """
    environment = envs.make(config.env, **config.env_settings)
    entry = registry.agent(config.agent)
    population = configuration.members(config)
    agent = entry.factory(environment.spec, config.agent_settings)
    batches = [learner.experience.batch for learner in agent.learners.values()]
    count = config.architecture_settings.envs or max(batches)
    chosen = _devices(config, [count, *batches], len(population))
    across = int(np.gcd(len(population), len(chosen)))
    shards = len(chosen) // across
    unit = anakin.make(agent, environment, count, shards)
    iterations = max(1, config.run.steps // unit.steps_per_iteration)
    total = iterations * unit.updates_per_iteration
    if total >= 2**31:  # State.updates counts in int32
        most = (2**31 - 1) // unit.updates_per_iteration * unit.steps_per_iteration
        raise ValueError(f"run.steps must be at most {most} with these settings, got {config.run.steps}")
    agent = entry.factory(environment.spec, config.agent_settings, total_updates=total)
    unit = anakin.make(agent, environment, count, shards)
    program = anakin.program(unit, devices.mesh(chosen, across))
    return Built(agent, environment, unit, program, population, iterations)


def _devices(config: Config, numbers: list[int], population: int) -> list[Any]:
    """The devices asked for, or as many as suit: `numbers` (environments first) must be divided among them."""
    there, hosts = jax.devices(), jax.process_count()
    asked = config.architecture_settings.devices
    if asked > len(there):
        raise ValueError(
            f"architecture.devices is {asked}, but there are {len(there)} of {there[0].platform}; "
            f"allowed: 1 to {len(there)}, or 0 for auto"
        )
    if asked % hosts:
        raise ValueError(f"architecture.devices must be a multiple of the number of hosts, got {asked} and {hosts}")
    if asked:
        return [d for host in range(hosts) for d in [d for d in there if d.process_index == host][: asked // hosts]]
    if hosts > 1 or there[0].platform != "cpu":
        return there

    def suits(n: int) -> bool:
        shards = n // int(np.gcd(population, n))
        divide = all(number % shards == 0 for number in numbers)
        return shards == 1 or (divide and numbers[0] // shards >= ENVS_PER_DEVICE)

    return there[: max(n for n in range(1, len(there) + 1) if suits(n))]


class Result(NamedTuple):
    """What a run ended with: the object that `--json` prints, and the run folder."""

    summary: dict[str, Any]
    folder: Path


def train(config: Config, folder: Path, resume: bool = False, quiet: bool = False) -> Result:
    """Train to the end, or go on where the run in `folder` was.

    Raises:
        Failed: something stopped the run; `run.json` and the message say what.
        Interrupted: SIGINT or SIGTERM; the run was saved.
        ValueError: the configuration cannot run here.
    """
    built = build(config)
    with _explained():
        check(built.environment)
    lead = jax.process_index() == 0
    now: dict[str, Any] = {
        "versions": machine.versions(),
        "devices": _describe(built),
        "machine": machine.machine(),
        "commit": machine.commit(),
        "command": shlex.join(sys.argv),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    record: dict[str, Any] = now | {"seed": config.run.seed}
    folder.mkdir(parents=True, exist_ok=True)
    if resume:  # what stands in the folder is touched only once it is clear that the run can go on
        record = files.read_json(folder / "run.json")
        record["resumed"] = [*record.get("resumed", []), now]
    with _explained():
        run = _Run(config, folder, built, resume, quiet)
    if record.get("status") == "done" and run.done == built.iterations:
        print("boonta: it has made all its steps already", file=sys.stderr)
        return Result(record["result"] | {"out": str(folder), "status": "done"}, folder)
    record |= {"status": "running", "cause": None}
    if lead:
        files.write_text(folder / "config.toml", configuration.write(config))
        files.write_json(folder / "run.json", record)
        if not quiet:
            recipe = f", recipe {config.run.recipe}" if config.run.recipe else ""
            print(f"boonta: {config.agent} on {config.env}, {config.architecture}{recipe} -> {folder}", file=sys.stderr)

    def end(status: str, cause: str | None, result: dict[str, Any] | None = None) -> None:
        record.update(
            status=status, cause=cause, finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        )
        record.update({"result": result} if result else {})
        if lead:
            try:
                files.write_json(folder / "run.json", record)
            except OSError as error:  # a full disk must not hide the cause it gave
                print(f"boonta: {folder / 'run.json'} could not be written: {error}", file=sys.stderr)

    try:
        with _explained():
            summary = run.go()
    except Interrupted as stop:
        end("interrupted", str(stop))
        raise
    except KeyboardInterrupt:
        end("interrupted", "a second signal did not wait; go on from the last checkpoint with --resume")
        raise
    except OSError as error:
        end("failed", str(error))
        raise Failed(str(error)) from error
    except Failed as error:
        end("failed", str(error))
        raise
    except BaseException as error:
        end("failed", f"{type(error).__name__}: {error}")
        raise
    end("done", None, summary)
    return Result(summary | {"out": str(folder), "status": "done"}, folder)


@contextmanager
def _explained() -> Iterator[None]:
    """What no message of ours explains fails the run, with its traceback."""
    try:
        yield
    except (Failed, Interrupted, Refused, OSError):
        raise
    except Exception as error:
        traceback.print_exc()
        raise Failed(f"{type(error).__name__}: {error}") from error


class _Run:
    """One run: state in, state out, with the log, the clock and the checkpoints at the edges."""

    def __init__(self, config: Config, folder: Path, built: Built, resume: bool, quiet: bool) -> None:
        self.config, self.folder, self.built, self.quiet = config, folder, built, quiet
        self.lead = jax.process_index() == 0
        self.checkpoints = Checkpoints(folder, config.run.keep)
        self.per_iteration = built.unit.steps_per_iteration
        self.done = 0  # iterations
        self.seconds = 0.0
        self.best = -1e300  # the best evaluation so far; JSON has no infinity
        self.compiled: dict[int, Callable] = {}
        self.compile_seconds = 0.0
        self.state = self._start()
        self.evaluate = _evaluator(built, config.run.eval_episodes)
        if resume:
            try:
                self._restore()
            except (FileNotFoundError, ValueError) as error:
                raise Failed(str(error)) from error

    def go(self) -> dict[str, Any]:
        run, total = self.config.run, self.built.iterations
        chunk = self._iterations(run.log_every, 50)
        save_every = self._iterations(run.checkpoint_every, 10, chunk)
        evaluate_every = self._iterations(run.evaluate_every, 10, chunk)
        began = time.perf_counter()
        scores = None
        with (
            _signals() as received,
            self._log() as log,
            Progress(total * self.per_iteration, self.quiet or not self.lead) as bar,
        ):
            while self.done < total:
                n = min(chunk - self.done % chunk, total - self.done)
                metrics, elapsed = self._advance(n)
                rows = self._rows(metrics, elapsed, n)
                log(rows)
                self._check(metrics, n)
                steps, ended, stop = self.done * self.per_iteration, self.done == total, _agreed(received)
                returns = [row["episode/return_mean"] for row in rows]
                speed = n * self.per_iteration * len(self.built.members) / elapsed
                bar.update(steps, speed, float(np.nanmean(returns)) if not np.isnan(returns).all() else None)
                due = ended or self.done % evaluate_every == 0
                if due:
                    scores = self.evaluate(self.state.params)
                    log(self._evaluation_rows(scores))
                    score = float(np.mean(scores.returns))
                    better, self.best = score > self.best, max(self.best, score)
                if ended or stop or self.done % save_every == 0 or (due and better):
                    self._save(scores if due else None)
                if stop and not ended:
                    where = f"boonta train --resume {self.folder}"
                    raise Interrupted(stop, f"{signal.Signals(stop).name} at step {steps}; saved, go on with: {where}")
            if scores is None:  # resumed at its end
                scores = self.evaluate(self.state.params)
        self.checkpoints.close()
        return self._summary(scores, self.compile_seconds, time.perf_counter() - began)

    def _advance(self, n: int) -> tuple[dict[str, np.ndarray], float]:
        """Make n iterations; their metrics, and how many seconds they took, compilation apart."""
        if n not in self.compiled:
            clock = time.perf_counter()
            self.compiled[n] = self.built.program.run.lower(self.state, n).compile()
            self.compile_seconds += time.perf_counter() - clock
        clock = time.perf_counter()
        self.state, metrics = self.compiled[n](self.state)
        metrics = fetch(metrics)
        elapsed = time.perf_counter() - clock
        self.done += n
        self.seconds += elapsed
        return metrics, elapsed

    def _start(self) -> anakin.State:
        everyone = NamedSharding(self.built.program.mesh, PartitionSpec(devices.POPULATION))
        place = partial(jax.device_put, device=everyone)
        return self.built.program.start(*jax.tree.map(place, configuration.stacked(self.built.members)))

    def _restore(self) -> None:
        found = self.checkpoints.restore(self.state)
        for message in found.passed_over:
            print(f"boonta: WARNING: {message}; going on from the one before", file=sys.stderr)
        steps = int(found.facts["env_steps"])
        if found.passed_over:
            self.checkpoints.set_aside(after=steps)
        self.state, self.done = found.state, int(found.facts["iterations"])
        self.seconds, self.best = float(found.facts["seconds"]), float(found.facts["best"])
        print(f"boonta: going on from step {steps} of {self.folder}", file=sys.stderr)

    def _save(self, scores: evaluation.Scores | None) -> None:
        score = None if scores is None else float(np.mean(scores.returns))
        facts = {
            "iterations": self.done,
            "seconds": self.seconds,
            "best": self.best,
            "updates": self.done * self.built.unit.updates_per_iteration,
        }
        self.checkpoints.save(self.done * self.per_iteration, self.state, facts, score)

    def _check(self, metrics: dict[str, np.ndarray], n: int) -> None:
        bad = metrics["health"]
        if self.config.run.on_nan == "ignore" or not bad.any():
            return
        iteration = int(np.argmax(bad.any(axis=0)))
        member = int(np.argmax(bad[:, iteration] > 0))
        name = self.built.unit.tensors()[int(bad[member, iteration]) - 1]
        step = (self.done - n + iteration + 1) * self.per_iteration
        who = f" of {self.built.members[member].name}" if len(self.built.members) > 1 else ""
        kept = self.checkpoints.steps()
        last = (
            f"the last good checkpoint is {self.folder / FOLDER / str(kept[-1])}"
            if kept
            else "no checkpoint was made yet"
        )
        raise Failed(f"{name}{who} is not finite at step {step}; {last}; `--on-nan ignore` goes on regardless")

    @contextmanager
    def _log(self) -> Iterator[Callable[[list[dict[str, Any]]], None]]:
        if not self.lead:
            yield lambda rows: None
            return
        with MetricsLog(self.folder) as log:
            log.truncate_after(self.done * self.per_iteration)
            yield log.extend

    def _where(self, member: int) -> dict[str, Any]:
        steps = self.done * self.per_iteration
        row = {
            "env_steps": steps,
            "frames": steps * self.built.environment.spec.frames_per_step,
            "seconds": self.seconds,
        }
        if len(self.built.members) > 1:
            row |= {"member": member, "member_name": self.built.members[member].name}
        return row

    def _rows(self, metrics: dict[str, np.ndarray], elapsed: float, n: int) -> list[dict[str, Any]]:
        rows = []
        speed = n * self.per_iteration * len(self.built.members) / elapsed
        for i in range(len(self.built.members)):
            mine = {key: values[i] for key, values in metrics.items()}
            finished = counting.merge(counting.Finished(*(mine.pop(field) for field in counting.Finished._fields)))
            mine.pop("health")
            rows.append(
                self._where(i)
                | {"updates": self.done * self.built.unit.updates_per_iteration, "steps_per_second": speed}
                | counting.summary(finished)
                | {"policy_lag_mean": self.built.unit.lag}
                | {key: float(np.mean(values)) for key, values in mine.items()}
            )
        return rows

    def _evaluation_rows(self, scores: evaluation.Scores) -> list[dict[str, Any]]:
        return [
            self._where(i)
            | {f"eval/{k.removeprefix('eval_')}": v for k, v in evaluation.statistics(scores.returns[i]).items()}
            | {"eval/length_mean": float(np.mean(scores.lengths[i]))}
            for i in range(len(self.built.members))
        ]

    def _summary(self, scores: evaluation.Scores, compile_seconds: float, wall: float) -> dict[str, Any]:
        steps, members = self.done * self.per_iteration, self.built.members
        means = np.mean(scores.returns, axis=1)
        summary = evaluation.statistics(scores.returns) | {
            "env_steps": steps * len(members),
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(steps * len(members) / max(self.seconds, 1e-9), 1),
            "updates": self.done * self.built.unit.updates_per_iteration,
            "compile_seconds": round(compile_seconds, 3),
            "wall_seconds": round(wall, 3),
        }
        if len(members) > 1:
            summary["eval_return_std_over_members"] = float(np.std(means))
            summary["members"] = [
                {"name": member.name, **evaluation.statistics(returns)}
                for member, returns in zip(members, scores.returns, strict=True)
            ]
        return summary

    def _iterations(self, steps: int, share: int, multiple: int = 1) -> int:
        """Iterations between two events: of `steps` environment steps, or of a share of the run."""
        n = round(steps / self.per_iteration) if steps else self.built.iterations // share
        return max(1, round(n / multiple)) * multiple


def _evaluator(built: Built, count: int) -> Callable[[PyTree], evaluation.Scores]:
    """Params [M, ...] -> Scores [M, episodes], on all devices of the mesh."""
    mesh, specs = built.program.mesh, built.program.specs
    shards = mesh.shape[devices.LEARNERS]
    split = shards if count % shards == 0 else 1

    def one(params: PyTree) -> evaluation.Scores:
        first = devices.rank() * (count // split) if split > 1 else 0
        key = random.key(evaluation.SEED)
        return evaluation.episodes(built.agent, built.environment, params, key, first, count // split, of=count)

    out = specs.actors if split > 1 else specs.updates
    mapped = jax.shard_map(
        lambda params: jax.lax.map(one, params), mesh=mesh, in_specs=(specs.params,), out_specs=out, check_vma=False
    )
    compiled = jax.jit(mapped)
    return lambda params: evaluation.Scores(*fetch(tuple(compiled(params))))


def fetch(tree: PyTree) -> PyTree:
    """A tree of device arrays as NumPy arrays, whole on every host."""

    def one(x: jax.Array) -> np.ndarray:
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(one, tree)


def _agreed(received: list[int]) -> int:
    """The signal that some host received, 0 for none: hosts stop together or not at all."""
    mine = received[0] if received else 0
    if jax.process_count() == 1:
        return mine
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(mine))))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM is put into the list that this gives; a second one ends the process as usual."""
    seen: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: whoever owns that handles signals
        yield seen
        return
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe(built: Built) -> dict[str, Any]:
    there = built.program.mesh.devices
    first = there.flat[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": int(there.size),
        "mesh": {name: int(size) for name, size in built.program.mesh.shape.items()},
        "processes": jax.process_count(),
    }
