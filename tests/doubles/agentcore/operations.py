"""Start, stop, get and list sessions."""

import base64
import binascii

from .errors import ServiceError, invalid
from .session import READY, TERMINATED, Session

DEFAULT_SECONDS, MOST_SECONDS = 900, 28_800
DEFAULT_PAGE, MOST_PAGE = 10, 100
MISMATCH = "IdempotentParameterMismatchException"


def start(service, call):
    options, body = service.options, call.body
    if call.identifier not in options.interpreters:
        raise ServiceError(404, f"Code interpreter {call.identifier} was not found")
    token = checked_length(body, "clientToken", 33, 256)
    if token in service.tokens:
        return repeated_start(service, call, *service.tokens[token])
    name = checked_length(body, "name", 1, 100)
    seconds = checked_number(body, "sessionTimeoutSeconds", MOST_SECONDS, DEFAULT_SECONDS)
    if sum(session.ready for session in service.sessions.values()) >= options.max_sessions:
        raise ServiceError(402, "The maximum number of active sessions is reached")
    session = Session(call.identifier, name, seconds, service.guest, options)
    service.sessions[session.id] = session
    if token is not None:
        service.tokens[token] = (call.identifier, body, session)
    return session.started()


def repeated_start(service, call, identifier, body, session):
    if (call.identifier, call.body) != (identifier, body):
        raise ServiceError(400, "The client token was used with other parameters", reason=MISMATCH)
    return session.started()


def stop(service, call):
    session = service.session_of(call)
    session.check_ready()
    session.terminate()
    return session.stopped()


def get(service, call):
    return service.session_of(call).detail()


def list_sessions(service, call):
    status = call.body.get("status")
    if status not in (None, READY, TERMINATED):
        raise invalid("status", f"must be {READY} or {TERMINATED}")
    size = checked_number(call.body, "maxResults", MOST_PAGE, DEFAULT_PAGE)
    start = offset_of(call.body.get("nextToken"))
    found = [session for session in service.sessions.values() if session.identifier == call.identifier]
    found = [session.summary() for session in found if status in (None, session.status)]
    page = {"items": found[start : start + size]}
    if start + size < len(found):
        page["nextToken"] = base64.b64encode(b"%d" % (start + size)).decode()
    return page


def offset_of(token):
    try:
        return int(base64.b64decode(token, validate=True)) if token is not None else 0
    except (ValueError, TypeError, binascii.Error) as error:
        raise invalid("nextToken", "is none of ours") from error


def checked_length(body, field, least, most):
    value = body.get(field)
    if value is not None and not (isinstance(value, str) and least <= len(value) <= most):
        raise invalid(field, f"must have {least} to {most} characters")
    return value


def checked_number(body, field, most, default):
    value = body.get(field)
    if value is None:
        return default
    if not (type(value) is int and 1 <= value <= most):
        raise invalid(field, f"must be from 1 to {most}")
    return value


OPERATIONS = {
    ("PUT", "sessions/start"): start,
    ("PUT", "sessions/stop"): stop,
    ("GET", "sessions/get"): get,
    ("POST", "sessions/list"): list_sessions,
}
