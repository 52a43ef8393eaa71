"""Frames of application/vnd.amazon.eventstream: https://smithy.io/2.0/aws/amazon-eventstream.html"""

import json
import struct
import zlib

STRING = 7
JSON = {":content-type": "application/json"}


def frame(headers, payload=b"", wrong=0):
    """One message; `wrong` is added to its checksum."""
    encoded = b"".join(header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", len(encoded) + len(payload) + 16, len(encoded))
    message = b"".join([prelude, struct.pack(">I", zlib.crc32(prelude)), encoded, payload])
    return message + struct.pack(">I", (zlib.crc32(message) + wrong) % (1 << 32))


def header(name, value):
    name, value = name.encode(), value.encode()
    return struct.pack(">B", len(name)) + name + struct.pack(">BH", STRING, len(value)) + value


def event(content, kind="result", wrong=0):
    headers = {":message-type": "event", ":event-type": kind, **JSON}
    return frame(headers, json.dumps(content).encode(), wrong)


def unknown_event(size=1):
    return event({"x": "x" * size}, "somethingNew")


def exception(member, message):
    """A modelled exception, named as the member of the stream's union."""
    body = {"message": message}
    if member == "validationException":
        body["reason"] = "FieldValidationFailed"
    headers = {":message-type": "exception", ":exception-type": member, **JSON}
    return frame(headers, json.dumps(body).encode())


def error(message):
    headers = {":message-type": "error", ":error-code": "InternalError", ":error-message": message}
    return frame(headers)
