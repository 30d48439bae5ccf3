"""Exchanges, and how trees lie in bytes."""

import os
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.exchange import Disconnected, Layout
from boonta.core.packing import Packing
from boonta.core.settings import Refused
from boonta.core.types import Origin
from boonta.experiments.systems.split_processes import Elsewhere
from boonta.testing import redis_servers
from boonta.testing.exchange import LAYOUT, ExchangeContract, blob, entry, numbers
from boonta.transport import redis_insert, redis_server, shm
from boonta.transport.redis import Redis
from boonta.transport.shm import SharedMemory
from tests.marks import needs_redis, slow


# Forked processes of these tests only write to the exchange; JAX warns of every fork.
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process")
class TestSharedMemory(ExchangeContract):
    def make(self, layout):
        return SharedMemory(layout)

    def joiner(self, exchange):
        return partial(SharedMemory, exchange.layout, exchange.descriptor)

    def test_it_has_no_name_and_leaves_nothing(self):
        exchange = self.make(LAYOUT)
        place = f"/proc/self/fd/{exchange.descriptor}"
        assert not os.path.exists(place) or os.readlink(place).endswith("(deleted)")
        exchange.close()
        with pytest.raises(OSError):
            os.fstat(exchange.descriptor)

    def test_who_lays_it_out_otherwise_is_refused(self):
        exchange = self.make(LAYOUT)
        for other in (LAYOUT._replace(about="something else"), LAYOUT._replace(values={"value": 1 << 20})):
            with pytest.raises(Refused, match="do not agree"):
                SharedMemory(other, exchange.descriptor)
        exchange.close()

    def test_an_entry_that_is_not_what_was_written_is_lost(self):
        exchange = self.make(LAYOUT)
        for i in range(3):
            exchange.append("log", entry(i))
        exchange._logs["log"]._data[1, 5] ^= 1
        found = exchange.read("log", 0, 9)
        assert (numbers(found.data), found.following, found.lost) == ([0, 2], 3, 1)
        exchange.close()

    def test_more_memory_than_there_is_is_refused(self, monkeypatch):
        monkeypatch.setattr(shm, "_available", lambda: 1000)
        with pytest.raises(Refused, match=r"GB of shared memory are needed for agent\.capacity"):
            self.make(LAYOUT)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with redis_servers.serving(tmp_path_factory.mktemp("redis")) as server:
        yield server


@needs_redis
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process")
class TestRedis(ExchangeContract):
    @pytest.fixture(autouse=True)
    def served(self, server):
        self.server = server

    def make(self, layout):
        return made(self.server, layout)

    def joiner(self, exchange):
        return lambda: joined(exchange, "writer", life=time.monotonic_ns())

    def test_what_others_write_is_seen(self):
        driver = self.make(LAYOUT)
        other = joined(driver, "other")
        other.append("log", entry(0))
        other.publish("value", 3, blob(3))
        other.put("a", 7)
        soon(lambda: driver.totals()["a"] == 7)
        # Whatever was written before is there with it.
        assert driver.length("log") == 1 and numbers(driver.read("log", 0, 9).data) == [0]
        found = driver.newest("value", -1)
        assert found is not None and found[0] == 3
        for i in range(1, 50):
            other.append("log", entry(i))
            other.publish("value", 3 + i, blob(3 + i))
            other.put("a", 7 + i)
            soon(lambda i=i: driver.totals()["a"] == 7 + i)
            assert numbers(driver.read("log", i, 9).data) == [i]
            found = driver.newest("value", 2 + i)
            assert found is not None and found[0] == 3 + i and np.array_equal(found[1], blob(3 + i))
        other.close()
        driver.close()

    def test_nothing_is_left_of_a_run_that_ends(self):
        driver = self.make(LAYOUT)
        driver.append("log", entry(0))
        driver.publish("value", 3, blob(3))
        assert self.server.left()
        driver.close()
        assert not self.server.left()

    def test_what_is_left_of_a_run_that_was_killed_goes_when_the_next_begins(self):
        client = redis_server.client(self.server.address)
        lost = redis_server.begun(client)
        redis_server.tell(client, lost, {"config": "text"})
        client.set(f"{redis_server.prefix(lost)}log", b"experience")
        client.delete(f"{redis_server.prefix(lost)}alive")
        client.set(f"{redis_server.prefix('lingered')}numbers", b"of a process that wrote when its run was swept out")
        driver = self.make(LAYOUT)
        assert not [key for key in self.server.left() if lost.encode() in key or b"lingered" in key]
        assert redis_server.names(client) == [driver.run]
        driver.close()
        client.close()

    def test_what_was_there_still_when_the_next_began_goes_when_that_ends(self):
        client = redis_server.client(self.server.address)
        lost = redis_server.begun(client)
        redis_server.tell(client, lost, {"config": "text"})
        driver = self.make(LAYOUT)
        client.delete(f"{redis_server.prefix(lost)}alive")
        driver.close()
        assert not self.server.left()
        client.close()

    def test_who_lays_it_out_otherwise_is_refused(self):
        driver = self.make(LAYOUT)
        with pytest.raises(Refused, match="do not agree"):
            Redis(LAYOUT._replace(about="something else"), self.server.address, driver.run, "other")
        driver.close()

    def test_a_role_is_one_process_unless_a_later_life_takes_over(self, monkeypatch):
        monkeypatch.setattr("boonta.transport.redis_insert.HELD", 1000)
        monkeypatch.setattr("boonta.transport.redis_insert.LEASE", 0.1)
        driver = self.make(LAYOUT)
        first = joined(driver, "value/0")
        with pytest.raises(Refused, match="value/0 is taken by a process that is there"):
            joined(driver, "value/0")
        second = joined(driver, "value/0", life=1)
        with pytest.raises(Disconnected, match="value/0 was taken over"):
            soon(lambda: first.put("a", 1))
        second.put("a", 2)
        second.flush()
        first.close()
        assert driver.holder("value/0")  # it was not the first's any more
        second.close()
        assert not driver.holder("value/0")
        driver.close()

    def test_a_role_is_taken_from_who_hangs_and_free_soon(self, monkeypatch):
        monkeypatch.setattr("boonta.transport.redis.HELD", 500)
        monkeypatch.setattr("boonta.transport.redis_insert.LEASE", 0.1)
        driver = self.make(LAYOUT)
        first = joined(driver, "value/0", life=7)
        driver.dismiss("value/0")
        assert not driver.holder("value/0")
        with pytest.raises(Disconnected, match="value/0 was taken over by 999999999:nobody"):
            soon(lambda: first.put("a", 1))
        second = joined(driver, "value/0", life=1)
        assert driver.holder("value/0")
        for exchange in (first, second, driver):
            exchange.close()

    def test_who_comes_from_elsewhere_has_left_once_another_has_the_role(self, monkeypatch):
        monkeypatch.setattr("boonta.experiments.systems.split_processes.LOOK", 0.0)
        driver = self.make(LAYOUT)
        member = Elsewhere(driver, "value/0")
        assert [member.poll() for _ in range(5)] == [None] * 5  # nobody has come
        first = joined(driver, "value/0")
        assert [member.poll() for _ in range(5)] == [None] * 5
        second = joined(driver, "value/0", life=1)
        assert member.poll() is not None
        assert Elsewhere(driver, "value/0").poll() is None
        second.close()
        assert member.poll() is not None
        for exchange in (first, driver):
            exchange.close()

    def test_what_somebody_else_deletes_is_told_again(self, monkeypatch):
        monkeypatch.setattr("boonta.transport.redis_insert.LEASE", 0.1)
        driver = self.make(LAYOUT)
        other = joined(driver, "other")
        driver.put("b", 5)
        other.put("a", 4)
        other.publish("value", 3, blob(3))
        soon(lambda: driver.totals() == {"a": 4, "b": 5})
        client = redis_server.client(self.server.address)
        client.flushall()  # no connection is lost
        key = f"{redis_server.prefix(driver.run)}numbers"
        soon(lambda: {b"layout", b"total/a", b"total/b", b"version/value"} <= set(client.hkeys(key)))
        seen = joined(driver, "third")
        soon(lambda: seen.totals() == {"a": 4, "b": 5} and seen.newest("value", 2) is not None)
        for exchange in (seen, other, driver, client):
            exchange.close()

    def test_a_server_without_memory_is_left_nothing_more(self):
        driver = self.make(LAYOUT)
        client = redis_server.client(self.server.address)
        for version in range(5):
            driver.publish("value", version, blob(version))
            driver.flush()
        client.config_set("maxmemory", 1)
        driver.publish("value", 5, blob(5))
        time.sleep(1.0)  # several attempts
        client.config_set("maxmemory", 0)
        driver.flush()
        for version in range(6, 9):
            driver.publish("value", version, blob(version))
            driver.flush()
        assert len([key for key in self.server.left() if b"value:" in key]) == redis_insert.BLOBS
        client.close()
        driver.close()

    def test_a_run_is_found_by_its_name_or_alone(self):
        driver = self.make(LAYOUT)
        client = redis_server.client(self.server.address)
        assert redis_server.there(client) == (driver.run, {"name": driver.run, "config": "text"})
        other = self.make(LAYOUT)
        assert redis_server.there(client, driver.run)[0] == driver.run
        with pytest.raises(Refused, match="--run must name a run that is there"):
            redis_server.there(client)
        with pytest.raises(Refused, match="got nobody"):
            redis_server.there(client, "nobody")
        for exchange in (driver, other, client):
            exchange.close()


@slow
@needs_redis
def test_a_long_log_is_read_while_others_write_in_the_little_memory_that_is_left(tmp_path):
    """A server whose memory is 1.2 times the log needs no more than a tenth of it to answer."""
    size, kept = 1 << 16, 512
    layout = Layout({"log": (size, kept), "more": (256, 1 << 16)}, {}, (), "a test")
    numbered = lambda i, size: np.frombuffer(np.uint64(i).tobytes() * (size // 8), np.uint8)  # noqa: E731
    with redis_servers.serving(tmp_path) as server:
        reader = made(server, layout)
        writer = joined(reader, "writer")
        for i in range(kept):
            reader.append("log", numbered(i, size))
        reader.flush()
        client = redis_server.client(server.address)
        used = lambda: int(client.info("memory")["used_memory"])  # noqa: E731
        before = used()
        client.config_set("maxmemory", int(1.2 * before))
        ended, most, written = threading.Event(), [before], [0]

        def write():
            while not ended.is_set() and written[0] < 8000:
                writer.append("more", numbered(written[0], 256))
                written[0] += 1
                time.sleep(1e-4)

        def look():
            while not ended.is_set():
                most[0] = max(most[0], used())

        threads = [threading.Thread(target=one) for one in (write, look)]
        for one in threads:
            one.start()
        for _ in range(3):
            found = reader.read("log", 0, kept)
            assert (len(found.data), found.following, found.lost) == (kept, kept, 0)
            np.testing.assert_array_equal(found.data[:, 0], np.arange(kept) % 256)
        ended.set()
        for one in threads:
            one.join()
        writer.flush()
        more = reader.read("more", 0, 1 << 16)
        assert len(more.data) == written[0] > 0 and more.lost == 0
        assert "errorstat_OOM" not in client.info("errorstats")
        assert most[0] <= 1.1 * before
        for one in (writer, reader, client):
            one.close()


def test_who_waits_for_long_looks_less_often(monkeypatch):
    slept, memory = [], SharedMemory(LAYOUT)
    monkeypatch.setattr(shm.time, "sleep", slept.append)
    for times in range(3000):
        memory.pause(times)
    memory.close()
    assert slept == sorted(slept)
    assert (slept[0], slept[10], slept[-1]) == (shm.SHORTEST, shm.SHORT, shm.LONGEST)


@needs_redis
def test_a_server_that_forgets_everything_is_told_again(tmp_path):
    with redis_servers.serving(tmp_path) as server:
        driver = made(server, LAYOUT)
        other = joined(driver, "other")
        driver.put("b", 5)
        for i in range(3):
            other.append("log", entry(i))
        other.publish("value", 3, blob(3))
        other.flush()  # it knows that all is there
        soon(lambda: driver.length("log") == 3)
        server.stop()
        other.append("log", entry(3))  # nobody waits
        other.put("a", 4)
        server.start()
        soon(lambda: driver.totals() == {"a": 4, "b": 5} and other.totals() == {"a": 4, "b": 5})
        assert driver.length("log") == 4
        found = driver.read("log", 0, 9)
        assert (numbers(found.data), found.following, found.lost) == ([3], 4, 3)
        soon(lambda: driver.newest("value", 2) is not None)
        other.close()
        driver.close()
        assert not server.left()


@needs_redis
def test_no_total_is_told_again_before_the_entries_it_counts(tmp_path, monkeypatch):
    from redis.exceptions import ConnectionError

    transact, seen = redis_insert.Insert._transact, []

    def watched(insert, batch, again):
        transact(insert, batch, again)
        if not insert.role:
            return
        seen.append([int(number or 0) for number in client.hmget(insert.link.numbers, "total/a", "length/log")])
        if len(seen) == 1:  # the answer is lost, and more is written meanwhile
            other.append("log", entry(1))
            other.put("a", 2)
            insert.link.forgotten()
            raise ConnectionError("no answer")

    with redis_servers.serving(tmp_path) as server:
        driver, client = made(server, LAYOUT), redis_server.client(server.address)
        monkeypatch.setattr(redis_insert.Insert, "_transact", watched)
        other = joined(driver, "other")
        other.append("log", entry(0))
        soon(lambda: driver.totals()["a"] == 2)
        other.close()
        driver.close()
        client.close()
    assert seen[-1] == [2, 2] and all(total <= length for total, length in seen)


@needs_redis
def test_what_others_have_read_never_changes_though_an_answer_is_lost(tmp_path, monkeypatch):
    from redis.client import Pipeline
    from redis.exceptions import ConnectionError

    execute, lost = Pipeline.execute, []

    def watched(pipe, *args, **more):
        ours = any("SET" in command[0] and "value:" in str(command) for command, _ in pipe.command_stack)
        answers = execute(pipe, *args, **more)
        if ours and not lost:
            soon(lambda: driver.newest("value", 1) is not None)
            lost.append(driver.newest("value", 1))
            soon(lambda: "value" in driver._read._blobs)
            other.publish("value", 3, blob(3))
            other._link.forgotten()
            raise ConnectionError("no answer")
        return answers

    with redis_servers.serving(tmp_path) as server:
        driver = made(server, LAYOUT)
        other = joined(driver, "other")
        other.publish("value", 1, blob(1))
        other.flush()
        monkeypatch.setattr(Pipeline, "execute", watched)
        other.publish("value", 2, blob(2))
        soon(lambda: driver.newest("value", 2) is not None)
        version, data = driver.newest("value", 2)
        for number in range(4, 9):
            other.publish("value", number, blob(number))
            other.flush()
        left = driver._link.server.keys("*value:*")
        other.close()
        driver.close()
    assert lost[0][0] == 2 and version == 3
    np.testing.assert_array_equal(data, blob(3))
    assert len(left) == redis_insert.BLOBS


@needs_redis
def test_a_server_that_stays_away_breaks_the_exchange(tmp_path):
    with redis_servers.serving(tmp_path) as server:
        driver = made(server, LAYOUT, patience=0.5)
        server.stop()
        with pytest.raises(Disconnected, match="Redis at redis://127.0.0.1:.* has failed for"):
            soon(lambda: driver.put("a", 1))
        driver.close()


@needs_redis
def test_what_redis_cannot_keep_is_refused(tmp_path):
    large = LAYOUT._replace(logs=LAYOUT.logs | {"log": (1 << 20, 1 << 10)})
    said = {
        ("--maxmemory", "64mb"): "1.07 GB of Redis are needed for agent.capacity",
        ("--maxmemory", "8gb", "--maxmemory-policy", "allkeys-lru"): "maxmemory-policy allkeys-lru, which loses",
    }
    for options, message in said.items():
        with redis_servers.serving(tmp_path, *options) as server, pytest.raises(Refused, match=message):
            made(server, large)


@needs_redis
def test_passwords_come_from_the_environment(tmp_path, monkeypatch):
    with redis_servers.serving(tmp_path, "--requirepass", "secret") as server:
        with pytest.raises(Refused, match=r"wants a password: set \$BOONTA_REDIS_PASSWORD"):
            made(server, LAYOUT)
        monkeypatch.setenv("BOONTA_REDIS_PASSWORD", "wrong")
        with pytest.raises(Refused, match=r"refuses the password of \$BOONTA_REDIS_PASSWORD"):
            made(server, LAYOUT)
        monkeypatch.setenv("BOONTA_REDIS_PASSWORD", "secret")
        made(server, LAYOUT).close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("redis://user:secret@127.0.0.1:6379/0", "must not hold the password"),
        ("http://127.0.0.1:6379", "must be shm, redis://HOST:PORT/DATABASE"),
        ("redis://127.0.0.1:6379/0?nonsense=1", "nonsense"),
        ("redis://127.0.0.1:99999/0", "must be shm, redis://HOST:PORT/DATABASE.*99999"),
        ("redis://127.0.0.1:port/0", "must be shm, redis://HOST:PORT/DATABASE"),
        ("redis://127.0.0.1:6379/abc", "must be shm, redis://HOST:PORT/DATABASE.*abc"),
        ("redis://127.0.0.1:6379/0?password=secret", "must not hold the password"),
    ],
)
def test_addresses_that_cannot_be_are_refused(address, message):
    with pytest.raises(ValueError, match=message):
        redis_server.client(address)


def made(server, layout, patience=60.0):
    client = redis_server.client(server.address)
    run = redis_server.called(server.address, lambda: redis_server.begun(client))
    client.close()
    return Redis(layout, server.address, run, patience=patience, told={"config": "text"})


def joined(exchange, role, life=0, patience=60.0):
    return Redis(exchange.layout, exchange.address, exchange.run, role, life, patience)


def soon(what):
    until = time.monotonic() + 20.0
    while not what():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_errors_that_may_pass_are_known_in_transactions_too():
    said = pytest.importorskip("redis.exceptions")
    assert redis_server.passing(said.ResponseError("Command # 1 (XADD x) of pipeline caused error: MISCONF Redis is"))
    assert redis_server.passing(said.OutOfMemoryError("OOM command not allowed"))
    assert not redis_server.passing(said.ResponseError("WRONGTYPE Operation against a key"))
    assert not redis_server.passing(said.AuthenticationError("invalid password"))


@needs_redis
def test_whoever_a_run_has_started_waits_for_a_server_and_then_says_so(tmp_path):
    with redis_servers.serving(tmp_path) as server:
        driver = made(server, LAYOUT)
        server.stop()
        with pytest.raises(Disconnected, match="has failed for"):
            joined(driver, "value/0", patience=0.5)
        with pytest.raises(Refused, match="Redis at"):
            redis_server.called(server.address, lambda: redis_server.there(redis_server.client(server.address)))
        driver.close()


TREE = {
    "origin": Origin(np.int32(1), np.int32(2), np.int32(3), np.int32(4)),
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "flag": np.array([True, False, True]),
    "nothing": (),
}


def test_trees_come_back_as_they_were():
    packing = Packing(TREE)
    data = packing.pack(TREE)
    assert data.shape == (packing.nbytes,) and packing.nbytes % 8 == 0
    again = packing.unpack(data)
    assert isinstance(again["origin"], Origin) and again["nothing"] == ()
    jax.tree.map(np.testing.assert_array_equal, again, TREE)
    many = packing.unpack(np.stack([data, data]))
    assert many["x"].shape == (2, 2, 3) and many["origin"].life.shape == (2,)
    assert Packing(jax.eval_shape(lambda: TREE)).schema == packing.schema


def test_what_does_not_fit_is_refused():
    packing = Packing(TREE)
    with pytest.raises(ValueError, match=r"x must be float32\[2, 3\], got float64\[2, 3\]"):
        packing.pack(TREE | {"x": TREE["x"].astype(np.float64)})
    with pytest.raises(ValueError, match="keys is .*, which cannot be sent"):
        Packing({"keys": jax.random.key(0)})
    assert Packing({"x": jnp.zeros(3)}).schema != Packing({"x": jnp.zeros(4)}).schema
