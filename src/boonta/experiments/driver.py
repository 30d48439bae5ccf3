"""The loop of a run: state in, state out, with the log, the clock, evaluations and checkpoints at the edges."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from boonta.architectures import anakin
from boonta.core import devices, random
from boonta.core import episodes as counting
from boonta.core.types import PyTree
from boonta.experiments import config as configuration
from boonta.experiments import evaluation, signals
from boonta.experiments.building import Built
from boonta.experiments.checkpoint import FOLDER, Checkpoints
from boonta.experiments.config import Config
from boonta.experiments.metrics import MetricsLog
from boonta.experiments.progress import Progress
from boonta.experiments.signals import Interrupted


class Failed(Exception):
    """The run ended for a reason that the message tells; the exit code is 1."""


class Driver:
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
        """To the end of the run; the summary.

        Raises:
            Failed: something stopped it.
            Interrupted: a signal did; the run was saved.
        """
        run, total = self.config.run, self.built.iterations
        chunk = self._iterations(run.log_every, 50)
        save_every = self._iterations(run.checkpoint_every, 10, chunk)
        evaluate_every = self._iterations(run.evaluate_every, 10, chunk)
        began = time.perf_counter()
        scores = None
        with (
            signals.received() as received,
            self._log() as log,
            Progress(total * self.per_iteration, self.quiet or not self.lead) as bar,
        ):
            while self.done < total:
                n = min(chunk - self.done % chunk, total - self.done)
                metrics, elapsed = self._advance(n)
                rows = self._rows(metrics, elapsed, n)
                log(rows)
                self._check(metrics, n)
                steps, ended, stop = self.done * self.per_iteration, self.done == total, signals.agreed(received)
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
