"""What the command line understands."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, get_args

from boonta.core.names import nearest_names, unknown
from boonta.core.settings import WorkerKind
from boonta.experiments.tables import meant

USAGE = 2  # the exit code where it does not
VERY_LIKE = 0.75  # how like an option must be for it to be meant, and not a setting


def parser(commands: Mapping[str, Callable[[argparse.Namespace], int]]) -> argparse.ArgumentParser:
    """What the command line understands; `command` of what it parses is the function of that name."""
    made = _Parser(prog="boonta", description="Write an agent once; run it on one chip, a pod, or a fleet.")
    made.add_argument("--version", action="version", version=f"boonta {version('boonta')}")
    subparsers = made.add_subparsers(metavar="COMMAND", dest="named", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=text, description=text)
        sub.set_defaults(command=commands[name])
        return sub

    train = command("train", "Train an agent; without names PPO, on CartPole, on Anakin.")
    _add_training(train)
    train.add_argument("--on", metavar="ARCHITECTURE", help="where it runs: anakin, sebulba, seed, fleet, split")
    train.set_defaults(place={})
    train.add_argument("--synchronous", action="store_true", help="sebulba: acting waits for every update")
    serve = command("serve", "Train on SEED with environments that come by `boonta actor`, from anywhere.")
    _add_training(serve)
    serve.add_argument(
        "--address", metavar="ADDRESS", help="where to listen: unix:PATH or HOST:PORT (default: 127.0.0.1:8472)"
    )
    _add_security(serve, "clients' certificates must be signed by")

    actor = command("actor", "Step environments for a server (`boonta serve`, or `--on seed`), from anywhere.")
    actor.add_argument("env", help="family:Name of `boonta list envs`, or module:factory")
    actor.add_argument("--server", metavar="ADDRESS", required=True, help="unix:PATH or HOST:PORT; several with commas")
    actor.add_argument("--envs", metavar="K", type=int, default=1, help="environments (default: 1)")
    actor.add_argument(
        "--first", metavar="I", type=int, default=-1, help="global index of the first (default: any free)"
    )
    actor.add_argument("--name", default="", help="what the server calls it (default: host name and process)")
    actor.add_argument(
        "--set", metavar="env.KEY=VALUE", action="append", default=[], dest="assignments", help="of the environment"
    )
    actor.add_argument("--workers", choices=get_args(WorkerKind), default="auto")
    actor.add_argument("--worker-count", metavar="N", type=int, default=0, help="0: one per core")
    actor.add_argument(
        "--worker-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="for an answer of one (default: 60)",
    )
    actor.add_argument("--tied", action="store_true", help="end with standard input, and with no signal but SIGKILL")
    actor.add_argument(
        "--patience", metavar="SECONDS", type=float, help="without a server, or with a host that is none (default: 300)"
    )
    _add_security(actor, "the server's certificates must be signed by")

    worker = command("split-worker", "Be one process of a run on split.")
    worker.add_argument("--role", metavar="ROLE/I", required=True, help="environment/I, or a learner such as value/I")
    worker.add_argument(
        "--transport", metavar="WHERE", required=True, help="what the run's processes share: redis://HOST:PORT/DATABASE"
    )
    worker.add_argument("--run", metavar="NAME", default="", help="of those there are (default: the only one)")
    worker.add_argument(
        "--config", metavar="FILE", type=Path, help="the run's config.toml (default: as Redis knows it)"
    )
    for name in ("agent", "env"):
        worker.add_argument(
            f"--{name}", metavar="MODULE:FACTORY", help=f"the run's {name}, where it is of a module of your own"
        )
    worker.add_argument("--insecure", action="store_true", help="a Redis of another machine may be in clear text")
    worker.add_argument("--life", metavar="N", type=int, help="of its environments (default: one that was not yet)")
    worker.add_argument("--tied", action="store_true", help="end with standard input, and with no signal but SIGKILL")
    for name, kind in {"coordinator": str, "processes": int, "process": int}.items():
        worker.add_argument(f"--{name}", type=kind, help="of the processes that share a learner")

    evaluate = command("eval", "Evaluate a run: greedy episodes.")
    evaluate.add_argument("run", type=Path)
    evaluate.add_argument("--episodes", metavar="N", type=int, default=100, help="greedy episodes (default: 100)")
    evaluate.add_argument("--json", action="store_true", help="one JSON object as the last line")
    watch = command("watch", "Film one greedy episode of a run.")
    watch.add_argument("run", type=Path)
    watch.add_argument(
        "--tree", action="store_true", help="instead, a page of what an agent that plans looked at before each move"
    )
    watch.add_argument(
        "--out", metavar="FILE", type=Path, help="a .gif or an .mp4 (default: RUN/watch.gif); a tree's .html"
    )
    watch.add_argument("--steps", metavar="N", type=int, default=1000, help="at most so many steps (default: 1000)")
    watch.add_argument("--seed", metavar="S", type=int, default=0, help="of the episode (default: 0)")
    match = command("match", "Play a run's agent against an opponent, sides swapped.")
    match.add_argument("run", type=Path)
    match.add_argument(
        "opponent", metavar="OPPONENT", help="RUN, random, mcts:N, solver; or every: all that an opponent can do"
    )
    match.add_argument("--games", metavar="N", type=int, default=200, help="an even number (default: 200)")
    match.add_argument(
        "--opening", metavar="N", type=int, help="random moves before they play (default: 4 between runs, else 0)"
    )
    match.add_argument("--seed", metavar="S", type=int, default=0, help="of what is random (default: 0)")
    match.add_argument("--json", action="store_true", help="one JSON object as the last line")
    play = command("play", "Play a board game against a run's agent, in this terminal.")
    play.add_argument("run", type=Path)
    play.add_argument("--second", action="store_true", help="let the agent move first")
    for sub in (evaluate, watch, match, play):
        sub.add_argument(
            "--checkpoint", metavar="WHICH", default="latest", help="latest (default), best, or a step count"
        )
        sub.add_argument("--member", metavar="I", type=int, default=0, help="of several seeds or settings (default: 0)")
    for sub in (train, serve, evaluate, watch, match, play):
        sub.add_argument("--trust", action="store_true", help="agree to the modules and places that a run folder names")
    report = command("report", "Write one self-contained HTML page about runs.")
    report.add_argument("runs", nargs="+", type=Path)
    report.add_argument("--out", metavar="FILE.html", type=Path)
    listing = command("list", "List what there is.")
    listing.add_argument("what", nargs="?", choices=("agents", "envs", "architectures", "recipes"))
    bench = command("bench", "Measure: run a script of benchmarks/ of a clone of the repository.")
    bench.add_argument("name", help="such as anakin.peers")
    bench.add_argument("arguments", nargs=argparse.REMAINDER)
    doctor = command("doctor", "Show devices, versions and missing extras, or what is in a run folder.")
    doctor.add_argument("run", nargs="?", type=Path)
    doctor.add_argument("--json", action="store_true")
    return made


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, and guesses no options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = super().parse_known_args(args, namespace)
        if unknown := next((word for word in left if word.startswith("-")), None):
            self.error(self._unknown(unknown, left))
        return found, left

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}{'' if message.endswith('?') else ';'} see `{self.prog} --help`", file=sys.stderr)
        sys.exit(USAGE)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or str(action.metavar or action.dest)
            if action.dest == "named" and not nearest_names(value, action.choices):
                self.error(f"unknown COMMAND {value!r}: did you mean `boonta train {value}`?")
            self.error(str(unknown(name, value, action.choices)))

    def _unknown(self, option: str, left: list[str]) -> str:
        """What is to be said of an option that there is not."""
        option, _, value = option.partition("=")
        known = self._option_string_actions
        if near := nearest_names(option, known, VERY_LIKE):
            return f"there is no option {option}: did you mean {near[0]}?"
        if not option.startswith("--") or "--set" not in known:
            return f"there is no option {option}"
        following = left[left.index(option) + 1 :][:1] if option in left else []
        value = value or next((word for word in following if not word.startswith("-")), "VALUE")
        setting = meant(option[2:]) or "agent.KEY"
        return f"there is no option {option}; settings are given as in --set {setting}={value}"


def _add_training(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("agent", nargs="?", help="an agent of `boonta list agents`, or module:factory")
    sub.add_argument("env", nargs="?", help="family:Name of `boonta list envs`, or module:factory")
    sub.add_argument("--steps", metavar="N", type=_count, help="environment steps of one member")
    sub.add_argument("--seed", metavar="S", type=int, help="the first seed")
    sub.add_argument("--seeds", metavar="K", type=int, help="train K seeds")
    sub.add_argument("--parent", type=int, help=argparse.SUPPRESS)  # the process with which this one ends
    sub.add_argument(
        "--sweep", metavar="KEY=V1,V2", action="append", help="train a grid of a setting: an agent's, or TABLE.KEY"
    )
    sub.add_argument("--jobs", metavar="N", type=int, help="runs at a time, where one program cannot hold all (1)")
    sub.add_argument("--out", metavar="DIR", type=Path, help="the run folder (default: runs/AGENT-ENV-TIME)")
    sub.add_argument("--config", metavar="FILE", help="a TOML file, the name of a recipe, or none for bare defaults")
    sub.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="any setting, repeatable",
    )
    sub.add_argument(
        "--resume", metavar="RUN", type=Path, help="go on where the run in this folder was; --steps is its new total"
    )
    sub.add_argument("--from", metavar="RUN", type=Path, dest="source", help="begin with the networks of another run")
    sub.add_argument("--checkpoint", metavar="WHICH", help="of --from: latest (default), best, or a step count")
    sub.add_argument("--member", metavar="I", type=int, help="of --from, if it has several (default: 0)")
    sub.add_argument("--devices", metavar="N", help="devices to use, or auto")
    sub.add_argument(
        "--actors", metavar="DEVICES", help="sebulba: devices that act, a count or places as [0,1]; seed: processes"
    )
    sub.add_argument("--inference", metavar="DEVICES", help="seed: devices that act, likewise")
    sub.add_argument(
        "--cluster", metavar="ADDRESS", nargs="?", const="auto",
        help="fleet, split: of a Ray cluster (default: the one that this machine is part of)",
    )  # fmt: skip
    sub.add_argument(
        "--transport",
        metavar="WHAT",
        help="split: what carries experience and parameters: shm, redis://HOST:PORT/DATABASE",
    )
    sub.add_argument("--insecure", action="store_true", help="split: a Redis of another machine may be in clear text")
    sub.add_argument("--learners", metavar="DEVICES", help="sebulba, seed: devices that learn, likewise")
    sub.add_argument("--trace", metavar="FILE", help="sebulba, seed: write a timeline of all threads")
    sub.add_argument("--on-nan", choices=("stop", "drop", "ignore"), help="what to do about what is not finite")
    sub.add_argument("--json", action="store_true", help="one JSON object as the last line")
    sub.add_argument("--coordinator", metavar="HOST:PORT", help="several hosts: the address of the first")
    sub.add_argument("--processes", metavar="N", type=int, help="several hosts: how many")
    sub.add_argument("--process", metavar="I", type=int, help="several hosts: which this is, from 0")
    sub.add_argument(
        "--distributed", action="store_true", help="several hosts, found out from the cluster's environment"
    )


def _add_security(sub: argparse.ArgumentParser, authority: str) -> None:
    sub.add_argument("--certificate", metavar="FILE", default="", help="of this side, PEM")
    sub.add_argument("--key", metavar="FILE", default="", help="its private key, PEM")
    sub.add_argument("--authority", metavar="FILE", default="", help=f"PEM of what {authority}")
    sub.add_argument(
        "--token", default=os.environ.get("BOONTA_TOKEN", ""), help="shared secret (default: $BOONTA_TOKEN)"
    )


def _count(text: str) -> int:
    """A number of steps, also as 1e6, 1_000_000 or 1M."""
    scale = {"k": 1e3, "m": 1e6, "g": 1e9}.get(text[-1:].lower(), 1.0)
    try:
        value = float((text if scale == 1.0 else text[:-1]).replace("_", "")) * scale
    except ValueError:
        value = 0.5
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(value)
