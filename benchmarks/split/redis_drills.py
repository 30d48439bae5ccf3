"""Drills over Redis: the server of a split run is harmed, or somebody comes who should not.

As `benchmarks.split.drills`, each with a server of its own; at the end nothing of the run may be left in it.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import Row, parser
from benchmarks.drilled import Facts, held, namespaces, recovered
from benchmarks.split import drills
from boonta.testing.redis_servers import Server
from boonta.transport import redis_server

BAND = {"architecture.band": 200}
HARM = 5.0  # seconds


class Stage(drills.Stage):
    """A driver, its processes, and the server that they meet at."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = Server(folder)

    def train(self, resume: bool = False, more: Sequence[str] = (), env: str = "gym:Pendulum-v1") -> None:
        """See `drills.Stage`."""
        band = [word for key, x in BAND.items() for word in ("--set", f"{key}={x}")]
        super().train(resume, [*band, "--transport", self.server.address, *more], env)

    def call(self, *words: str) -> object:
        """One command to the server."""
        client = redis_server.client(self.server.address)
        try:
            return client.execute_command(*words)
        finally:
            client.close()

    def names(self) -> list[str]:
        """The runs of which there is something in the server."""
        client = redis_server.client(self.server.address)
        try:
            return redis_server.names(client)
        finally:
            client.close()

    def worker(self, role: str, *words: str) -> list[str]:
        """The command of a process that joins."""
        where = ["--transport", self.server.address]
        return [sys.executable, "-P", "-m", "boonta", "split-worker", "--role", role, *where, *words]

    def refused(self, role: str, *words: str, says: str, **variables: str) -> int:
        """The exit status of a process that is not let in, for this reason."""
        done = subprocess.run(
            self.worker(role, *words), capture_output=True, text=True, env=os.environ | variables, timeout=120
        )
        if done.returncode != 2 or says not in done.stderr:
            raise RuntimeError(f"{role} was not refused: {done.returncode}\n{done.stderr}")
        return done.returncode

    def goes_on(self) -> Facts:
        """Wait until the run has made steps and updates again."""
        steps, updates = self.last("env_steps"), self.last("updates/value")
        seconds = self.until("steps", lambda: self.last("env_steps") > steps + 2_000)
        self.until("updates", lambda: self.last("updates/value") > updates + 1_000)
        return {"seconds_to_go_on": seconds, "restarts": self.last("restarts"), "lost": self.last("lost/value")}

    def end(self) -> None:
        """Nothing may be left in the server."""
        try:
            super().end()
            if self.server.process.poll() is None and (left := self.server.left()):
                raise RuntimeError(f"the run left {left} in Redis")
        finally:
            self.server.stop()


def stopped(stage: Stage) -> Facts:
    """The server is killed, and comes back having forgotten everything."""
    stage.begin()
    stage.server.stop()
    time.sleep(HARM)
    stage.server.start()
    return stage.goes_on()


def full(stage: Stage) -> Facts:
    """The server takes nothing more for a while (noeviction)."""
    stage.begin()
    stage.call("CONFIG", "SET", "maxmemory", "1mb")
    time.sleep(HARM)
    stage.call("CONFIG", "SET", "maxmemory", "0")
    return stage.goes_on()


def read_only(stage: Stage) -> Facts:
    """The server is a replica of nobody for a while, which only reads."""
    stage.begin()
    stage.call("REPLICAOF", "127.0.0.1", "1")
    time.sleep(HARM)
    stage.call("REPLICAOF", "NO", "ONE")
    return stage.goes_on()


def slow_subscriber(stage: Stage) -> Facts:
    """Somebody subscribes to all that is published and never reads it."""
    stage.begin()
    stage.call("CONFIG", "SET", "client-output-buffer-limit", "pubsub 65536 32768 5")
    with socket.create_connection((stage.server.host, stage.server.port)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.sendall(b"PSUBSCRIBE *\r\n")
        return stage.goes_on()


def lost_publications(stage: Stage) -> Facts:
    """All subscribers are thrown out again and again, so that they miss what is published."""
    stage.begin()
    thrown, until = 0, time.monotonic() + HARM
    while time.monotonic() < until:
        thrown += int(str(stage.call("CLIENT", "KILL", "TYPE", "pubsub")))
        time.sleep(0.1)
    return {"subscribers_thrown_out": thrown} | stage.goes_on()


def driver(stage: Stage) -> Facts:
    """kill -9 of the driver: the next run sweeps out what it left in the server, and goes on from its checkpoint."""
    stage.begin()
    saved, names = stage.saved(), stage.names()
    stage.main.kill()
    stage.main.wait()
    time.sleep(redis_server.ALIVE / 1e3 + 1.0)
    stage.train(resume=True)
    stage.until("the run to go on", lambda: stage.last("env_steps") > saved)
    if stage.names() == names or len(stage.names()) != 1:
        raise RuntimeError(f"what the run that was killed left is still there: {stage.names()}")
    return {"resumed_from": saved}


def strangers(stage: Stage) -> Facts:
    """Processes that nobody declared, that lack what a version needs, or whose role is taken are refused."""
    stage.train(more=["--set", "architecture.remote=environment/1"])
    stage.until("the run to wait", lambda: "waits for environment/1" in stage.said())
    stage.start(stage.worker("environment/1"))
    stage.until("updates", lambda: stage.last("updates/value") > 0)
    other = stage.folder / "other.toml"
    text = (stage.run / "config.toml").read_text("utf-8")
    other.write_text(text.replace("capacity = 50000", "capacity = 40000"), "utf-8")
    alike = stage.folder / "alike.toml"
    alike.write_text(text.replace("discount = 0.99", "discount = 0.9"), "utf-8")
    codes = [
        stage.refused("value/1", says="--role must be one of architecture.remote"),
        stage.refused("environment/7", says="--role must be one of architecture.remote"),
        stage.refused("environment/1", says="environment/1 is taken by a process that is there"),
        stage.refused("environment/1", "--config", str(other), says="do not agree on what they exchange"),
        stage.refused("environment/1", "--config", str(alike), says="do not agree on what they exchange"),
        stage.refused("environment/1", "--run", "nobody", says="--run must name a run that is there"),
    ]
    return {"refused": len(codes)} | stage.goes_on()


def hosts(stage: Stage) -> Facts:
    """An environment and the value on hosts of their own (network namespaces) by TLS and password; others refused."""
    import trustme

    authority = trustme.CA()
    ours = [f"10.77.{i}.1" for i in range(2)]
    issued = authority.issue_cert("127.0.0.1", *ours)
    files = {name: str(stage.folder / f"{name}.pem") for name in ("authority", "server", "key")}
    authority.cert_pem.write_to_path(files["authority"])
    issued.cert_chain_pems[0].write_to_path(files["server"])
    issued.private_key_pem.write_to_path(files["key"])
    tls = ("--tls-cert-file", files["server"], "--tls-key-file", files["key"], "--tls-ca-cert-file", files["authority"])
    stage.server.stop()
    secret, more = {redis_server.PASSWORD: "secret"}, ("--tls-auth-clients", "no", "--requirepass", "secret")
    with namespaces() as there:
        stage.server = Server(stage.folder, *more, host="0.0.0.0", tls=tls)
        port, query = stage.server.port, f"?ssl_ca_certs={files['authority']}"
        stage.server.address = f"rediss://127.0.0.1:{port}/0{query}"
        os.environ |= secret
        try:
            stage.train(more=["--set", "architecture.remote=environment/1,value/0"])
            stage.until("the run to wait", lambda: "waits for environment/1, value/0" in stage.said())
            for host, role in enumerate(("environment/1", "value/0")):
                where = ["--transport", f"rediss://{ours[host]}:{port}/0{query}"]
                command = [sys.executable, "-P", "-m", "boonta", "split-worker", "--role", role, *where]
                stage.start(["ip", "netns", "exec", there[host], *command])
            stage.until("updates", lambda: stage.last("updates/value") > 0)
            refused = [
                stage.refused("environment/1", says="refuses the password", **{redis_server.PASSWORD: "guess"}),
                stage.refused("environment/1", says="Redis at", **{redis_server.PASSWORD: ""}),
            ]
            stage.server.address = f"redis://127.0.0.1:{port}/0"
            refused.append(stage.refused("environment/1", says="Redis at"))
            stage.server.address = f"rediss://127.0.0.1:{port}/0"
            refused.append(stage.refused("environment/1", says="certificate verify failed"))
            stage.server.address += query
            stage.bar = -200.0  # what a whole run must reach
            facts = {"hosts": 2, "refused": len(refused)} | stage.goes_on() | stage.learned()
            stage.main.wait()
            if left := stage.server.left():
                raise RuntimeError(f"the run left {left} in Redis")
            return facts
        finally:
            stage.server.stop()
            os.environ.pop(redis_server.PASSWORD)


DRILLS: dict[str, Callable[[Stage], Facts]] = {
    "Redis stopped and started": stopped,
    "Redis out of memory": full,
    "Redis read-only": read_only,
    "a slow subscriber": slow_subscriber,
    "lost publications": lost_publications,
    "kill -9 of an environment process, over Redis": drills.kill("environment/1"),
    "kill -9 of the value process, over Redis": drills.kill("value/0"),
    "kill -9 of the policy process, over Redis": drills.kill("policy/0"),
    "kill -9 of the driver, over Redis": driver,
    "strangers": strangers,
    "two hosts, TLS and a password": hosts,
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Hold all drills; the rows written."""
    options = parser("redis_drills", __doc__ or "", rounds=1, module="split")
    kept = {name: partial(_held, drill) for name, drill in DRILLS.items()}
    return held(options, argv, "A split run over Redis that is harmed", kept)


def _held(drill: Callable[[Stage], Facts], folder: Path) -> Facts:
    return recovered(Stage(folder), drill)


if __name__ == "__main__":
    main()
