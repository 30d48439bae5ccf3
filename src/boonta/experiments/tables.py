"""The tables of a configuration that are neither the agent's nor the environment's: the run's, each architecture's."""

from dataclasses import dataclass
from typing import Any, Literal

from boonta.core.names import ALIASES
from boonta.core.settings import WorkerKind, setting


@dataclass(frozen=True)
class Run:
    """How long, from which seeds, and what is kept."""

    steps: int = setting(500_000, "environment steps of one member", low=1)
    seed: int = setting(0, "the first seed", low=0, high=2**31 - 1)
    seeds: int = setting(1, "members with seeds seed, seed + 1, ...", low=1)
    sweep: tuple[str, ...] = setting((), "key=v1,v2,... of the agent, or table.key=...: a member for each of the grid")
    log_every: int = setting(0, "environment steps between log lines; 0 for a fiftieth of the run", low=0)
    evaluate_every: int = setting(
        0,
        "environment steps between evaluations; 0 for a tenth of the run. The best is kept; with replay, the best at a "
        "checkpoint",
        low=0,
    )
    eval_episodes: int = setting(20, "greedy episodes in an evaluation; 0 for no evaluation", low=0)
    eval_steps: int = setting(
        27_000, "most steps of an episode of an evaluation; those cut short are left out of the returns", low=1
    )
    checkpoint_every: int = setting(
        0, "environment steps between checkpoints; 0 for a tenth of the run, but not within ten seconds", low=0
    )
    checkpoint_minutes: float = setting(10.0, "most minutes between checkpoints; 0 for no limit", low=0.0)
    keep: int = setting(3, "latest checkpoints kept; the best one is kept besides", low=1)
    save_replay: bool = setting(True, "keep, with the latest checkpoint, what learners have to learn from")
    update_timeout: float | None = setting(
        None,
        "seconds that an update may take (on Anakin a call, of 5 s or half of this) before the run fails; 0 for no "
        "limit, none for the larger of 600 and 20 times the slowest so far",
        low=0.0,
    )
    on_nan: Literal["stop", "drop", "ignore"] = setting(
        "stop",
        "what to do when a loss or an observation is not finite; drop makes environments of the host anew "
        "(architecture.restarts) and stops for the rest",
    )
    recipe: str = setting("", "the recipe that the settings came from")


@dataclass(frozen=True)
class Anakin:
    """Where Anakin runs."""

    envs: int = setting(0, "environments over all devices; 0 for the agent's batch, at most 64 with replay", low=0)
    devices: int = setting(
        0, "devices; 0 for all, of which a CPU has one per core while each gets 16 environments", low=0
    )


@dataclass(frozen=True)
class Sebulba:
    """Where Sebulba runs, on each host."""

    actors: str = setting("auto", "devices that act: a count of the first ones, or places such as [0,1]")
    learners: str = setting("auto", "devices that learn: a count of the last ones, or places such as [1,2,3]")
    measure: bool = setting(
        False, "choose actors, learners and threads by timing environments, acting and learning (`--devices auto`)"
    )
    threads: int = setting(
        0, "threads of each actor device, each with environments of its own; 0 for 2, on a CPU for 1", low=0
    )
    envs: int = setting(0, "environments of a thread; 0 for what makes a batch of all threads", low=0)
    lag: int = setting(1, "most iterations that acting may be behind learning; 0 is synchronous", low=0)
    refresh: Literal["step", "unroll"] = setting(
        "step", "actors take new parameters before every step, or before every unroll as IMPALA's do"
    )
    restarts: int = setting(
        3, "how often environments may fail and be made anew within an hour before the run fails", low=0
    )
    timeout: float = setting(
        0.0,
        "seconds without a step of an actor's environments after which the run fails; 0: the larger of 120 and twice "
        "worker_timeout",
        low=0.0,
    )
    workers: WorkerKind = setting("auto", "what steps Python environments")
    worker_count: int = setting(
        0, "threads or processes for that, and threads of the pool of ale; 0: one per core", low=0
    )
    worker_timeout: float = setting(60.0, "seconds that a worker process or thread may take to answer", low=0.1)
    devices: int = setting(
        0, "devices over all hosts, virtual ones on a CPU, among which are actors and learners; 0 for all", low=0
    )
    trace: str = setting("", "file for a timeline of all threads, for Chrome's or Perfetto's trace viewer")


@dataclass(frozen=True)
class Seed:
    """Where SEED runs, on each host, and who may connect."""

    envs: int = setting(
        0, "environments over all actors and hosts; 0 for the agent's batch, at most 64 with replay", low=0
    )
    local: bool = setting(True, "start actor processes of its own; otherwise environments come by `boonta actor`")
    actors: int = setting(
        0,
        "actor processes of its own; 0: by what stepping costs, one per core or one per inference device",
        low=0,
    )
    address: str = setting("", "where to listen: unix:PATH or HOST:PORT; empty for a socket of its own")
    inference: str = setting("auto", "devices that act: a count of the first ones, or places such as [0,1]")
    learners: str = setting("auto", "devices that learn: a count of the last ones, or places such as [1,2,3]")
    minimum: int = setting(
        0, "environments that a batch of inference waits for; 0 for those of the smallest client", low=0
    )
    maximum: int = setting(0, "environments of a batch, and of a client; 0 for all of an inference device", low=0)
    deadline: float = setting(0.01, "seconds that a batch waits", low=0.0)
    chunk: int = setting(
        0, "trajectories taken from actors together; 0 for the agent's batch, at most 64 with replay", low=0
    )
    ahead: int = setting(1, "chunks that may lie ready before actors wait for the learner", low=1)
    prefetch: int = setting(2, "samples that are drawn from replay before they are asked for", low=1)
    drawers: int = setting(1, "threads that draw from replay", low=1)
    compress: bool = setting(False, "keep observations in replay compressed")
    band: float = setting(0.0, "samples that inserting may be ahead of sampling, or behind; 0 for the least", low=0.0)
    clients: int = setting(256, "clients that may be connected at the same time", low=1)
    silence: float = setting(
        0.0,
        "seconds after which a client that says nothing is dropped; 0: the larger of 60 and worker_timeout",
        low=0.0,
    )
    timeout: float = setting(
        0.0,
        "seconds in which no client was answered, after which the run fails, 0: the larger of 120 and twice "
        "worker_timeout; where actors are not its own, it waits without end while there are none",
        low=0.0,
    )
    restarts: int = setting(
        3, "how often actors of its own may end, and evaluations fail, within an hour before the run does", low=0
    )
    workers: WorkerKind = setting("auto", "what steps Python environments")
    worker_count: int = setting(
        0, "threads or processes for that, and threads of the pool of ale; 0: one per core", low=0
    )
    worker_timeout: float = setting(60.0, "seconds that a worker process or thread may take to answer", low=0.1)
    certificate: str = setting("", "PEM file of the server's certificate, for TLS")
    key: str = setting("", "PEM file of its private key")
    authority: str = setting("", "PEM file of what clients' certificates must be signed by; empty for none asked")
    devices: int = setting(
        0, "devices over all hosts, virtual ones on a CPU, for inference and learning; 0 for all", low=0
    )
    trace: str = setting("", "file for a timeline of all threads, for Chrome's or Perfetto's trace viewer")


@dataclass(frozen=True)
class Fleet:
    """Who there is in a fleet, and what each needs."""

    cluster: str = setting(
        "",
        "address of a Ray cluster, auto for the one that this machine is part of; empty for a Ray of the run's own",
    )
    crew: Literal["ray", "threads"] = setting("ray", "what carries members: Ray, or threads of one process, to debug")
    training_workers: int = setting(
        0, "workers that act in environments; 0 for one per core, if envs can be shared out so", low=0
    )
    envs: int = setting(0, "environments of a training worker; 0 for what makes a batch of all of them", low=0)
    reanalyse_workers: int = setting(1, "workers that act again on what is stored, if agent.reanalyse asks", low=1)
    ahead: int = setting(2, "samples, or batches of trajectories, that lie ready for the parameter server", low=1)
    publish: int = setting(1, "updates between the copies of the parameters that workers act with", low=1)
    compress: bool = setting(False, "keep observations in replay compressed")
    restarts: int = setting(3, "how often each member may be replaced within an hour before the run fails", low=0)
    timeout: float = setting(
        0.0,
        "seconds after which a member that does not answer is replaced, 0: the larger of 120 and twice worker_timeout; "
        "it has 600 to begin, 1500 for an evaluation",
        low=0.0,
    )
    workers: WorkerKind = setting("auto", "what steps Python environments")
    worker_count: int = setting(
        0, "threads or processes for that, and threads of the pool of ale; 0: one per core", low=0
    )
    worker_timeout: float = setting(60.0, "seconds that a worker process or thread may take to answer", low=0.1)
    devices: int = setting(0, "devices of the parameter server; 0 for all that it is given, of a CPU one", low=0)
    server_cpus: float = setting(1.0, "cores of the parameter server", low=0.0)
    server_gpus: float = setting(0.0, "its accelerators; a fraction shares one", low=0.0)
    replay_cpus: float = setting(1.0, "cores of the replay buffer", low=0.0)
    training_cpus: float = setting(1.0, "cores of each training worker", low=0.0)
    training_gpus: float = setting(0.0, "its accelerators", low=0.0)
    reanalyse_cpus: float = setting(1.0, "cores of each reanalyse worker", low=0.0)
    reanalyse_gpus: float = setting(0.0, "its accelerators", low=0.0)
    testing_cpus: float = setting(1.0, "cores of the testing worker", low=0.0)
    testing_gpus: float = setting(0.0, "its accelerators", low=0.0)


@dataclass(frozen=True)
class Split:
    """Who there is in a split run, and how far apart they may be."""

    environments: int = setting(1, "processes that act in environments", low=1)
    envs: int = setting(1, "environments of each", low=1)
    value_processes: int = setting(1, "processes of each learner but the policy's, which share its batch", low=1)
    devices: int = setting(1, "devices of a learner's process, virtual ones on a CPU", low=1)
    transport: str = setting(
        "shm",
        "what carries experience and parameters: shm, the memory of this machine, or a Redis server, "
        "redis://HOST:PORT/DATABASE, rediss://HOST:PORT/DATABASE or unix://PATH",
    )
    insecure: bool = setting(False, "a Redis of another machine may be in clear text, redis:// in place of rediss://")
    remote: tuple[str, ...] = setting((), "roles that other machines have, such as environment/1, over Redis")
    cluster: str = setting(
        "", "address of a Ray cluster that starts the processes, auto for the one that this machine is part of"
    )
    cpus: float = setting(1.0, "cores of each process on a cluster", low=0.0)
    gpus: float = setting(0.0, "accelerators of each learner's process there", low=0.0)
    coordinator: str = setting(
        "", "HOST:PORT where the processes of one learner find each other, if some are on other machines"
    )
    free_running: bool = setting(False, "nobody waits for anybody, and counts go as fast as each can")
    band: float = setting(0.0, "updates that learners may be behind; 0 for the least", low=0.0)
    publish: int = setting(1, "updates between the parameters that others see", low=1)
    lag: int = setting(100, "most updates that parameters may be behind, when a process acts or learns by them", low=1)
    compress: bool = setting(False, "keep observations in replay compressed")
    restarts: int = setting(3, "how often processes may be replaced within an hour before the run fails", low=0)
    timeout: float = setting(
        0.0,
        "seconds after which a process that does not move is replaced, 0: the larger of 120 and twice worker_timeout; "
        "it has 600 more to begin",
        low=0.0,
    )
    workers: WorkerKind = setting("serial", "what steps Python environments")
    worker_count: int = setting(
        0, "threads or processes for that, and threads of the pool of ale; 0: one per core", low=0
    )
    worker_timeout: float = setting(60.0, "seconds that a worker process or thread may take to answer", low=0.1)


ARCHITECTURES = {"anakin": Anakin, "sebulba": Sebulba, "seed": Seed, "fleet": Fleet, "split": Split}


def patience(options: Any) -> float:
    """Seconds that a run waits for its environments: by default twice what one may take to answer, at least 120."""
    return float(options.timeout or max(120.0, 2 * options.worker_timeout))


def meant(word: str) -> str:
    """The setting that somebody means who names no table, as `run.steps`; nothing where that is not clear."""
    word = word.replace("-", "_")
    for name in (word, *ALIASES.get(word, ())):
        for table, known in (("run", [Run]), ("architecture", ARCHITECTURES.values())):
            if any(name in one.__dataclass_fields__ for one in known):
                return f"{table}.{name}"
    known = [*ALIASES.get(word, ()), *(word for names in ALIASES.values() if word in names)]
    return f"agent.{known[0]}" if known else ""
