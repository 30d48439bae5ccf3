"""A training run, from configuration to result, and what `run.json` tells of it."""

import datetime
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax

from boonta.core.faults import Exhausted
from boonta.core.settings import Refused
from boonta.experiments import agreement, files, machine, own_folder, systems, trust
from boonta.experiments import config as configuration
from boonta.experiments import record as records
from boonta.experiments.agreement import Interrupted
from boonta.experiments.checkpoint import FOLDER
from boonta.experiments.claim import NAME as LOCK
from boonta.experiments.claim import claimed, fresh
from boonta.experiments.config import Config
from boonta.experiments.defaults import FEW, FEW_GRADIENTS
from boonta.experiments.driver import Driver
from boonta.experiments.parts import Parts, age
from boonta.experiments.systems import Failed, protocol
from boonta.experiments.warm_start import Source, networks_of

TOLD = ("unroll", "batch", "learning_rate")  # of the agent, where no recipe sets them


class Result(NamedTuple):
    """What a run ended with: the object that `--json` prints, the run folder, and where the time went."""

    summary: dict[str, Any]
    folder: Path
    parts: Parts | None


def train(
    config: Config, folder: Path, resume: bool = False, quiet: bool = False, source: Source | None = None,
    own: bool = False,
) -> Result:  # fmt: skip
    """Train to the end, or go on where the run in `folder` was.

    Args:
        config: Config.
        folder: the run folder.
        resume: whether to go on.
        quiet: no progress.
        source: a run whose networks this one begins with.
        own: whether the folder is to be nobody's before; where it is somebody's, one of a name beside it is taken.

    Raises:
        Failed: something stopped the run; `run.json` and the message say what.
        Interrupted: SIGINT or SIGTERM; the run was saved.
        ValueError: the configuration cannot run here.
    """
    system = systems.build(config)
    own_folder.sweep()
    folder = fresh(folder) if own else folder
    folder.mkdir(parents=True, exist_ok=True)
    with claimed(folder) if jax.process_index() == 0 else nullcontext():
        return _train(config, folder, system, resume, quiet, source)


def _train(
    config: Config, folder: Path, system: systems.System, resume: bool, quiet: bool, source: Source | None
) -> Result:
    lead = jax.process_index() == 0
    now: dict[str, Any] = {
        "versions": machine.versions(),
        "devices": system.describe(),
        "machine": machine.machine(),
        "commit": machine.commit(),
        "command": _command(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    before = configuration.load(folder / "config.toml").run.steps if resume else config.run.steps
    record: dict[str, Any] = now | {"seed": config.run.seed, "reading": protocol.READING}
    if resume:  # what stands in the folder is touched only once it is clear that the run can go on
        protocol.check_reading(folder, config, system)
        record = records.read(folder)
        record["resumed"] = [*record.get("resumed", []), now]
    others: list[str] = []
    begun = resume and record.get("status") != "waiting"  # that of a member whose turn has come
    try:
        if source:
            try:
                system.given, others = networks_of(source, system)
            except (FileNotFoundError, ValueError) as error:
                raise Refused(str(error)) from error
            record["from"] = {key: str(value) for key, value in source._asdict().items()}
        with _explained():
            run = Driver(config, folder, system, begun, quiet)
    except Refused:
        if not resume:
            _emptied(folder)
        raise
    now["devices"] = record["devices"] = system.describe()  # starting may have chosen anew
    if record.get("status") == "done" and run.mark.done == system.iterations:
        print("boonta: it has made all its steps already", file=sys.stderr)
        known = {"eval_cut_short": 0}  # older runs do not say
        return Result(known | record["result"] | {"out": str(folder), "status": "done"}, folder, None)
    record |= {"status": "running", "cause": None}
    text = configuration.write(config)
    trust.seal(folder, text, config.tables())  # on each host, whose users may have keys of their own
    if lead:
        files.write_text(folder / "config.toml", text)
        files.write_json(folder / "run.json", record)
        if resume and config.run.steps != before:
            share = system.at(run.mark.done) / config.run.steps
            print(
                f"boonta: the run goes on to {config.run.steps:,} steps, not {before:,}; its schedules (step sizes, "
                f"exploration) are of the new total, of which {share:.0%} is done",
                file=sys.stderr,
            )
        if source:
            not_taken = f"; its own are {', '.join(others)}, which are of another shape there" if others else ""
            print(f"boonta: it begins with the networks of {source.folder}{not_taken}", file=sys.stderr)
        if not quiet:
            recipe = f", recipe {config.run.recipe}" if config.run.recipe else ""
            print(f"boonta: {config.agent} on {config.env}, {config.architecture}{recipe} -> {folder}", file=sys.stderr)
            print(f"boonta: {_planned(config, system)}", file=sys.stderr)
            for remark in system.remarks:
                print(f"boonta: {remark}", file=sys.stderr)
            if "split" in now["devices"]:
                print(f"boonta: {now['devices']['split']}", file=sys.stderr)
            if (least := system.at(1)) > config.run.steps:
                print(
                    f"boonta: {config.run.steps:,} steps are fewer than one iteration, with what replay needs before "
                    f"it; it makes {least:,}",
                    file=sys.stderr,
                )

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
            summary = run.go(end)
    except Interrupted as stop:
        end("interrupted", str(stop))
        agreement.together(True)
        raise
    except KeyboardInterrupt:
        end("interrupted", "a second signal did not wait; go on from the last checkpoint with --resume")
        raise
    except Refused as error:
        end("failed", str(error))
        if lead and not resume and not _made(folder):
            shutil.rmtree(folder)  # which a better command may want
        raise
    except OSError as error:
        message = str(error) or type(error).__name__
        end("failed", message)
        raise Failed(message) from error
    except Failed as error:
        end("failed", str(error))
        raise
    except BaseException as error:
        end("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        system.close()
    if not summary["updates"] and lead:
        print("boonta: WARNING: no update was made: there was not enough to learn from", file=sys.stderr)
    end("done", None, summary | timed(run.parts))
    agreement.together(True)  # hosts end together
    return Result(summary | timed(run.parts) | {"out": str(folder), "status": "done"}, folder, run.parts)


def timed(parts: Parts) -> dict[str, Any]:
    """The seconds of this command so far, and its parts."""
    return {"wall_seconds": round(age(), 3), "parts": parts.whole()}


def reported(result: Result) -> dict[str, Any]:
    """The summary with all the time that the command took, which is kept in `run.json` too, where it made anything."""
    if not result.parts:
        return result.summary
    record, times = records.read(result.folder), timed(result.parts)
    files.write_json(result.folder / "run.json", record | {"result": record["result"] | times})
    return result.summary | times


def _planned(config: Config, system: systems.System) -> str:
    """How much a run learns from, and a warning where that is hopeless."""
    updates = system.iterations * system.updates
    each = getattr(config.agent_settings, "epochs", 1) * getattr(config.agent_settings, "minibatches", 1)
    told = f"{system.environments:,} environments, {updates:,} updates"
    told += f" of {each} gradient steps each" if each > 1 else ""
    if updates < FEW and updates * each < FEW_GRADIENTS:
        told += "; WARNING: so few may teach it little: raise run.steps, or lower agent.batch or agent.unroll"
    if not config.run.recipe:
        said = [(key, getattr(config.agent_settings, key, None)) for key in TOLD]
        told += "; no recipe" + "".join(f", {key} {value:g}" for key, value in said if isinstance(value, float | int))
    return told


def _emptied(folder: Path) -> None:
    """Remove a folder in which nothing was begun, that a better command may want."""
    with suppress(OSError):
        (folder / FOLDER).rmdir()
    with suppress(OSError):
        (folder / LOCK).unlink()
        folder.rmdir()


def _made(folder: Path) -> bool:
    """Whether a run has come far enough to have told anything."""
    metrics = folder / "metrics.jsonl"
    return any((folder / FOLDER).glob("[0-9]*")) or (metrics.is_file() and metrics.stat().st_size > 0)


def _command() -> str:
    """The command of this process, without what is secret."""
    secret = os.environ.get("BOONTA_TOKEN")
    return shlex.join(word.replace(secret, "***") if secret else word for word in sys.argv)


@contextmanager
def _explained() -> Iterator[None]:
    """What no message of ours explains fails the run, with its traceback."""
    try:
        yield
    except (Failed, Interrupted, Refused, OSError):
        raise
    except Exhausted as error:
        raise Failed(str(error)) from error
    except Exception as error:
        if message := agreement.lost(error):
            raise Failed(message) from error
        traceback.print_exc()
        raise Failed(f"{type(error).__name__}: {error}") from error
