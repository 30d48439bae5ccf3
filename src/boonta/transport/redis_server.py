"""A Redis server that a run's processes meet at: its address, how it is called, and which runs are there."""

import os
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from boonta.core.exchange import Disconnected
from boonta.core.settings import Refused
from boonta.transport.security import local

PASSWORD = "BOONTA_REDIS_PASSWORD"  # of the environment: run folders and lists of processes show addresses
QUERY = ("db", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")  # options that open nothing, nor redirect
SCHEMES = ("redis", "rediss", "unix")
ANSWER = 5.0  # seconds that one call may take
ALIVE = 30_000  # milliseconds for which a run is there without a word of its driver
AGAIN = 0.2  # seconds before what failed is tried again
EACH = 500  # keys that are deleted at a time
RUNS = "boonta:runs"

T = TypeVar("T")


def checked(address: str) -> str:
    """An address that may be kept.

    Raises:
        ValueError: it is none, or has a password in it.
    """
    parts = urlsplit(address)
    database = parts.path.removeprefix("/") if parts.hostname else ""  # of a socket, the path is where it is
    try:
        known = parts.port is None or parts.port > 0
    except ValueError:  # out of range, or no number
        known = False
    if parts.scheme not in SCHEMES or not (parts.hostname or parts.path) or not known or not f"0{database}".isdecimal():
        raise ValueError(
            f"architecture.transport must be shm, redis://HOST:PORT/DATABASE, rediss:// (TLS) or unix://PATH, "
            f"got {address!r}"
        )
    if odd := sorted({*parse_qs(parts.query, keep_blank_values=True)} - {*QUERY, "password"}):
        raise ValueError(
            f"architecture.transport: unknown option {odd[0]!r} of {address!r}; allowed: {', '.join(QUERY)}"
        )
    if parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True):
        raise ValueError(
            f"architecture.transport must not hold the password, which run folders and lists of processes would show; "
            f"put it into ${PASSWORD}"
        )
    return address


def private(address: str, insecure: bool) -> str:
    """What to warn of: experience and parameters that travel in clear text, to another machine; nothing else.

    Args:
        address: of the server.
        insecure: whether that was asked for.

    Raises:
        ValueError: it was not; or no address.
    """
    parts = urlsplit(checked(address))
    if parts.scheme != "redis" or not parts.hostname or local(f"{parts.hostname}:0"):
        return ""
    if not insecure:
        raise ValueError(
            f"architecture.transport {address} is clear text beyond this machine, where others read and change what is "
            "learned from; take rediss:// (TLS), 127.0.0.1 or unix://PATH, or allow it with --insecure"
        )
    return f"{address} is clear text: whoever is on the way reads and changes what is learned from, and the password"


def client(address: str, connected: Callable[[], None] = lambda: None) -> Any:
    """A client, `redis.Redis`, that does not try twice; `connected` is called with every new connection.

    Raises:
        ValueError: not an address, or options that redis-py does not know.
        Refused: redis-py is not installed.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise Refused("a transport over Redis needs redis-py: pip install 'boonta[redis]'") from error

    def connect(connection: Any) -> None:
        connection.on_connect()
        connected()

    options: dict[str, Any] = {"password": os.environ[PASSWORD]} if os.environ.get(PASSWORD) else {}
    options |= {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER, "retry": Retry(NoBackoff(), 0)}
    try:
        found = redis.Redis.from_url(checked(address), redis_connect_func=connect, **options)
        found.connection_pool.make_connection()
        return found
    except (TypeError, ValueError) as error:
        raise ValueError(f"architecture.transport {address!r}: {error}") from error


def errors() -> type[Exception]:
    """Of all that goes wrong with Redis."""
    from redis.exceptions import RedisError

    return RedisError


def passing(error: Exception) -> bool:
    """Whether an error of Redis may pass: it does not answer, loads, is read-only or is out of memory."""
    import redis.exceptions as said

    if isinstance(error, said.AuthenticationError | said.NoPermissionError):
        return False
    return isinstance(
        error, said.ConnectionError | said.TimeoutError | said.ReadOnlyError | said.OutOfMemoryError
        | said.BusyLoadingError | said.TryAgainError | said.MasterDownError,
    ) or "MISCONF" in str(error)  # fmt: skip


def called(address: str, work: Callable[[], T], patience: float = 0.0) -> T:
    """What a call gives that begins something.

    Args:
        address: of the server.
        work: the call.
        patience: seconds for which what may pass is waited for, by whoever a run has started and needs.

    Raises:
        Refused: Redis does not let us in, or does not answer somebody who has no patience.
        Disconnected: it has not answered for as long as that.
    """
    import redis.exceptions as said

    until = time.monotonic() + patience
    while True:
        try:
            return work()
        except said.AuthenticationError as error:
            if not os.environ.get(PASSWORD):
                raise Refused(f"Redis at {address} wants a password: set ${PASSWORD}") from error
            raise Refused(f"Redis at {address} refuses the password of ${PASSWORD}: {error}") from error
        except said.RedisError as error:
            if not (patience and passing(error)):
                raise Refused(f"Redis at {address}: {error}") from error
            if time.monotonic() > until:
                raise gone(address, patience, error) from error
            time.sleep(AGAIN)


def prefix(run: str) -> str:
    """What all keys of a run begin with."""
    return f"boonta:{run}:"


def begun(server: Any) -> str:
    """A name for a new run."""
    tidied(server)
    return secrets.token_hex(4)


def tidied(server: Any) -> None:
    """Sweep out what is left of runs that are no more, and what was written after them."""
    known = set(names(server))
    known |= {key.decode().split(":")[1] for key in server.scan_iter(match=f"{prefix('*')}*", count=EACH)}
    for name in known:
        if not alive(server, name):
            swept(server, name)


def tell(server: Any, run: str, told: dict[str, str]) -> None:
    """Let a run be there, and say this to all who join."""
    with server.pipeline() as pipe:
        pipe.set(f"{prefix(run)}alive", 1, px=ALIVE)
        pipe.hset(f"{prefix(run)}told", mapping={"name": run} | told)
        pipe.sadd(RUNS, run)
        pipe.execute()


def alive(server: Any, run: str) -> bool:
    """Whether the driver of a run has said so not long ago."""
    return bool(server.exists(f"{prefix(run)}alive"))


def lives(server: Any, run: str) -> bool:
    """Let a run be there longer; false if it is not."""
    return bool(server.pexpire(f"{prefix(run)}alive", ALIVE))


def names(server: Any) -> list[str]:
    """The runs of which there is something."""
    return sorted(name.decode() for name in server.smembers(RUNS))


def there(server: Any, run: str = "") -> tuple[str, dict[str, str]]:
    """The name of a run, and what it told.

    Args:
        server: redis.Redis.
        run: its name; nothing for the only one.

    Raises:
        Refused: there is none, or several.
    """
    found = [name for name in names(server) if alive(server, name)]
    if run not in found and (run or len(found) != 1):
        which = ", ".join(found) or "none"
        raise Refused(f"--run must name a run that is there ({which}), got {run or 'nothing'}")
    run = run or found[0]
    return run, {key.decode(): value.decode() for key, value in server.hgetall(f"{prefix(run)}told").items()}


def swept(server: Any, run: str) -> None:
    """Delete all of a run."""
    found: Iterable[bytes] = server.scan_iter(match=f"{prefix(run)}*", count=EACH)
    keys = list(found)
    for i in range(0, len(keys), EACH):
        server.unlink(*keys[i : i + EACH])
    server.srem(RUNS, run)


def has_room(server: Any, address: str, needed: int) -> None:
    """Check that Redis may keep so many bytes, and keeps what it has.

    Raises:
        Refused: it may not, or does not.
    """
    facts = server.info("memory")
    most, policy = int(facts.get("maxmemory", 0)), facts.get("maxmemory_policy", "noeviction")
    if not most:
        return
    if policy != "noeviction":
        raise Refused(f"Redis at {address} has maxmemory-policy {policy}, which loses experience; use noeviction")
    if needed > most - int(facts.get("used_memory", 0)):
        raise Refused(
            f"{needed / 1e9:.2f} GB of Redis are needed for agent.capacity and the parameters, but {address} has "
            f"{(most - int(facts.get('used_memory', 0))) / 1e9:.2f} GB left of maxmemory"
        )


def gone(address: str, seconds: float, error: Exception) -> Disconnected:
    """What is said of a server that has not done what it was asked to for so long."""
    return Disconnected(f"Redis at {address} has failed for {seconds:.0f} s: {error}")
