"""The messages of boonta.proto as protobuf classes.

Made here rather than generated: generated code ties users to the protobuf of whoever generated it. A test holds these
to what protoc makes of the file. Steps and Actions, which come thousands of times, are written as their bytes, and read
so where they came as anybody would write them: protobuf would copy the arrays three times on the way.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from boonta.transport.wire import Malformed

PROTOCOL = 2
HELLO = "boonta-hello-bin"  # the metadata of a call in which the client's Hello is
METHOD = "/boonta.v1.Environments/Connect"

_FIELDS = {
    "Hello": "uint32 protocol, bytes fingerprint, uint32 environments, int64 first, string token, string name",
    "Welcome": "int64 first, int64 life, int64 seed",
    "Steps": "bytes data",
    "Actions": "bytes data",
    "FromClient": "Hello hello, Steps steps",
    "FromServer": "Welcome welcome, Actions actions",
}
_KINDS = descriptor_pb2.FieldDescriptorProto
_TYPES = {kind: getattr(_KINDS, f"TYPE_{kind.upper()}") for kind in ("uint32", "int64", "bytes", "string")}


def description() -> descriptor_pb2.FileDescriptorProto:
    """The file, as protoc would describe it, without its service."""
    file = descriptor_pb2.FileDescriptorProto(name="boonta.proto", package="boonta.v1", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        choice = name.startswith("From")
        if choice:
            message.oneof_decl.add(name="kind")
        for number, words in enumerate(fields.split(", "), 1):
            kind, field_name = words.split()
            field = message.field.add(name=field_name, number=number, label=_KINDS.LABEL_OPTIONAL, json_name=field_name)
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _KINDS.TYPE_MESSAGE, f".boonta.v1.{kind}"
            if choice:
                field.oneof_index = 0
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(description())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"boonta.v1.{name}"))


Hello, Welcome, Steps, Actions, FromClient, FromServer = map(
    _class, ("Hello", "Welcome", "Steps", "Actions", "FromClient", "FromServer")
)


def with_data(data: bytes) -> bytes:
    """FromClient with Steps of this data, or FromServer with such Actions: their fields are numbered alike."""
    return _head(len(data)) + data


def data_in(message: bytes, nbytes: int, sender: Any, kind: str) -> memoryview | bytes:
    """The data of Steps or Actions.

    Args:
        message: as it came.
        nbytes: that are expected; others are returned too.
        sender: FromClient or FromServer.
        kind: steps or actions.

    Raises:
        Malformed: another message.
    """
    head = _head(nbytes)
    if len(message) == len(head) + nbytes and message.startswith(head):
        return memoryview(message)[len(head) :]
    return read(message, sender, kind).data


def read(message: bytes, sender: Any, kind: str) -> Any:
    """The part of this kind.

    Raises:
        Malformed: another message.
    """
    try:
        whole = sender.FromString(message)
    except DecodeError as error:
        raise Malformed(f"expected {kind}, got what is no message: {error}") from error
    if whole.WhichOneof("kind") != kind:
        raise Malformed(f"expected {kind}, got {whole.WhichOneof('kind')}")
    return getattr(whole, kind)


def hello(metadata: Iterable[tuple[str, str | bytes]]) -> Any:
    """The Hello of a call's metadata; None where there is none, as of clients of protocol 1.

    Raises:
        Malformed: it is something else.
    """
    said = dict(metadata).get(HELLO)
    if said is None:
        return None
    try:
        return Hello.FromString(said)
    except DecodeError as error:
        raise Malformed(f"the metadata {HELLO} is no Hello: {error}") from error


@lru_cache(256)
def _head(nbytes: int) -> bytes:
    """What comes before so many bytes of data: two tags, each with the length of what follows."""
    inner = b"\x0a" + _varint(nbytes)
    return b"\x12" + _varint(len(inner) + nbytes) + inner


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit of a byte says that more come."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])
