"""The messages of boonta.proto as protobuf classes.

Made here rather than generated: generated code ties users to the protobuf of whoever generated it. A test holds these
to what protoc makes of the file.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTOCOL = 1
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
