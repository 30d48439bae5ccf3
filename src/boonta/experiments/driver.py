"""The loop of a run: state in, state out, with the log, the clock, evaluations and checkpoints at the edges."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from boonta.agents.common import CLIPPED
from boonta.core import episodes as counting
from boonta.core import totals
from boonta.core.settings import Refused
from boonta.core.totals import Totals
from boonta.core.types import PyTree
from boonta.experiments import agreement, evaluation
from boonta.experiments.checkpoint import FOLDER, Checkpoints
from boonta.experiments.config import Config
from boonta.experiments.intervals import Interval
from boonta.experiments.metrics import METRICS, MetricsLog
from boonta.experiments.parts import Parts, age
from boonta.experiments.process import printable
from boonta.experiments.progress import Progress
from boonta.experiments.replays import Replays
from boonta.experiments.systems import Failed, Idle, System
from boonta.experiments.watchdog import Watchdog

FACTS = {"iterations": int, "seconds": float, "updates": int}  # of a checkpoint: those of `Mark`
LIMIT = 3600.0  # seconds that an evaluation may take
GRACE = 5.0  # seconds that it has where the run is asked to end
SOON = 10.0  # seconds between checkpoints, unless more are asked for
SLICE = 0.2  # seconds between looks at it
MOST_CLIPPED = 0.01  # share of what is learned that may lie beyond what the network can say, without a warning
CALL = 5.0  # seconds that a call of `System.advance` is meant to take, in which a signal may not be heard
UNLEARNED = 0.5  # the same before the first update: iterations may take much longer from then on

Log = Callable[[list[dict[str, Any]]], None]


class Mark(NamedTuple):
    """A point of the run: iterations, seconds and updates so far."""

    done: int
    seconds: float
    updates: int


class Examination(NamedTuple):
    """An evaluation under way: its answer to come, and the state and the point of the run that it is about.

    The state is without its replays; where it is kept for a checkpoint, these were saved when it began.
    """

    scores: "Future[evaluation.Scores]"
    state: PyTree
    mark: Mark
    facts: dict[str, Any]
    save: bool


class Scored(NamedTuple):
    """A checkpoint to be saved, as `Checkpoints.save` takes it."""

    env_steps: int
    state: PyTree
    facts: dict[str, Any]
    score: float | None


class Driver:
    """One run on a system."""

    def __init__(self, config: Config, folder: Path, system: System, resume: bool, quiet: bool) -> None:
        self.config, self.folder, self.system, self.quiet = config, folder, system, quiet
        self.lead = jax.process_index() == 0
        # Of a run that ended before its first checkpoint the folder of checkpoints is there; or it never began.
        never = (folder / FOLDER).is_dir() or not (folder / METRICS).exists()
        self.checkpoints, self.replays = Checkpoints(folder, config.run.keep), Replays(folder)
        self.parts = Parts()
        self.mark = self.logged = Mark(0, 0.0, 0)  # where the run is, and was at the last log line
        self.interval: Totals | None = None  # of the iterations since then
        self._fast: tuple[int, float] | None = None  # iterations and seconds of the last call
        self._saved = (0, time.monotonic())  # iterations behind the last checkpoint, and when it was made
        self.best = -1e300  # the best evaluation so far; JSON has no infinity
        self.evaluated = 0  # the iterations that the last evaluation was about
        self.under_way: Examination | None = None
        self._held: Scored | None = None  # the best so far, where it waits for the next checkpoint
        self.final: evaluation.Scores | None = None  # of the end of the run
        self._unclosed = set(system.remarks)
        self.clipping = False  # whether it was said that values are clipped
        if resume:
            self.checkpoints.recover()
        begun = resume and (self.checkpoints.steps() or not never)
        if resume and not begun:
            print(f"boonta: {folder} has no checkpoint yet, and begins anew", file=sys.stderr)
        self.state = self._restored() if begun else system.start()

    def go(self, ended: Callable[[str, str], None]) -> dict[str, Any]:
        """To the end of the run; the summary.

        Args:
            ended: takes the status and the cause where the process ends because an update hangs.

        Raises:
            Failed: something stopped it.
            Interrupted: a signal did; the run was saved.
        """
        run, system, total = self.config.run, self.system, self.system.iterations
        log_every, save_every = self._interval(run.log_every, 50), self._interval(run.checkpoint_every, 10)
        evaluate_every = self._interval(run.evaluate_every, 10)
        parts, compiled = self.parts.seconds, system.compile_seconds
        parts["starting"] = age() - compiled

        def asked() -> bool:
            """Whether to look up: the run is to end, or a checkpoint is due. Asked again and again while it waits."""
            self._tell()
            return bool(received) or self._late()

        with (
            Watchdog(system.watch, run.update_timeout, self._last, ended) as watchdog,
            agreement.received(watchdog.wake) as received,
            self._log() as log,
            Progress(system.at(total), self.quiet or not self.lead) as bar,
        ):
            system.progress = bar.note
            due = self.mark.done == total or evaluate_every.passed(self.mark.done - 1, self.mark.done)
            if due and run.eval_episodes and self.evaluated < self.mark.done:  # the run was ended before it could
                self._examine(save=True)
                self._settle(log, 0.0, received)
            examined = self.evaluated  # or to be, by what is under way
            while self.mark.done < total:
                before = self.mark.done
                events = [one.following(before) for one in (log_every, save_every, evaluate_every)]
                try:
                    count = self._call(min(*events, total) - before)
                    self.state, made, elapsed = system.advance(self.state, count, asked, self.interval)
                except Idle:
                    if agreement.agreed(received):
                        break
                    self._settle(log, LIMIT, received)  # what it is about comes before
                    self._save_all()  # for which it was made to look up
                    continue
                finally:
                    self._tell()
                self._count(made, elapsed)
                parts["training"] += elapsed
                now, ended_here = self.mark.done, self.mark.done == total
                self._show(bar)
                logged = self.logged.done
                if (log_every.passed(before, now) and not self._ending(logged)) or ended_here or made.bad.any():
                    self._write(log)
                self._check(made, logged)
                asked_for = save_every.passed(before, now) and not (run.checkpoint_every == 0 and self._soon())
                save = ended_here or asked_for or agreement.shared(np.bool_(self._late()))
                usual = evaluate_every.passed(before, now) and not self._ending(examined)
                due = bool(run.eval_episodes) and (ended_here or usual)
                self._settle(log, LIMIT if save or due else 0.0, received)
                if agreement.agreed(received):
                    break
                if due:
                    examined = now
                    self._examine(save)
                    self._settle(log, LIMIT if ended_here else 0.0, received)
                elif save:
                    self._save_all()
            self._settle(log, LIMIT, received)
            unfinished = self.mark.done < total or (run.eval_episodes and not self.final)
            if (stop := agreement.agreed(received)) and unfinished:
                self._end_early(log, stop)
            # There is none where it was resumed at its end.
            scores = self.final
            if not run.eval_episodes:
                scores = evaluation.nothing(len(system.members))
            elif not scores:
                with self.parts.of("evaluating"):
                    scores = agreement.shared(system.evaluate(self.state, run.eval_episodes).result(LIMIT))
        with self.parts.of("saving"):
            self.checkpoints.close()
        parts["compiling"] = system.compile_seconds
        return self._summary(scores)

    def _interval(self, steps: int, share: int) -> Interval:
        """After every so many environment steps, or after a share of the run."""
        return Interval(self.system.at, steps, max(1, self.system.iterations // share))

    def _call(self, most: int) -> int:
        """Iterations to be made at once, of at most so many: no more than take a few seconds, by measured speed."""
        count = 1
        if self._fast:
            made, seconds = self._fast
            wanted = CALL if self.mark.updates else UNLEARNED
            if limit := self.config.run.update_timeout:
                wanted = min(wanted, limit / 2)
            count = max(1, min(int(wanted * made / max(seconds, 1e-9)), 2 * made))  # which may have been fast by chance
        return int(agreement.shared(np.int32(min(count, most))))

    def _count(self, made: Totals, elapsed: float) -> None:
        """Take in what a call has made, with what was made since the last log line before it."""
        n, updates = self.logged.done + int(made.iterations[0]), self.logged.updates + int(made.made[0])
        self._fast = n - self.mark.done, elapsed
        self.mark, self.interval = Mark(n, self.mark.seconds + elapsed, updates), made

    def _late(self) -> bool:
        """Whether the last checkpoint is too many minutes ago."""
        done, at = self._saved
        minutes = self.config.run.checkpoint_minutes
        return bool(minutes) and self.mark.done > done and time.monotonic() > at + 60.0 * minutes

    def _ending(self, last: int) -> bool:
        """Whether the end comes so soon that what is due now can wait for it: in half the time since the last one."""
        return self.system.iterations - self.mark.done < (self.mark.done - last) / 2

    def _soon(self) -> bool:
        """Whether the last checkpoint was made only just now; on all hosts."""
        return bool(agreement.shared(np.bool_(time.monotonic() < self._saved[1] + SOON)))

    def _show(self, bar: Progress) -> None:
        assert self.interval
        finished = self.interval.finished
        mean = float(finished.total.sum() / count) if (count := finished.count.sum()) else None
        bar.update(self.system.at(self.mark.done), self._speed(), mean)

    def _speed(self) -> float:
        """Environment steps a second, of all members, since the last log line."""
        steps = self.system.at(self.mark.done) - self.system.at(self.logged.done)
        return steps * len(self.system.members) / max(self.mark.seconds - self.logged.seconds, 1e-9)

    def _write(self, log: Log) -> None:
        """A log line."""
        rows = self._rows()
        log(rows)
        self._warn_of_clipping(rows)
        self.interval, self.logged = None, self.mark

    def _last(self) -> str:
        """What there is to go on from, and what is lost where the state of now is."""
        kept, now = self.checkpoints.steps(), self.system.at(self.mark.done)
        if not kept:
            return f"no checkpoint was made yet, and all {now} steps are lost"
        command = "train" if getattr(self.config.architecture_settings, "local", True) else "serve"
        return (
            f"the last checkpoint is {self.folder / FOLDER / str(kept[-1])}, and {now - kept[-1]} steps after it are "
            f"lost; go on with: boonta {command} --resume {self.folder}"
        )

    def _end_early(self, log: Log, stop: int) -> NoReturn:
        """Save, and say how to go on; an evaluation that takes long is not waited for."""
        self._settle(log, GRACE, ())
        if given_up := self.under_way:
            self.under_way = None
            where = self.system.at(given_up.mark.done)
            print(f"boonta: WARNING: the evaluation of step {where} was given up", file=sys.stderr)
        self._save_all()
        command = "train" if getattr(self.config.architecture_settings, "local", True) else "serve"
        raise agreement.Interrupted(
            stop,
            f"{signal.Signals(stop).name} at step {self.system.at(self.mark.done)}; saved, go on with: "
            f"boonta {command} --resume {self.folder}",
        )

    def _examine(self, save: bool) -> None:
        """Begin an evaluation of the state as it is now."""
        with self.parts.of("evaluating"):
            scores = self.system.evaluate(self.state, self.config.run.eval_episodes)
        rest = self.system.rest(self.state)
        if save and self.system.replaying:
            self._save_all()  # what lies in replay moves on
        # Training goes on with the buffers of the state; what is evaluated beside it is kept for its checkpoint.
        rest = rest if agreement.together(scores.done()) else jax.tree.map(jnp.copy, rest)
        self.under_way = Examination(scores, rest, self.mark, self._facts(), save)
        if save:
            self._saved = (self.mark.done, time.monotonic())

    def _settle(self, log: Log, seconds: float, received: Sequence[int]) -> None:
        """Log the evaluation under way once it has ended; save what it was about if that is due or the best so far.

        Args:
            log: takes its rows.
            seconds: to wait for it, if no signal comes.
            received: signals.

        Raises:
            Failed: it took too long, or what runs beside died meanwhile.
        """
        one = self.under_way
        if one is None:
            return
        deadline = time.monotonic() + seconds
        with self.parts.of("evaluating"):
            while not agreement.together(one.scores.done()):
                if not agreement.together(time.monotonic() < deadline and not received):
                    if seconds == LIMIT and not agreement.agreed([*received]):
                        raise Failed(f"the evaluation of step {self.system.at(one.mark.done)} took over {LIMIT:g} s")
                    return
                wait([one.scores], SLICE)
                self._tell()
                self.system.check()
        self.under_way = None
        scores = agreement.shared(one.scores.result())
        self.evaluated = one.mark.done
        log(self._evaluation_rows(scores, one.mark))
        if one.mark.done == self.system.iterations:
            self.final = scores
        if self.lead and (told := evaluation.cut_short(scores, self.config.run.eval_steps)):
            print(f"boonta: WARNING: {told}", file=sys.stderr)
        score = evaluation.mean(scores)
        better = score > self.best  # NaN, where no episode ended, is not
        self.best = score if better else self.best
        # A checkpoint later than what is in replay would be gone on from without it.
        if one.save or (better and not (self.config.run.save_replay and self.system.replaying)):
            self._held = None if better else self._held
            facts = one.facts | {"best": self.best, "evaluated": self.evaluated}
            scored = Scored(self.system.at(one.mark.done), one.state, facts, score)
            if not one.save and self._soon():
                # Training goes on with the buffers of the state.
                self._held = scored._replace(state=jax.tree.map(jnp.copy, one.state))
                return
            with self.parts.of("saving"):
                self._save_held()
                self.checkpoints.save(*scored)
            self._saved = (one.mark.done, time.monotonic())

    def _save_held(self) -> None:
        """Save the best so far, if it has waited for that."""
        if self._held:
            held, self._held = self._held, None
            self.checkpoints.save(*held)

    def _restored(self) -> PyTree:
        try:
            fresh = self.system.start()
            found = self.checkpoints.restore(self.system.rest(fresh))
        except Refused:
            raise
        except (FileNotFoundError, ValueError) as error:
            raise Failed(str(error)) from error
        for message in found.passed_over:
            print(f"boonta: WARNING: {message}; going on from the one before", file=sys.stderr)
        steps, before = int(found.facts["env_steps"]), int(found.facts["iterations"])
        if before > self.system.iterations:
            raise Refused(
                f"--steps must be at least {steps}, which the run in {self.folder} has made already, got "
                f"{self.config.run.steps}"
            )
        if found.passed_over:
            self.checkpoints.set_aside(after=steps)
        self.mark = Mark(*(kind(found.facts[key]) for key, kind in FACTS.items()))
        self.best = float(found.facts["best"])
        self.evaluated = int(found.facts.get("evaluated", self.mark.done))
        self._saved = (self.mark.done, time.monotonic())
        self.logged, self.interval = (
            Mark(*found.facts.get("logged", self.mark)),
            totals.from_json(found.facts.get("interval")),
        )
        print(f"boonta: going on from step {steps} of {self.folder}", file=sys.stderr)
        return self._joined(found.state, fresh, steps, found.facts.get("system", found.facts))

    def _joined(self, rest: PyTree, fresh: PyTree, steps: int, facts: dict[str, Any]) -> PyTree:
        """With the replays of that step, if they are there."""
        if not self.system.replaying:
            return self.system.joined(rest, fresh, None, facts)
        arrays, why = self.replays.restore(steps)
        if arrays is not None:
            try:
                return self.system.joined(rest, fresh, arrays, facts)
            except (KeyError, ValueError) as error:
                why = str(error)
        print(f"boonta: WARNING: replay begins empty: that of step {steps} is not to be had ({why})", file=sys.stderr)
        return self.system.joined(rest, fresh, None, facts)

    def _facts(self) -> dict[str, Any]:
        facts = dict(zip(FACTS, self.mark, strict=True)) | {"best": self.best, "evaluated": self.evaluated}
        return facts | {
            "logged": list(self.logged),
            "interval": totals.to_json(self.interval),
            "system": self.system.facts(),
        }

    def _save_all(self) -> None:
        """The state as it is now, with its replays, of which there are no others."""
        steps = self.system.at(self.mark.done)
        with self.parts.of("saving"):
            if kept := self.config.run.save_replay and self.system.replaying:
                with self.system.replays(self.state) as arrays:
                    self.replays.save(steps, arrays)
            self._save_held()
            self.checkpoints.save(steps, self.system.rest(self.state), self._facts(), None)
            self._saved = (self.mark.done, time.monotonic())
            if kept:
                self.replays.forget_all_but(steps)

    def _tell(self) -> None:
        for notice in self.system.notices():
            if notice in self._unclosed:  # what cannot be closed is told of once, not time and again
                continue
            if "close() raised" in notice:
                self._unclosed.add(notice)
            print(f"boonta: WARNING: {printable(notice)}", file=sys.stderr)

    def _check(self, made: Totals, logged: int) -> None:
        if self.config.run.on_nan == "ignore" or not made.bad.any():
            return
        at = np.where(made.bad > 0, made.bad_at, np.iinfo(np.int32).max)
        member = int(np.argmin(at))
        name = self.system.tensors()[int(made.bad[member]) - 1]
        step = self.system.at(logged + int(at[member]))
        who = f" of {self.system.members[member].name}" if len(self.system.members) > 1 else ""
        kept = self.checkpoints.steps()
        last = (
            f"the last good checkpoint is {self.folder / FOLDER / str(kept[-1])}"
            if kept
            else "no checkpoint was made yet"
        )
        seen = name.startswith(("observation", "reward"))
        drop = ", `--on-nan drop` makes such environments of the host anew" if seen else ""
        name = f"{self.system.spec.name}: {name}" if seen else name
        raise Failed(f"{name}{who} is not finite at step {step}; {last}; `--on-nan ignore` goes on regardless{drop}")

    def _warn_of_clipping(self, rows: list[dict[str, Any]]) -> None:
        """Once, where values are learned that lie beyond what the network can say."""
        share = max((row[CLIPPED] for row in rows if row.get(CLIPPED, 0.0) > 0.0), default=0.0)  # NaN is none
        if self.clipping or not self.lead or not share > MOST_CLIPPED:
            return
        self.clipping = True
        planner = hasattr(self.config.agent_settings, "support_limit")
        way = "raise agent.support_limit, and agent.support_bins" if planner else "widen agent.value_low to value_high"
        print(
            f"boonta: WARNING: {share:.0%} of the values to be learned at step {rows[0]['env_steps']} lie beyond "
            f"what the network can say, and are clipped; {way}",
            file=sys.stderr,
        )

    @contextmanager
    def _log(self) -> Iterator[Log]:
        if not self.lead:
            yield lambda rows: None
            return
        with MetricsLog(self.folder) as log:
            log.truncate_after(self.system.at(self.mark.done))
            yield log.extend

    def _where(self, member: int, mark: Mark) -> dict[str, Any]:
        steps = self.system.at(mark.done)
        row = {"env_steps": steps, "frames": steps * self.system.spec.frames_per_step, "seconds": mark.seconds}
        if len(self.system.members) > 1:
            row |= {"member": member, "member_name": self.system.members[member].name}
        return row

    def _rows(self) -> list[dict[str, Any]]:
        assert self.interval
        rows = []
        for i in range(len(self.system.members)):
            finished = counting.Finished(*(x[i] for x in self.interval.finished))
            rows.append(
                self._where(i, self.mark)
                | {"updates": self.mark.updates, "steps_per_second": self._speed()}
                | counting.summary(finished)
                | totals.means(self.interval, i)
            )
        return rows

    def _evaluation_rows(self, scores: evaluation.Scores, mark: Mark) -> list[dict[str, Any]]:
        return [
            self._where(i, mark)
            | {f"eval/{k.removeprefix('eval_')}": v for k, v in evaluation.statistics(_of(scores, i)).items()}
            | {"eval/length_mean": float(np.mean(scores.lengths[i]))}
            for i in range(len(self.system.members))
        ]

    def _summary(self, scores: evaluation.Scores) -> dict[str, Any]:
        steps, members = self.system.at(self.mark.done), self.system.members
        each = [evaluation.statistics(_of(scores, i)) for i in range(len(members))]
        summary = evaluation.statistics(scores) | {
            "env_steps": steps * len(members),
            "seconds": round(self.mark.seconds, 3),
            "steps_per_second": round(steps * len(members) / max(self.mark.seconds, 1e-9), 1),
            "updates": self.mark.updates,
            "compile_seconds": round(self.system.compile_seconds, 3),
        }
        summary["members"] = [{"name": m.name, **one} for m, one in zip(members, each, strict=True)]
        if len(members) > 1:
            means = [one["eval_return_mean"] for one in each]
            summary["eval_return_std_over_members"] = None if None in means else float(np.std(means))
        return summary


def _of(scores: evaluation.Scores, member: int) -> evaluation.Scores:
    return evaluation.Scores(*(x[member] for x in scores))
