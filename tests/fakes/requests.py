"""Requests with something in every list, and the error codes in a response."""

from headrace.wire import schema
from headrace.wire.api import request_class


def filled(api_key, api_version):
    """A request with one element in every list, as it arrives in that version."""
    kind = request_class(api_key)
    structs = schema.definition(kind.__name__).structs

    def made(name, build):
        message = build()
        for field in structs[name]:
            if field.is_array:
                value = [one(field)]
            elif field.element in ("string", "bytes", "records") or field.is_struct:
                value = one(field)
            else:
                continue
            setattr(message, field.name, value)
        return message

    def one(field):
        if field.is_struct:
            return made(field.element, getattr(kind, field.element))
        plain = {"string": "x", "uuid": bytes(15) + b"\x01", "bytes": b"x", "records": b"x"}
        return plain.get(field.element, 7)

    return carried(made(kind.__name__, kind), api_version)


def carried(message, api_version):
    out = bytearray()
    schema.encoder(type(message), api_version)(message, out)
    return schema.decoder(type(message), api_version)(bytes(out), 0, len(out))[0]


def codes_in(message):
    for name in message.__slots__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        for element in value if isinstance(value, list) else ():
            if isinstance(element, schema.Message):
                yield from codes_in(element)
