"""The command line: parses, resolves, calls. JAX is imported only after the devices have been decided."""

import argparse
import dataclasses
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from boonta.arguments import USAGE, parser
from boonta.core.names import canonical
from boonta.envs.errors import Failing
from boonta.experiments import process

SETTINGS = 8  # of a sweep that are told at its end
FIRST = """Boonta: write an agent once; run it on one chip, a pod, or a fleet.

  boonta train                              PPO on CartPole
  boonta train sac gym:Pendulum-v1          an agent on an environment
  boonta watch runs/NAME                    a film of what it learned
  boonta report runs/NAME runs/OTHER        curves on one page
  boonta list envs                          also agents, architectures, recipes
  boonta doctor                             what is installed here

`boonta --help` lists all commands, and `boonta train --help` all options of one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 failed, 2 usage, 128 + signal where one asked it to end."""
    process.mend_streams()
    if not (sys.argv[1:] if argv is None else argv):
        print(FIRST)
        return 0
    args = parser(COMMANDS).parse_args(argv)
    try:
        if getattr(args, "trust", False):
            _trust(args)
        return args.command(args)
    except Failing as error:
        process.last_word(f"boonta: {error}")
        return 1
    except (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError, ImportError) as error:
        print(f"boonta: {process.printable(error)}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"boonta: {process.printable(error)}", file=sys.stderr)
        return 1
    except (RuntimeError, AssertionError) as error:
        if not process.no_backend(error):
            raise
        print(f"boonta: {process.no_backend(error)}", file=sys.stderr)
        return 1


def _trust(args: argparse.Namespace) -> None:
    """Seal the run folders that a command names."""
    from boonta.experiments import config as configuration
    from boonta.experiments import members, runs

    folders = [getattr(args, key, None) for key in ("run", "resume", "source")]
    if Path(getattr(args, "opponent", "random")).is_dir():
        folders.append(Path(args.opponent))
    if not any(folders):
        raise ValueError("--trust is for run folders, and this command names none")
    named_here = [folder for folder in folders if folder]
    each = [one for folder in named_here if members.there(folder) for one in members.folders(folder)]
    for folder in (*named_here, *each):
        if named := configuration.trusted(runs.config_of(folder)):
            print(f"boonta: {folder} is trusted from now on: {', '.join(named)}", file=sys.stderr)


def _actor(args: argparse.Namespace) -> int:
    import socket

    if args.tied:
        process.tie()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # accelerators are the server's, also from compiled environments
    from boonta import envs
    from boonta.core.faults import Exhausted
    from boonta.core.host import Host, Workers
    from boonta.envs.trials import stepped_by
    from boonta.transport.actor import Actor, Lost, act
    from boonta.transport.security import Security, check_address, check_host

    settings = {}
    for text in args.assignments:
        key, separator, value = text.partition("=")
        if not separator or not key.startswith("env."):
            raise ValueError(f"--set {text}: must be env.KEY=VALUE")
        settings[key.removeprefix("env.")] = _value(value)
    patient = args.patience is not None
    args.patience = args.patience if patient else 300.0
    for key, low in {"envs": 1, "worker_count": 0, "worker_timeout": 0.1, "patience": 0.0}.items():
        if not getattr(args, key) >= low:
            raise ValueError(f"--{key.replace('_', '-')} must be at least {low}, got {getattr(args, key)}")
    addresses, unknown = tuple(args.server.split(",")), []
    for address in addresses:
        check_address(address)
    for address in addresses:
        try:
            check_host(address, args.patience, patient)
        except ValueError as error:
            unknown.append(error)
    if len(unknown) == len(addresses):  # of several one is enough
        raise unknown[0]
    security = Security(args.certificate, args.key, args.authority, args.token)
    security.bytes()
    name = args.name or f"{socket.gethostname()}-{os.getpid()}"
    workers = Workers(args.workers, args.worker_count, args.worker_timeout)
    with stepped_by(workers):
        made = envs.make(args.env, **settings)
    if not isinstance(made, Host):
        from boonta.envs.served import serve

        made = serve(made)
    try:
        act(
            made,
            Actor(addresses, args.envs, args.first, name, security, workers, args.patience, quiet=args.tied),
        )
    except (Lost, Exhausted) as error:
        print(f"boonta: {process.printable(error)}", file=sys.stderr)
    return 1


def _serve(args: argparse.Namespace) -> int:
    if args.token:
        os.environ["BOONTA_TOKEN"] = args.token  # not a setting: what is secret stays out of run folders
    args.on, args.synchronous = "seed", False
    address = args.address or ("" if args.resume else "127.0.0.1:8472")
    files = {key: getattr(args, key) for key in ("certificate", "key", "authority")}
    files = {key: str(Path(value).resolve()) for key, value in files.items() if value}
    args.place = ({"address": address} if address else {}) | files
    args.assignments += ["architecture.local=false", *(f"architecture.{k}={v}" for k, v in args.place.items())]
    return _train(args)


def _split_worker(args: argparse.Namespace) -> int:
    if args.tied:
        process.tie()
    from boonta.core.exchange import Disconnected
    from boonta.experiments.systems.split import work
    from boonta.experiments.systems.split_processes import invited

    hosts = process.Hosts(args.coordinator, args.processes, args.process)
    text = args.config.read_text("utf-8") if args.config else None
    own = {"agent": args.agent, "env": args.env}
    try:
        work(args.role, invited(args.transport, args.role, text, args.run, args.life, hosts, own, args.insecure))
    except Disconnected as error:
        print(f"boonta: {args.role}: {process.printable(error)}", file=sys.stderr)
        return 1
    return 0


def _train(args: argparse.Namespace) -> int:
    from boonta.experiments import claim, members, record
    from boonta.experiments import config as configuration

    if args.parent:
        process.end_with(args.parent)
    _named(args)
    run = {"steps": args.steps, "seed": args.seed, "seeds": args.seeds, "on_nan": args.on_nan, "sweep": args.sweep}
    assignments = list(args.assignments)
    if args.source is None and (args.checkpoint, args.member) != (None, None):
        raise ValueError("--checkpoint and --member are of --from RUN, whose networks a new run begins with")
    if args.source and args.resume:
        raise ValueError("--from and --resume do not go together: a run begins anew, or it goes on")
    if args.resume:
        if not (args.resume / "config.toml").is_file():
            raise FileNotFoundError(f"--resume {args.resume}: not a run folder, it has no config.toml")
        config = record.resumed(args.resume, "--resume ")
        architecture = args.on or config.architecture
    else:
        architecture = configuration.architecture_for(args.agent, args.env, args.on, args.config, assignments)
    if args.devices is not None:
        assignments.append(f"architecture.devices={0 if args.devices == 'auto' else args.devices}")
        if args.devices == "auto" and architecture == "sebulba":
            assignments.append("architecture.measure=true")
    for key in ("actors", "inference", "learners", "trace", "cluster", "transport"):
        if getattr(args, key) is not None:
            assignments.append(f"architecture.{key}={getattr(args, key)}")
    if args.insecure:
        assignments.append("architecture.insecure=true")
    if args.synchronous:
        if architecture != "sebulba":
            raise ValueError(f"--synchronous is for sebulba, got --on {architecture}")
        assignments.append("architecture.lag=0")
    if args.resume:
        if args.steps is not None:
            if members.there(args.resume):
                raise ValueError(f"--steps {args.steps}: give it to one member, as {args.resume}/{members.FOLDER}/0")
            if args.steps < 1:
                raise ValueError(f"--steps must be at least 1, got {args.steps}")
            config = config._replace(run=dataclasses.replace(config.run, steps=args.steps))
            run["steps"] = None
        # What changes no number may change: how to go on after a NaN, and where others are to be found.
        if args.on_nan:
            config = config._replace(run=dataclasses.replace(config.run, on_nan=args.on_nan))
        found = {key: getattr(args, key) for key in ("cluster", "transport") if getattr(args, key) is not None}
        place = args.place | found | ({"insecure": True} if args.insecure else {})
        moved = {key: value for key, value in place.items() if hasattr(config.architecture_settings, key)}
        config = config._replace(architecture_settings=dataclasses.replace(config.architecture_settings, **moved))
        asked = configuration.changed(config, args.agent, args.env, args.on, args.config, assignments, run)
        if asked:
            raise ValueError(f"--resume goes on with the settings of the run; these would change: {'; '.join(asked)}")
        folder = args.resume
        if args.out and args.out.resolve() != folder.resolve():
            raise ValueError(f"--out {args.out}: a resumed run stays in its folder {folder}")
        if members.there(folder):
            return _members(args, folder)
    else:
        config = configuration.resolve(args.agent, args.env, architecture, args.config, assignments, run)
        name = f"{config.agent}-{config.env}-{time.strftime('%Y%m%d-%H%M%S')}".replace(":", "-").replace("/", "-")
        folder = args.out or Path("runs") / name
        if args.out and folder.exists() and not (folder.is_dir() and claim.blank(folder) and not claim.in_use(folder)):
            raise FileExistsError(_occupied(folder))
        if configuration.apart(config):
            return _begin_members(args, config, folder, architecture, assignments, run)
        if args.jobs is not None:
            raise ValueError(f"--jobs {args.jobs}: these members are trained side by side, in one program")
    hosts = process.Hosts(args.coordinator, args.processes, args.process, args.distributed)
    if hosts.several() and not (args.out or args.resume):
        raise ValueError("several hosts need --out DIR: one folder that all of them see")
    process.start(config.architecture_settings.devices, hosts)
    from boonta.experiments import files, report, training
    from boonta.experiments.warm_start import Source

    try:
        source = Source(args.source, args.checkpoint or "latest", args.member or 0) if args.source else None
        own = not (args.out or args.resume)
        result = training.train(config, folder, bool(args.resume), quiet=args.json, source=source, own=own)
    except training.Interrupted as stop:
        print(f"boonta: {stop}", file=sys.stderr)
        return 128 + stop.signal
    except training.Failed as failure:
        process.last_word(f"boonta: {failure}")
        return 1
    folder = result.folder
    if not process.leads():
        return 0
    summary: dict[str, Any] = {}

    def timed() -> dict[str, Any]:
        summary.update(training.reported(result))
        return summary

    try:
        with result.parts.of("saving") if result.parts else nullcontext():
            page = report.write_report([folder], timed=timed)
    except KeyboardInterrupt:
        print(f"boonta: the run is done, but not its report: boonta report {folder}", file=sys.stderr)
        raise
    if args.json:
        print(json.dumps(files.plain(summary)))
    else:
        _tell(summary, page)
    return 0


def _tell(summary: dict[str, Any], page: Path) -> None:
    """How a run ended."""
    mean, std, episodes = (summary[f"eval_{key}"] for key in ("return_mean", "return_std", "episodes"))
    over, count = f"{episodes} episodes", len(summary["members"])
    if count > 1:
        std, over = summary["eval_return_std_over_members"], f"{count} members of {episodes // count} episodes each"
    told = "none" if mean is None else f"{_spread(mean, std)} over {over}"
    print(
        f"evaluation: {told}{_cut(summary)}\n{_by_setting(summary['members'])}"
        f"training:   {summary['env_steps']:,} steps in {summary['seconds']:.1f} s,"
        f" {summary['steps_per_second']:,.0f} steps/s\n"
        f"time:       {summary['wall_seconds']:.1f} s{_parts(summary)}\n"
        f"report:     {page}"
    )


def _spread(mean: float, deviation: float | None) -> str:
    """Of returns: more digits where they are small."""
    places = 1 if abs(mean) >= 10 else 3
    return f"{mean:.{places}f}" + (f" ± {deviation:.{places}f}" if deviation is not None else "")


def _by_setting(members: list[dict[str, Any]]) -> str:
    """A line for each setting of a sweep, the best first; nothing where seeds are all that differs."""
    from boonta.experiments.curves import mean_and_std, setting_of

    by: dict[str, list[float]] = {}
    for one in members:
        if one["eval_return_mean"] is not None:
            by.setdefault(setting_of(one["name"]), []).append(one["eval_return_mean"])
    if len(by) < 2:
        return ""
    best = sorted(by.items(), key=lambda item: -sum(item[1]) / len(item[1]))
    lines = []
    for name, values in best[:SETTINGS]:
        over = f" over {len(values)} seeds" if len(values) > 1 else ""
        lines.append(f"            {name}: {_spread(sum(values) / len(values), mean_and_std(values)[1])}{over}\n")
    if (left := len(by) - SETTINGS) > 0:
        lines.append(f"            and {left} more, in the report\n")
    return "".join(lines)


def _parts(summary: dict[str, Any]) -> str:
    """What the time was spent on."""
    told = [f"{seconds:.1f} {name}" for name, seconds in summary.get("parts", {}).items() if seconds >= 0.05]
    return f": {', '.join(told)}" if told else ""


def _begin_members(
    args: argparse.Namespace, config: Any, folder: Path, architecture: str, assignments: list[str], run: dict[str, Any]
) -> int:
    """Train members that are runs of their own."""
    from boonta.experiments import claim, members
    from boonta.experiments import config as configuration

    if args.source or process.Hosts(args.coordinator, args.processes, args.process, args.distributed).several():
        raise ValueError("several members of their own are trained on one host, and without --from")
    made = [
        configuration.resolve(
            args.agent, args.env, architecture, args.config, [*assignments, *point],
            run | {"seed": seed, "seeds": 1, "sweep": []},
        )
        for seed, point, _ in configuration.points(config)
    ]  # fmt: skip
    _check_jobs(args)
    if not args.out:
        folder = claim.fresh(folder)
    members.begin(folder, config, made)
    return _members(args, folder)


def _members(args: argparse.Namespace, folder: Path) -> int:
    from boonta.experiments import files, members, report

    _check_jobs(args)
    try:
        summary = members.train(folder, args.jobs or 1, args.json)
    except members.Stopped as stop:
        print(f"boonta: {stop}", file=sys.stderr)
        return 128 + stop.signal
    except members.Failed as failure:
        process.last_word(f"boonta: {failure}")
        return 1
    page = report.write_report([folder])
    if args.json:
        print(json.dumps(files.plain(summary)))
    else:
        _tell(summary, page)
    return 0


def _check_jobs(args: argparse.Namespace) -> None:
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")


def _named(args: argparse.Namespace) -> None:
    """Names in another case are meant; an environment in the agent's place is refused with the command that is meant.

    Raises:
        ValueError: it is.
    """
    from boonta.envs.registry import FAMILIES
    from boonta.experiments.registry import AGENTS, ARCHITECTURES

    args.agent = canonical(args.agent, AGENTS) if args.agent else None
    args.on = canonical(args.on, ARCHITECTURES) if args.on else None
    family, colon, _ = (args.agent or "").partition(":")
    if colon and family in FAMILIES:
        agent = canonical(args.env or "ppo", AGENTS)
        raise ValueError(f"{args.agent!r} is an environment: did you mean `boonta train {agent} {args.agent}`?")


def _cut(summary: dict[str, Any]) -> str:
    """What is to be said of episodes of an evaluation that did not come to their end."""
    return f" ({summary['eval_cut_short']} were cut short)" if summary["eval_cut_short"] else ""


def _occupied(folder: Path) -> str:
    from boonta.experiments import claim

    if not folder.is_dir():
        return f"--out {folder} is a file; name a folder"
    if whose := claim.in_use(folder):
        return f"--out {whose}"
    if not (folder / "config.toml").is_file():
        return f"--out {folder} is not empty, and no run is in it; name another folder"
    if not any((folder / "checkpoints").glob("[0-9]*")):
        return f"--out {folder} holds a run that ended before its first checkpoint; delete it, or name another folder"
    return f"--out {folder} is not empty; name another folder, or go on with --resume {folder}"


def _eval(args: argparse.Namespace) -> int:
    process.start(1)
    from boonta.experiments import files, runs

    run = runs.open_run(args.run, args.checkpoint, args.member)
    summary = runs.evaluate(run, args.episodes)
    mean, std, episodes = (summary[f"eval_{key}"] for key in ("return_mean", "return_std", "episodes"))
    several = len(run.system.members) > 1 or run.folder != args.run
    of = f"member {args.member}, {runs.member_name(run, args.run, args.member)}, " if several else ""
    told = "no episode came to its end" if mean is None else f"{_spread(mean, std)} over {episodes} episodes"
    told += f"{_cut(summary)} ({of}step {summary['env_steps']})"
    print(json.dumps(files.plain(summary)) if args.json else told)
    return 0


def _watch(args: argparse.Namespace) -> int:
    process.start(1)
    from boonta.experiments import runs

    run = runs.open_run(args.run, args.checkpoint, args.member)
    if args.tree:
        from boonta.experiments import thoughts, thoughts_page

        out = args.out or args.run / "tree.html"
        moves = thoughts.think(run, args.seed, args.steps)
        with _writable():
            title = f"{run.config.agent} on {run.config.env}, step {run.facts['env_steps']}"
            thoughts_page.write_page(moves, title, out)
        print(f"{out}: {len(moves)} moves")
        return 0
    with _writable():
        made = runs.watch(run, args.out or args.run / "watch.gif", args.steps, args.seed)
    end = "" if made["whole"] else f" in the first {args.steps} steps"
    print(f"{made['out']}: {made['frames']} frames, return {made['return']:g}{end}")
    return 0


def _match(args: argparse.Namespace) -> int:
    process.start(1)
    from boonta.experiments import files, runs
    from boonta.experiments.games import lines, match

    run = runs.open_run(args.run, args.checkpoint, args.member)
    if args.opponent == "every":
        summary = lines.every_line(run)
    else:
        summary = match.match(run, args.opponent, args.games, args.opening, args.seed)
    told = ", ".join(f"{summary[word]} {word}" for word in ("wins", "draws", "losses"))
    if args.opponent != "every":
        low, middle, high = (
            "-" if x is None else f"{x:+.0f}" for x in map(summary.get, ("elo_low", "elo", "elo_high"))
        )
        told += f" against {args.opponent}: Elo {middle} ({low} to {high})"
    print(json.dumps(files.plain(summary)) if args.json else f"{told} (step {summary['env_steps']})")
    return 0


def _play(args: argparse.Namespace) -> int:
    process.start(1)
    from boonta.experiments import runs
    from boonta.experiments.games import human

    run = runs.open_run(args.run, args.checkpoint, args.member)
    try:
        human.play(run, not args.second, input, print)
    except human.Left:
        print()
    return 0


@contextmanager
def _writable() -> Iterator[None]:
    """What cannot be written in a run folder can be written elsewhere."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise PermissionError(f"{error}; name a place that can be written with --out") from error


def _report(args: argparse.Namespace) -> int:
    from boonta.experiments import report

    with _writable():
        print(report.write_report(args.runs, args.out))
    return 0


def _list(args: argparse.Namespace) -> int:
    from boonta.experiments import registry

    def environments() -> Sequence[str]:
        from boonta import envs

        return envs.names()

    listings = {
        "agents": lambda: registry.AGENTS,
        "envs": environments,
        "architectures": lambda: registry.ARCHITECTURES,
        "recipes": lambda: [
            f"{name:32} {recipe['agent']['name']} {recipe['env']['name']} --on {recipe['architecture']['name']}"
            for name, recipe in registry.recipes().items()
        ],
    }
    for what in [args.what] if args.what else listings:
        if not args.what:
            print(f"{what}:")
        for name in listings[what]():
            print(name if args.what else f"  {name}")
    return 0


def _bench(args: argparse.Namespace) -> int:
    import runpy

    name = f"benchmarks.{args.name}"
    root = Path(__file__).resolve().parents[2]  # the current folder may be anybody's
    if not (root / "benchmarks" / "__init__.py").is_file():
        raise FileNotFoundError(
            "benchmarks/ comes with the repository, not with the package: install a clone, with pip install --editable"
        )
    if not (root / Path(*name.split("."))).with_suffix(".py").is_file():
        from boonta.core.names import unknown

        scripts = [
            ".".join(file.relative_to(root / "benchmarks").with_suffix("").parts)
            for file in sorted((root / "benchmarks").glob("*/*.py"))
            if "def main" in file.read_text("utf-8")
        ]
        raise unknown("benchmark", args.name, scripts)
    sys.path.insert(0, str(root))
    sys.argv = [name, *args.arguments]
    runpy.run_module(name, run_name="__main__")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    code = 0
    if args.run:
        from boonta.experiments import runs

        facts = runs.inspect(args.run)
    else:
        from boonta.experiments import machine

        process.start(0)
        import jax

        extras = {}
        for name, (packages, brings) in machine.EXTRAS.items():
            missing = not all(machine.versions(packages).values())
            extras[name] = brings + (f" (pip install 'boonta[{name}]')" if missing else " (installed)")
        try:
            there = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
        except (RuntimeError, AssertionError) as error:
            code, there = 1, [f"none: {process.no_backend(error) or error}"]
        facts = {"devices": there, "machine": machine.machine(), "versions": machine.versions(), "extras": extras}
    if args.json:
        print(json.dumps(facts))
        return code
    for key, value in facts.items():
        print(process.printable(f"{key}:" if isinstance(value, dict | list) else f"{key}: {value}"))
        for line in (
            [f"{k}: {v}" for k, v in value.items()]
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else []
        ):
            print(process.printable(f"  {line}"))
    return code


def _value(text: str) -> Any:
    """A number, a list, true, false or none; or else the text itself."""
    if text == "none":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


COMMANDS = {
    "train": _train, "serve": _serve, "actor": _actor, "split-worker": _split_worker,
    "eval": _eval, "watch": _watch, "match": _match, "play": _play,
    "report": _report, "list": _list, "bench": _bench, "doctor": _doctor,
}  # fmt: skip


def run() -> NoReturn:
    """The console script."""
    process.leave_quickly()
    try:
        code = main()
    except SystemExit as stop:  # argparse's way
        code = stop.code if isinstance(stop.code, int) else 0
    process.end(code)
