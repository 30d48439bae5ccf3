"""The wire: what is said comes through, what is wrong is refused to the one who said it."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import trustme
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from boonta import envs
from boonta.core import host, nests
from boonta.core.faults import Broken
from boonta.core.host import Workers
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID
from boonta.transport import actor as acting
from boonta.transport import messages, security
from boonta.transport.client import Link, Lost, Welcome
from boonta.transport.security import Security, check_address, check_free, check_host, unguarded
from boonta.transport.server import Refused, Server
from boonta.transport.wire import Malformed, Schema

PIXELS = Spec("pixels", Shape((3, 3, 2), np.uint8), Discrete(4))
BOX = Continuous((2,), -np.ones(2, np.float32), np.ones(2, np.float32))
MANY = Spec("many", {"z": Shape((2,), np.float32), "a": Shape((), np.int32), "legal": Shape((3,), bool)}, Discrete(3))
OPEN = Security()
SPECS = {"pixels": PIXELS, "box": Spec("box", Shape((5,), np.float32), BOX), "many": MANY}


def timestep(spec, count, kind=FIRST, seed=0):
    rng = np.random.default_rng(seed)
    made = host.empty(spec, count)
    for leaf in nests.leaves(made.observation):
        leaf[:] = 1 if leaf.dtype == bool else rng.integers(0, 9, leaf.shape)
    made.step_type[:] = kind
    if kind != FIRST:
        made.reward[:] = rng.normal(size=count)
        made.discount[:] = kind != LAST
    return made


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("count", [1, 3])
def test_what_is_sent_arrives(name, count):
    spec = SPECS[name]
    schema = Schema(spec)
    sent = timestep(spec, count)
    actions = np.resize(schema.no_actions, (count, *schema.no_actions.shape[1:])) + 1
    if isinstance(spec.action, Discrete):
        for wrong in (-1, spec.action.n):
            with pytest.raises(Malformed, match="action must be from 0 to below"):
                schema.decode_actions(schema.encode_actions(np.full_like(actions, wrong)), count)
    else:
        with pytest.raises(Malformed, match="action is not finite"):
            schema.decode_actions(schema.encode_actions(np.full_like(actions, np.nan)), count)
    got = schema.decode(schema.encode(sent), None, actions)
    nests.mapped(np.testing.assert_array_equal, got, sent)
    assert not got.action.any(), "the action before FIRST is zeros"
    later = timestep(spec, count, MID)
    got = schema.decode(schema.encode(later), sent.step_type, actions)
    nests.mapped(np.testing.assert_array_equal, got, later._replace(action=actions))
    again = schema.decode_actions(schema.encode_actions(actions), count)
    np.testing.assert_array_equal(again, actions)


def test_the_schema_is_said_in_words():
    lines = ["observation u1[3,3,2]", "reward f4[]", "discount f4[]", "step_type i1[]", "->", "action i4[] < 4"]
    assert Schema(PIXELS).text == "\n".join(lines)
    assert Schema(MANY).text.startswith("observation/a i4[]\nobservation/legal b1[3]\nobservation/z f4[2]\n")
    few = Schema(PIXELS._replace(observation=Shape((3, 3, 2), np.uint8, (0, 3))))
    assert few.text.startswith("observation u1[3,3,2] from 0 to 3\n") and few.fingerprint != Schema(PIXELS).fingerprint
    stacked = Schema(PIXELS._replace(stack=2))
    assert stacked.text.splitlines()[0] == "observation u1[3,3,2] stack 2"
    assert len({Schema(spec).fingerprint for spec in SPECS.values()} | {stacked.fingerprint}) == len(SPECS) + 1


def altered(field, value):
    made = timestep(MANY, 2, MID)
    if field in made.observation:
        made.observation[field][1] = value
    else:
        getattr(made, field)[1] = value
    return Schema(MANY).encode(made)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "2 time steps are"),
        (Schema(MANY).encode(timestep(MANY, 3, MID)), "2 time steps are"),
        (altered("z", np.nan), "observation/z is not finite"),
        (altered("reward", np.inf), "reward is not finite"),
        (altered("reward", 3e38), "reward must be within"),
        (altered("reward", -2e15), "reward must be within 1e.15 of 0"),
        (altered("discount", 2.0), "discount must be from -1 to 1"),
        (altered("step_type", 3), "step_type must be 0, 1 or 2"),
        (altered("step_type", -1), "step_type must be 0, 1 or 2"),
        (altered("step_type", FIRST), "FIRST must come"),
        (altered("legal", False), "no action is legal"),
        (Schema(MANY).encode(timestep(MANY, 2, MID)).replace(b"\1\1\1", b"\1\2\1"), "must be 0 or 1"),
    ],
)
def test_what_is_wrong_is_named(data, words):
    with pytest.raises(Malformed, match=words):
        Schema(MANY).decode(data, np.full(2, MID), np.zeros(2, np.int32))


def test_a_discount_of_0_comes_with_last_and_first_has_1():
    schema, zeros, mid = Schema(PIXELS), np.zeros(2, np.int32), np.full(2, MID)
    schema.decode(schema.encode(timestep(PIXELS, 2, LAST)), mid, zeros)
    ended = timestep(PIXELS, 2, MID)
    ended.discount[1] = 0.0
    with pytest.raises(Malformed, match="a discount of 0 must come with LAST"):
        schema.decode(schema.encode(ended), mid, zeros)
    begun = timestep(PIXELS, 2)
    begun.discount[1] = 0.5
    with pytest.raises(Malformed, match=r"the discount at FIRST must be 1, got \[1.0, 0.5\]"):
        schema.decode(schema.encode(begun), None, zeros)


def test_the_fingerprint_that_the_proto_file_shows_is_right():
    schema = Schema(Spec("pong", Shape((84, 84, 4), np.uint8), Discrete(6), stack=4))
    proto = (Path(messages.__file__).parent / "boonta.proto").read_text()
    assert schema.fingerprint.hex() in proto
    assert all(f"//     {line}\n" in proto for line in schema.text.splitlines())


def test_first_comes_after_last_and_with_no_reward():
    schema, zeros = Schema(PIXELS), np.zeros(2, np.int32)
    schema.decode(schema.encode(timestep(PIXELS, 2)), np.full(2, LAST), zeros)
    with pytest.raises(Malformed, match="FIRST must come"):
        schema.decode(schema.encode(timestep(PIXELS, 2, MID)), np.full(2, LAST), zeros)
    with pytest.raises(Malformed, match="FIRST must come"):
        schema.decode(schema.encode(timestep(PIXELS, 2, MID)), None, zeros)
    rewarded = timestep(PIXELS, 2)
    rewarded.reward[1] = 1.0
    with pytest.raises(Malformed, match="reward at FIRST must be 0"):
        schema.decode(schema.encode(rewarded), None, zeros)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([None, FIRST, MID, LAST]))
def test_no_bytes_do_harm(data, before):
    schema = Schema(MANY)
    whole = np.frombuffer(data.ljust(2 * schema.step_bytes, b"\0")[: 2 * schema.step_bytes], np.uint8).tobytes()
    for one in (data, whole):
        try:
            got = schema.decode(one, None if before is None else np.full(2, before), np.zeros(2, np.int32))
        except Malformed:
            continue
        for leaf in nests.leaves(got):
            assert np.isfinite(leaf).all() and len(leaf) == 2


def test_the_proto_file_is_what_python_says(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder = Path(messages.__file__).parent
    protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={tmp_path}/d", "boonta.proto"])
    (file,) = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "d").read_bytes()).file
    service, method = messages.METHOD.strip("/").split("/")
    assert [f"{file.package}.{one.name}" for one in file.service] == [service]
    (connect,) = file.service[0].method
    assert (connect.name, connect.client_streaming, connect.server_streaming) == (method, True, True)
    theirs, ours = ({m.name: m for m in one.message_type} for one in (file, messages.description()))
    for name in theirs.keys() | ours.keys():
        for message in (theirs[name], ours[name]):
            for field in message.field:
                field.ClearField("json_name")
        assert theirs[name] == ours[name]


@pytest.mark.parametrize("nbytes", [1, 100, 127, 128, 16_383, 16_384, 300_000])
def test_data_is_written_as_protobuf_would_and_read_however_it_was_written(nbytes):
    data = np.random.default_rng(0).bytes(nbytes)
    written = messages.with_data(data)
    assert written == messages.FromClient(steps=messages.Steps(data=data)).SerializeToString()
    assert written == messages.FromServer(actions=messages.Actions(data=data)).SerializeToString()
    unknown = b"\x18\x05"  # a field of some later protocol
    for message in (written, written + unknown):
        for expected in (nbytes, nbytes + 1, 1):
            assert bytes(messages.data_in(message, expected, messages.FromClient, "steps")) == data


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "expected steps, got None"),
        (b"\xff\xff", "expected steps, got what is no message"),
        (messages.FromClient(hello=messages.Hello(protocol=1)).SerializeToString(), "expected steps, got hello"),
    ],
)
def test_other_messages_are_named(message, words):
    with pytest.raises(Malformed, match=words):
        messages.data_in(message, 2, messages.FromClient, "steps")


# Client and server


def total(timestep, count):
    """Of what is seen, for each environment."""
    return (timestep.observation.reshape(count, -1).sum(axis=1) % PIXELS.action.n).astype(np.int32)


class Room:
    """Sessions that answer what they are told to, and remember why they ended."""

    def __init__(self, schema, answer=total):
        self.schema, self.left, self.here, self.slow, self.names = schema, [], 0, 0.0, []
        self.answer = answer

    def join(self, count, first, name):
        if first == 13:
            raise Refused("ALREADY_EXISTS", "another's")
        self.here += 1
        self.names.append(name)
        room = self

        class Session:
            first, life = 7, 2

            def act(self, timestep):
                time.sleep(room.slow)
                return room.answer(timestep, count)

            def leave(self, why):
                room.left.append(why)
                room.here -= 1

        return Session()


@pytest.fixture
def serving():
    servers = []

    def serve(security=OPEN, address="127.0.0.1:0", silence=30.0, most=4, spec=PIXELS, answer=total):
        room = Room(Schema(spec), answer)
        servers.append(Server(address, room.schema, room.join, 11, security, most, 8, silence))
        return servers[-1].address, room

    yield serve
    for server in servers:
        server.close()


def link(address, count=2, first=-1, spec=PIXELS, security=OPEN, timeout=20.0):
    return Link(address, Schema(spec), count, first, "test", security, timeout)


def eventually(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_steps_go_there_and_actions_come_back(serving, tmp_path, where):
    address, room = serving(address="127.0.0.1:0" if where == "tcp" else f"unix:{tmp_path}/s")
    mine = link(address)
    assert mine.welcome == (7, 2, 11)
    for i in range(20):
        sent = timestep(PIXELS, 2, MID if i else FIRST, seed=i)
        np.testing.assert_array_equal(mine.step(sent), total(sent, 2))
    mine.close()
    eventually(lambda: room.left == ["it left"])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"spec": MANY}, "FAILED_PRECONDITION"),
        ({"security": Security(token="wrong")}, "UNAUTHENTICATED"),
        ({"first": 13}, "ALREADY_EXISTS"),
        ({"count": 0}, "INVALID_ARGUMENT"),
    ],
)
def test_who_does_not_fit_is_refused(serving, changes, code):
    address, _ = serving(Security(token="right"))
    friend = link(address, security=Security(token="right"))
    with pytest.raises(Lost, match=code) as caught:
        link(address, **{"security": Security(token="right")} | changes)
    assert caught.value.final == (code != "ALREADY_EXISTS")
    friend.step(timestep(PIXELS, 2))
    friend.close()


def test_a_client_that_breaks_the_rules_goes_alone(serving):
    address, room = serving()
    good, bad = link(address), link(address)
    for one in (good, bad):
        one.step(timestep(PIXELS, 2))
    with pytest.raises(Lost, match="INVALID_ARGUMENT: FIRST must come"):
        bad.step(timestep(PIXELS, 2))
    for _ in range(3):
        good.step(timestep(PIXELS, 2, MID))
    bad.close()
    good.close()
    eventually(lambda: sorted(room.left) == ["it left", room.left[0]] or len(room.left) == 2)
    assert any("FIRST must come" in why for why in room.left)


def test_what_a_client_calls_itself_is_harmless_to_print(serving):
    address, room = serving()
    Link(address, Schema(PIXELS), 1, -1, "me\x1b[2J\nall is well\u202e", OPEN, 20.0).close()
    assert room.names == [r"me\x1b[2J\nall is well\u202e"]


def test_an_actor_is_as_patient_after_a_fault_as_before(monkeypatch):
    """Its environments fail long after its start; it looks for a server as long as at the beginning."""
    clock, made = [0.0], []

    class Fleeting:
        def __init__(self, *_):
            made.append(clock[0])
            if len(made) > 1:
                raise Lost("nobody there", final=len(made) == 4)
            self.welcome = Welcome(0, 0, 0)

        def step(self, timestep):
            clock[0] += 1000.0
            if clock[0] > 3000.0:
                raise Broken("no such luck")
            return np.zeros(1, np.int32)

        def close(self):
            pass

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(acting, "Link", Fleeting)
    monkeypatch.setattr(acting, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    told = []
    wish = acting.Actor(("x",), 1, 0, "a", OPEN, Workers("serial"), patience=60.0)
    with pytest.raises(Lost):
        acting.act(envs.make("gym:CartPole-v1"), wish, told.append)
    assert len(made) == 4 and any("no such luck" in text for text in told)


def test_a_message_that_is_too_large_is_refused(serving):
    address, room = serving(most=1)
    mine = link(address, count=1)
    with pytest.raises(Lost, match="RESOURCE_EXHAUSTED"):
        mine._exchange(messages.with_data(bytes(1 << 20)), bytes)
    mine.close()
    eventually(lambda: room.here == 0)


def test_actions_of_any_size_are_sent(serving):
    """Also 128 environments of 400 floats each, beyond what a message has room for by default."""
    count, many = 128, Continuous((400,), -np.ones(400, np.float32), np.ones(400, np.float32))
    spec = Spec("wide", Shape((2,), np.float32), many)
    schema = Schema(spec)
    actions = np.resize(schema.no_actions, (count, 400)) + np.float32(0.5)
    message = len(schema.encode_actions(actions))
    assert message > 128 * 1024
    address, _ = serving(most=count, spec=spec, answer=lambda *_: actions)
    mine = link(address, count=count, spec=spec)
    np.testing.assert_array_equal(mine.step(timestep(spec, count)), actions)
    mine.close()


def test_a_client_that_says_nothing_is_dropped(serving):
    address, room = serving(silence=0.5)
    quiet = link(address)
    eventually(lambda: room.left == ["it said nothing for 0.5 s (architecture.silence)"])
    with pytest.raises(Lost):
        quiet.step(timestep(PIXELS, 2))
    quiet.close()


def called(channel, *said, metadata=()):
    """Call a server with these messages, and wait; the code and the details with which the call ends."""
    over = threading.Event()

    def saying():
        yield from said
        over.wait(60)

    call = channel.stream_stream(messages.METHOD)(saying(), metadata=metadata)
    try:
        next(call)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    finally:
        over.set()
    return "OK", ""


def test_a_client_of_the_first_protocol_is_refused_in_one_line(serving):
    address, room = serving()
    hello = messages.Hello(protocol=1, fingerprint=room.schema.fingerprint, environments=1, first=-1, name="old")
    with grpc.insecure_channel(address) as channel:
        code, why = called(channel, messages.FromClient(hello=hello).SerializeToString())
        assert (code, why) == (
            "FAILED_PRECONDITION", "no metadata boonta-hello-bin, as of protocol 1; this server speaks 2"
        )  # fmt: skip
        code, why = called(channel, metadata=((messages.HELLO, b"\xff\xff"),))
        assert code == "INVALID_ARGUMENT" and "is no Hello" in why
        code, why = called(channel, metadata=((messages.HELLO, messages.Hello(protocol=3).SerializeToString()),))
        assert (code, why) == ("FAILED_PRECONDITION", "protocol 3; this server speaks 2")
        code, _ = called(channel, metadata=((messages.HELLO, bytes(1 << 16)),))
        assert code == "RESOURCE_EXHAUSTED"  # larger than any hello
    assert room.names == []


def test_strangers_keep_nobody_out(serving, monkeypatch):
    """More of them than there are clients, each as long as it may stay, and connections that say nothing at all."""
    monkeypatch.setattr("boonta.transport.server.HANDSHAKE", 1000)
    address, room = serving(Security(token="right"))
    host, _, port = address.rpartition(":")
    over = threading.Event()

    def saying():
        over.wait(60)
        yield from ()

    with contextlib.ExitStack() as stack:
        stack.callback(over.set)
        raw = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(100)]
        channel = stack.enter_context(grpc.insecure_channel(address))
        calls = [channel.stream_stream(messages.METHOD)(saying()) for _ in range(64)]
        mine = [link(address, security=Security(token="right")) for _ in range(8)]
        for one in mine:
            stack.callback(one.close)
            one.step(timestep(PIXELS, 2))
        with pytest.raises(Lost, match=r"RESOURCE_EXHAUSTED: 8 clients are connected \(architecture.clients\)"):
            link(address, security=Security(token="right"))
        for call in calls:
            # Those beyond the streams that a connection may have are reset, or wait for the others to end.
            with pytest.raises(grpc.RpcError, match="FAILED_PRECONDITION|UNIMPLEMENTED|UNAVAILABLE"):
                next(call)
        for one in raw:
            one.settimeout(20.0)
            while one.recv(1 << 12):  # what the server says first; then it hangs up
                pass
        for one in mine:
            one.step(timestep(PIXELS, 2, MID))
    eventually(lambda: len(room.left) == 8)


def test_of_a_crowd_of_strangers_some_are_told_why(serving, monkeypatch):
    monkeypatch.setattr("boonta.transport.server.TOLD", 3)
    address, room = serving(Security(token="right"))
    hello = messages.Hello(
        protocol=messages.PROTOCOL, fingerprint=room.schema.fingerprint, environments=1, token="wrong"
    )
    metadata = ((messages.HELLO, hello.SerializeToString()),)
    with grpc.insecure_channel(address) as channel:
        begun = time.monotonic()
        found = [called(channel, metadata=metadata)[0] for _ in range(40)]
    assert {*found} == {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    assert found.count("UNAUTHENTICATED") <= 3 * (2 + time.monotonic() - begun)
    link(address, security=Security(token="right")).close()


@pytest.mark.parametrize("address", ["http://127.0.0.1:80", "grpc://server:1", "redis://server:1"])
def test_an_address_is_no_url(address):
    with pytest.raises(ValueError, match="must be unix:PATH or HOST:PORT, without (http|grpc|redis)://"):
        check_address(address)


def test_a_host_that_is_none_is_refused_at_once_and_a_name_server_has_time(monkeypatch, capfd):
    clock, found = [0.0], []

    def looked_up(host, port, type):
        found.append(host)
        if host == "soon" and len(found) > 3:
            return []
        number = socket.EAI_AGAIN if host in ("soon", "never") else socket.EAI_NONAME
        raise socket.gaierror(number, "Temporary failure" if number == socket.EAI_AGAIN else "Name not known")

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(security, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    with pytest.raises(
        ValueError, match=r"no.where:1: there is no host no.where \(Name not known\); --patience SECONDS"
    ):
        check_host("no.where:1", 300.0, False)
    assert clock[0] == 0.0 and not capfd.readouterr().err
    found.clear()
    check_host("soon:1", 300.0, False)
    assert capfd.readouterr().err == "boonta: soon:1: Temporary failure; looked up again, for up to 300 s\n"
    for name, asked in (("never", False), ("no.where", True)):
        begun = clock[0]
        with pytest.raises(ValueError, match=f"there is no host {name}"):
            check_host(f"{name}:1", 60.0, asked)
        assert clock[0] == begun + 60.0
    check_host("unix:/s", 0.0, False)


def test_no_token_goes_in_clear_to_other_machines():
    with pytest.raises(ValueError, match="a token for 192.0.2.1:1 needs --authority"):
        link("192.0.2.1:1", security=Security(token="x"))


def test_a_server_that_every_user_may_connect_to_says_so():
    assert unguarded("127.0.0.1:8472", OPEN).startswith("127.0.0.1:8472 asks for no token: every user of this computer")
    assert not unguarded("127.0.0.1:8472", Security(token="x")) and not unguarded("unix:/s", OPEN)


def test_an_address_that_is_taken_is_refused(serving):
    address, _ = serving()
    with pytest.raises(OSError, match="cannot be listened at"):
        serving(address=address)


def test_a_server_that_does_not_answer_is_left(serving):
    address, room = serving()
    mine = link(address, timeout=0.5)
    room.slow = 3.0
    with pytest.raises(Lost, match="no answer for 0.5 s"):
        mine.step(timestep(PIXELS, 2))
    mine.close()


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Lost, match="UNAVAILABLE"):
        link(f"127.0.0.1:{port}", timeout=5.0)


def test_rubbish_does_not_disturb_others(serving):
    """Bytes that are no HTTP/2, and messages of random bytes."""
    address, room = serving()
    good = link(address)
    good.step(timestep(PIXELS, 2))
    rng, (name, port) = np.random.default_rng(0), address.split(":")
    for _ in range(50):
        with socket.create_connection((name, int(port))) as raw:
            raw.sendall(rng.bytes(int(rng.integers(1, 500))))
    channel = grpc.insecure_channel(address)
    connect = channel.stream_stream(messages.METHOD)
    refused = 0
    for _ in range(200):
        try:
            for _ in connect(iter([rng.bytes(int(rng.integers(0, 300)))]), timeout=10):
                pass
        except grpc.RpcError:
            refused += 1
    channel.close()
    assert refused == 200
    good.step(timestep(PIXELS, 2, MID))
    good.close()
    eventually(lambda: room.here == 0)


def test_what_others_can_reach_needs_a_certificate_and_a_token():
    schema = Schema(PIXELS)
    with pytest.raises(ValueError, match="needs --certificate and --key;"):
        Server("0.0.0.0:0", schema, Room(schema).join, 0, Security(token="x"), 1, 1, 1.0)
    with pytest.raises(ValueError, match="go together"):
        Server("127.0.0.1:0", schema, Room(schema).join, 0, Security(certificate="x"), 1, 1, 1.0)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "must be unix:PATH or HOST:PORT"),
        ("localhost:99999", "port from 0 to 65535"),
        ("127.0.0.1:abc", "must be unix:PATH or HOST:PORT"),
        (":80", "must be unix:PATH or HOST:PORT"),
        ("unix:", "must name a file"),
        ("unix:/nowhere/at/all/s", "must name a file in a folder that is there"),
    ],
)
def test_an_address_has_one_of_two_forms(address, words):
    with pytest.raises(ValueError, match=words):
        check_address(address)


def test_an_address_is_tried_before_anything_expensive(serving, tmp_path):
    for address in ("127.0.0.1:0", f"unix:{tmp_path}/s"):
        check_free(address)
        taken, _ = serving(address=address)
        with pytest.raises(OSError, match="cannot be listened at"):
            check_free(taken)


def test_certificates_are_looked_at_before_grpc_sees_them(tmp_path):
    certificate, key, authority = certificates(tmp_path)
    Security(certificate, key, authority).bytes()
    rubbish = str(tmp_path / "rubbish.pem")
    Path(rubbish).write_text("no certificate")
    for wrong, words in [
        (Security(certificate), "go together"),
        (Security(certificate, rubbish), "--certificate .*, --key"),
        (Security(authority=rubbish), "--authority"),
        (Security(authority=str(tmp_path / "none")), "cannot be read"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong.bytes()


def certificates(folder):
    """A certificate for this machine, its key, and the authority that signed it."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    paths = [str(folder / name) for name in ("certificate.pem", "key.pem", "authority.pem")]
    blobs = (issued.cert_chain_pems[0], issued.private_key_pem, authority.cert_pem)
    for blob, path in zip(blobs, paths, strict=True):
        blob.write_to_path(path)
    return paths


def test_tls_and_the_token_let_in_and_keep_out(serving, tmp_path):
    certificate, key, authority = certificates(tmp_path)
    both = Security(certificate, key, authority, "secret")
    address, room = serving(both)
    mine = link(address, security=both)
    mine.step(timestep(PIXELS, 2))
    mine.close()
    for wrong in (
        Security(token="secret"),  # no TLS
        Security(authority=authority, token="secret"),  # no certificate of its own
        both._replace(token="guess"),
    ):
        with pytest.raises(Lost):
            link(address, security=wrong, timeout=5.0)
    eventually(lambda: room.left == ["it left"])


def test_remote_environments_need_no_jax():
    code = (
        "import sys, psutil\nimport boonta.cli, boonta.transport.actor\nfrom boonta import envs\n"
        "envs.make('ale:Pong'), envs.make('gym:CartPole-v1')\n"
        "assert not {'jax', 'flax', 'optax', 'orbax'} & {name.split('.')[0] for name in sys.modules}\n"
        "print(psutil.Process().memory_info().rss // 1_000_000)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(out.stdout) < 200, f"{out.stdout} MB"


def test_no_thread_is_left(serving):
    before = {*threading.enumerate()}
    mine = link(serving()[0])
    mine.close()
    eventually(lambda: not [one for one in {*threading.enumerate()} - before if one.name == "connection watcher"])
