"""Refusals before a stream, in AWS's form."""

import json

from aiohttp import web

from .identifiers import ulid

KINDS = {
    400: "ValidationException",
    402: "ServiceQuotaExceededException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    409: "ConflictException",
    429: "ThrottlingException",
    500: "InternalServerException",
    502: "BadGatewayException",
    503: "ServiceUnavailableException",
    504: "GatewayTimeoutException",
}
# the front end adds this to the name; clients must cut it off
SUFFIX = ":http://internal.amazon.com/coral/com.amazon.coral.service/"


class ServiceError(Exception):
    """A call that the service refuses."""

    def __init__(self, status, message, kind=None, **fields):
        super().__init__(message)
        self.status, self.kind = status, kind or KINDS[status]
        self.body = {"message": message, **fields}

    def response(self):
        return error_response(self.status, self.kind, json.dumps(self.body))


def invalid(field, message):
    fields = [{"name": field, "message": message}]
    return ServiceError(400, f"{field}: {message}", reason="FieldValidationFailed", fieldList=fields)


def error_response(status, kind, text):
    headers = {"x-amzn-requestid": ulid(), "x-amzn-errortype": kind + SUFFIX}
    return web.Response(status=status, headers=headers, body=text.encode(), content_type="application/json")


def injected(fault):
    """The error that a fault orders."""
    status = fault["status"]
    body = {"message": f"injected {status}"}
    if status == 400:
        body["reason"] = "FieldValidationFailed"
    body = fault.get("body", body)
    return error_response(status, fault.get("type", KINDS[status]), body if isinstance(body, str) else json.dumps(body))
