"""Records of ``__consumer_offsets`` and ``__transaction_state`` as plain values. Pure."""

import base64
from typing import Any

from headrace.core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.model.errors import PeerBroken
from headrace.model.ids import id_to_text
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.framing import decode_record_key, decode_versioned
from headrace.wire.messages.tables import TABLES
from headrace.wire.schema import Field, Message

Plain = dict[str, object]

_TRANSACTION_KEYS = ("TransactionLogKey",)
_SHARE_STATE_KEYS = ("ShareSnapshotKey", "ShareUpdateKey")  # of __share_group_state
_KEYS = {
    TRANSACTIONS_TOPIC: _TRANSACTION_KEYS,
    OFFSETS_TOPIC: tuple(
        name
        for name, table in TABLES.items()
        if table.startswith("coordinator-key ")
        and name not in (*_TRANSACTION_KEYS, *_SHARE_STATE_KEYS)
    ),
}


def decode(topic: str, key: bytes | None, value: bytes | None) -> tuple[Plain, Plain | None] | None:
    """Key and value of a record of ``topic``; the value of a tombstone is None.

    None if the topic is not internal, or if the record is of an unknown type or version.
    """
    if key is None or topic not in _KEYS:
        return None
    key_classes: list[type[Message]] = [getattr(m, name) for name in _KEYS[topic]]
    try:
        decoded_key = decode_record_key(key_classes, key)
        if decoded_key is None:
            return None
        name = type(decoded_key).__name__.removesuffix("Key")
        plain_key = {"type": name, **_plain(decoded_key, f"{name}Key", 0)}
        if value is None:
            return plain_key, None
        version = int.from_bytes(value[:2], "big", signed=True)
        decoded_value = decode_versioned(getattr(m, f"{name}Value"), value)
    except PeerBroken:
        return None
    return plain_key, {"version": version, **_plain(decoded_value, f"{name}Value", version)}


def _plain(message: Message, name: str, version: int) -> Plain:
    """The fields that ``version`` has."""
    return _plain_struct(message, schema.definition(name).structs, name, version)


def _plain_struct(
    message: Message, structs: dict[str, list[Field]], name: str, version: int
) -> Plain:
    found: Plain = {}
    for field in structs[name]:
        if field.versions.includes(version):
            value = getattr(message, field.name)
            is_list = field.is_array and value is not None
            found[field.name] = (
                [_plain_value(one, field, structs, version) for one in value]
                if is_list
                else _plain_value(value, field, structs, version)
            )
    return found


def _plain_value(value: Any, field: Field, structs: dict[str, list[Field]], version: int) -> object:
    if value is None:
        return None
    if field.is_struct:
        return _plain_struct(value, structs, field.element, version)
    if field.element == "uuid":
        return id_to_text(value)
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    return value
