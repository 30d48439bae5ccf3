"""Drills: a run on SEED is harmed in every way that can be thought of, must count it, go on, and still learn.

Each drill has a server and actors of its own, PPO on CartPole (DQN where replay matters). After the harm was counted,
an evaluation must reach the bar; then the run is asked to end, and must have been saved.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ROOT, Row, notes, parser
from benchmarks.drilled import Facts, held, namespaces, recovered
from benchmarks.sebulba.soak import thirds
from benchmarks.seed.fuzz import Fuzzer
from benchmarks.seed.stage import ACTORS, ENVS, Stage
from benchmarks.seed.stalling import Stalling
from boonta import envs
from boonta.transport.client import Link
from boonta.transport.security import Security
from boonta.transport.wire import Schema

PPO = {"agent.batch": 32, "agent.unroll": 32, "agent.minibatches": 4, "agent.epochs": 4, "agent.learning_rate": 1e-3}
DQN = {
    "agent.batch": 256, "agent.unroll": 8, "agent.capacity": 50_000, "agent.minimum": 1_000, "agent.replay_ratio": 16,
    "agent.learning_rate": 1e-3, "agent.target_interval": 100, "agent.n_step": 10, "agent.explore_for": 0.0005,
    "architecture.chunk": 8,
}  # fmt: skip
# Evaluations and checkpoints take the processor in bursts. At the drills' usual intervals the speed alone differs by a
# tenth from one half minute to the next.
SELDOM = {"run.evaluate_every": 200_000, "run.checkpoint_every": 200_000}
CLOCK = """
import time
real, began = time.time, time.monotonic()
time.time = lambda: real() - (3600.0 if time.monotonic() > began + {after} else 0.0)
"""


def kill_one(stage: Stage) -> dict[str, Any]:
    """kill -9 of an actor, in the middle of an unroll; another takes its place."""
    stage.begin()
    gone, back = stage.dropped(1), stage.joined(1)
    stage.actors[0].kill()
    seconds = stage.until("the actor to be missed", gone)
    stage.act(0)
    stage.until("another actor", back)
    return {"noticed_seconds": seconds}


def kill_most(stage: Stage) -> dict[str, Any]:
    """kill -9 of 60 % of the actors at once; the others go on alone, then new ones come."""
    stage.begin()
    gone, count = stage.dropped(3), ACTORS * 3 // 5
    for one in stage.actors[:count]:
        one.kill()
    stage.until("the actors to be missed", gone)
    before = stage.last("env_steps")
    stage.until("the others to go on", lambda: stage.last("env_steps") > before + 10_000)
    alone = stage.last("clients/environments")
    back = stage.joined(count)
    for i in range(count):
        stage.act(i)
    stage.until("new actors", back)
    return {"killed": count, "environments_left": alone}


def hang(stage: Stage) -> dict[str, Any]:
    """An actor that stops, is dropped once it was silent for too long, goes on, and comes again."""
    stage.begin()
    gone, back = stage.dropped(1), stage.joined(1)
    stage.actors[0].send_signal(signal.SIGSTOP)
    seconds = stage.until("the actor to be missed", gone)
    stage.actors[0].send_signal(signal.SIGCONT)
    again = stage.until("it to come again", back)
    return {"noticed_seconds": seconds, "came_again_seconds": again}


def half_open(stage: Stage) -> dict[str, Any]:
    """A connection through which nothing comes any more, though nobody closed it."""
    stage.serve()
    proxy = Stalling(f"{stage.folder}/proxy", f"{stage.folder}/socket")
    try:
        stage.actors = [stage.act(i) for i in range(1, ACTORS)]
        stage.act(0, address=f"unix:{stage.folder}/proxy")
        stage.until("all actors", lambda: stage.last("clients/environments") == ACTORS * ENVS)
        gone, back = stage.dropped(1), stage.joined(1)
        proxy.stall()
        seconds = stage.until("the actor to be missed", gone)
        again = stage.until("it to come again", back)
    finally:
        proxy.close()
    return {"noticed_seconds": seconds, "came_again_seconds": again}


def duplicate(stage: Stage) -> dict[str, Any]:
    """A second actor for environments that are another's: the later one is refused, the first goes on."""
    stage.begin()
    gone, joined = stage.last("clients/dropped"), stage.last("clients/joined")
    second = stage.act(0)
    stage.until("the second to be refused", lambda: "ALREADY_EXISTS" in stage.said())
    before = stage.last("env_steps")
    stage.until("the run to go on", lambda: stage.last("env_steps") > before + 20_000)
    if (stage.last("clients/dropped"), stage.last("clients/joined")) != (gone, joined):
        raise RuntimeError(f"the second actor came in, or the first one went:\n{stage.said()[-3000:]}")
    refused = stage.said().count("ALREADY_EXISTS")
    second.kill()
    return {"refused": refused}


def fuzz(stage: Stage) -> dict[str, Any]:
    """Thousands of malformed, truncated, oversized, unfinished and wrong messages, while the run learns."""
    stage.begin()
    fuzzer, begin, made = Fuzzer(stage.address, envs.make("gym:CartPole-v1").spec), stage.last("env_steps"), 0
    while made < 6_000:
        fuzzer.attempts(120)
        made += 120
        if stage.main.poll() is not None:
            raise RuntimeError(f"the server ended:\n{stage.said()[-3000:]}")
    fuzzer.close()
    if stage.last("env_steps") <= begin or any(one.poll() is not None for one in stage.actors):
        raise RuntimeError(f"learning stopped, or an actor did:\n{stage.said()[-3000:]}")
    return {"attempts": made, "answers": dict(sorted(fuzzer.answers.items()))}


def strangers(stage: Stage) -> dict[str, Any]:
    """512 streams without a token and 1,000 silent connections for a minute: ten clients get in, none is slowed."""
    stage.address, token = f"127.0.0.1:{_free_port()}", "secret"
    stage.settings |= SELDOM
    os.environ["BOONTA_TOKEN"] = token
    try:
        stage.begin()
    finally:
        del os.environ["BOONTA_TOKEN"]
    stage.until_bar_reached()  # evaluations of a run that has learned are longer, and take more of the processor
    alone = [_speed(stage, 30.0)]
    words = [sys.executable, "-m", "benchmarks.seed.strangers", stage.address, "60", "512", "1000"]
    process, begun = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT), time.monotonic()
    try:
        time.sleep(5.0)
        during = _speed(stage, 40.0)
        schema, waits = Schema(envs.make("gym:CartPole-v1").spec), []
        links = []
        for i in range(10):
            asked = time.monotonic()
            links.append(Link(stage.address, schema, 1, -1, f"honest {i}", Security(token=token), 60.0))
            waits.append(time.monotonic() - asked)
        for one in links:
            one.close()
        late = time.monotonic() - begun > 60.0
        told = json.loads(process.communicate(timeout=120.0)[0])
    finally:
        process.kill()
    alone.append(_speed(stage, 30.0))
    kept = during / (sum(alone) / 2)
    if late or max(waits) > 5.0 or kept < 0.8:
        raise RuntimeError(f"strangers are in the way: {late=}, {waits=}, {alone=}, {during=:.0f} steps/s")
    return {"waited_most": max(waits), "speed_kept": kept, "during": during} | told | {"alone": alone}


def _speed(stage: Stage, seconds: float) -> float:
    """Steps a second that the run logs in so many seconds."""
    steps, begun = stage.last("env_steps"), stage.last("seconds")
    stage.until("the run to go on", lambda: stage.last("seconds") > begun + seconds)
    return (stage.last("env_steps") - steps) / (stage.last("seconds") - begun)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def nan(stage: Stage) -> dict[str, Any]:
    """An actor whose environment shows NaN: it alone is dropped, and told why."""
    stage.begin()
    stage.actors[0].kill()
    stage.until("room", stage.dropped(1))
    gone = stage.dropped(1)
    bad = stage.act(0, "benchmarks.seed.environments:nan")
    stage.until("the actor to be dropped", gone)
    code = bad.wait(60.0)
    if "observation is not finite" not in stage.said():
        raise RuntimeError(f"nobody said why:\n{stage.said()[-3000:]}")
    stage.act(0)
    return {"code": code}


def slow_actor(stage: Stage) -> dict[str, Any]:
    """One actor a hundred times slower than the others, which do not wait for it."""
    stage.serve()
    stage.actors = [stage.act(i) for i in range(1, ACTORS)]
    stage.act(0, "benchmarks.seed.environments:slow")
    stage.until("all actors", lambda: stage.last("clients/environments") == ACTORS * ENVS)
    return {"steps_per_second": stage.last("steps_per_second"), "batch_mean": stage.last("batch_mean")}


def slow_learner(stage: Stage) -> dict[str, Any]:
    """A learner far slower than the actors, which wait for it: memory does not grow."""
    stage.begin()
    process, memory = psutil.Process(stage.main.pid), []
    for _ in range(60):
        memory.append(process.memory_info().rss / 1e6)
        time.sleep(1.0)
    middle, last, flat = thirds(memory, memory=True)
    if not flat:
        raise RuntimeError(f"memory grew from {middle:.0f} to {last:.0f} MB")
    waiting = stage.last("time/inference/wait for the learner")
    if waiting < 0.3:
        raise RuntimeError(f"the learner was not slow: inference waited for it {waiting:.0%} of its time")
    return {"memory_middle_mb": middle, "memory_last_mb": last, "inference_waits_for_learner": waiting}


def kill_server(stage: Stage) -> dict[str, Any]:
    """kill -9 of the server: actors look for it, the resumed run goes on with replay, optimiser and counters."""
    stage.begin()
    stage.until("a replay in use", lambda: stage.last("replay/samples_per_insert") > 0)
    stage.main.kill()
    stage.main.wait()
    saved = stage.saved()
    before = next(row for row in reversed(stage.rows()) if row["env_steps"] <= saved and "updates" in row)
    stage.serve(resume=True)
    stage.until("all actors to come again", lambda: stage.last("clients/environments") == ACTORS * ENVS)
    after = next(row for row in stage.rows() if "updates" in row)
    if after["updates"] <= before["updates"] or after["replay/windows"] < before["replay/windows"]:
        raise RuntimeError(f"the run lost something:\n{before}\n{after}")
    facts = {"saved_at": saved, "windows_before": before["replay/windows"], "windows_after": after["replay/windows"]}
    return facts | {"updates_before": before["updates"], "updates_after": after["updates"]}


def terminate_server(stage: Stage) -> dict[str, Any]:
    """SIGTERM: saved within seconds, and resumed by the same actors."""
    stage.begin()
    stage.main.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    code = stage.main.wait(60.0)
    seconds = time.monotonic() - begin
    stage.serve(resume=True)
    stage.until("all actors to come again", lambda: stage.last("clients/environments") == ACTORS * ENVS)
    return {"code": code, "saved_in_seconds": seconds}


def clock(stage: Stage) -> dict[str, Any]:
    """The server's clock is set back by an hour while it runs: only a monotonic one matters."""
    stage.serve(before=CLOCK.format(after=20.0))
    stage.act_all()
    time.sleep(25.0)
    before = stage.last("env_steps")
    stage.until("the run to go on", lambda: stage.last("env_steps") > before + 20_000)
    return {"dropped": stage.last("clients/dropped")}


def hosts(stage: Stage) -> dict[str, Any]:
    """Actors on two hosts, each a network namespace, over TCP with certificates and a token; others are refused."""
    import trustme

    authority = trustme.CA()
    files = {
        name: str(stage.folder / f"{name}.pem") for name in ("authority", "server", "server-key", "mine", "mine-key")
    }
    authority.cert_pem.write_to_path(files["authority"])
    ours = [f"10.77.{i}.1" for i in range(2)]
    for name, issued in (("server", authority.issue_cert(*ours)), ("mine", authority.issue_cert("actor.example"))):
        issued.cert_chain_pems[0].write_to_path(files[name])
        issued.private_key_pem.write_to_path(files[f"{name}-key"])
    secret, signed = {"BOONTA_TOKEN": "secret"}, ["--authority", files["authority"]]
    certified = ["--certificate", files["mine"], "--key", files["mine-key"]]
    with namespaces() as there:
        stage.address = "0.0.0.0:28472"
        mine = ["--certificate", files["server"], "--key", files["server-key"]]
        stage.serve(more=mine)
        code = stage.main.wait(60.0)
        if code != 2 or "needs --token" not in stage.said():
            raise RuntimeError(f"a server without a token began:\n{stage.said()[-3000:]}")
        stage.serve(more=[*mine, *signed, "--token", "secret"])

        def act(i: int, *words: str, **variables: str) -> subprocess.Popen[bytes]:
            host = i % 2
            inside = ["ip", "netns", "exec", there[host]]
            return stage.start([*inside, *stage.actor(i, address=f"{ours[host]}:28472"), *words], **variables)

        stage.actors = [act(i, *signed, *certified, **secret) for i in range(ACTORS)]
        stage.until("all actors", lambda: stage.last("clients/environments") == ACTORS * ENVS)
        joined, refused = stage.last("clients/joined"), {}
        for name, words, variables in (
            ("no token", [*signed, *certified], {}),
            ("another token", [*signed, *certified], {"BOONTA_TOKEN": "guess"}),
            ("no certificate", signed, secret),
            ("no TLS", [], {}),
        ):
            process = act(ACTORS, *words, "--patience", "2", **variables)
            refused[name] = process.wait(60.0)
        if any(code != 1 for code in refused.values()) or stage.last("clients/joined") != joined:
            raise RuntimeError(f"somebody came in: {refused}\n{stage.said()[-3000:]}")
        return {"hosts": 2, "refused": len(refused), **stage.learned()}


# drill: agent, settings
DRILLS: dict[str, tuple[Callable[[Stage], dict[str, Any]], str, dict[str, Any]]] = {
    "kill -9 of an actor": (kill_one, "ppo", PPO),
    "kill -9 of 60 % of the actors": (kill_most, "ppo", PPO),
    "an actor hangs": (hang, "ppo", PPO),
    "a half-open connection": (half_open, "ppo", PPO),
    "a duplicate": (duplicate, "ppo", PPO),
    "malformed messages": (fuzz, "ppo", PPO),
    "strangers": (strangers, "ppo", PPO | {"architecture.envs": (ACTORS + 2) * ENVS}),
    "NaN from an environment": (nan, "ppo", PPO),
    "a slow actor": (slow_actor, "ppo", PPO),
    "a slow learner": (
        slow_learner,
        "ppo",
        PPO | {"agent.epochs": 20, "agent.hidden": "512,512", "agent.learning_rate": 3e-4},
    ),
    "kill -9 of the server": (kill_server, "dqn", DQN),
    "SIGTERM of the server": (terminate_server, "dqn", DQN),
    "the clock set back": (clock, "ppo", PPO),
    "two hosts, certificates and a token": (hosts, "ppo", PPO),
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the drills; the rows it wrote."""
    return held(parser("drills", __doc__ or "", rounds=1, module="seed"), argv, "Drills on SEED", _allowed())


def _allowed() -> dict[str, Callable[[Path], Facts]]:
    allowed = dict(DRILLS)
    if os.geteuid():
        for name in [name for name, (drill, _, _) in DRILLS.items() if drill is hosts]:
            notes.print(f"SKIPPED: {name}: network namespaces need root")
            allowed.pop(name)
    return {name: partial(_held, *one) for name, one in allowed.items()}


def _held(drill: Callable[[Stage], Facts], agent: str, settings: dict[str, Any], folder: Path) -> Facts:
    return recovered(Stage(folder, agent, settings), drill)


if __name__ == "__main__":
    main()
