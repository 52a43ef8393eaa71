"""One request, taken apart."""

import json
import urllib.parse

from .errors import ServiceError, invalid

SESSION_HEADER = "x-amzn-code-interpreter-session-id"
STRING_AT_MOST = 200_000  # characters of one string in the log


class Call:
    """What a request asks for: `operation` is the end of its path."""

    def __init__(self, request, raw):
        self.request, self.raw = request, raw
        self.method, self.path = request.method, request.path
        first, self.identifier, self.operation = self.parts(request.raw_path.partition("?")[0])
        self.known = first == "code-interpreters"
        self.invokes = (self.method, self.operation) == ("POST", "tools/invoke")
        self.session_id = request.query.get("sessionId") or request.headers.get(SESSION_HEADER)
        self.body = self.parsed()
        self.tool = self.arguments = None
        if self.invokes and isinstance(self.body, dict):
            self.tool, self.arguments = self.body.get("name"), self.body.get("arguments") or {}

    def parts(self, path):
        """The identifier may have encoded slashes."""
        split = path.lstrip("/").split("/", 2)
        return [urllib.parse.unquote(part) for part in [*split, "", ""][:3]]

    def parsed(self):
        try:
            return json.loads(self.raw or b"{}")
        except ValueError:
            return None

    def check(self):
        if not self.known:
            raise ServiceError(404, f"no such path: {self.path}", "UnknownOperationException")
        if not isinstance(self.body, dict):
            raise ServiceError(400, "the body is not a JSON object", reason="CannotParse")
        if not isinstance(self.arguments, dict | None):
            raise invalid("arguments", "must be an object")

    @property
    def title(self):
        """What faults are matched with."""
        return f"{self.method} {self.path}" + (f" {self.tool}" if self.invokes else "")

    def entry(self):
        """What the log keeps."""
        return {
            "method": self.method,
            "path": self.request.path_qs,
            "headers": dict(self.request.headers),
            "tool": self.tool,
            "session": self.session_id,
            "arguments": cut(self.arguments),
            "body": None if self.invokes else cut(self.body),
        }


def cut(value):
    if isinstance(value, str):
        return value[:STRING_AT_MOST]
    if isinstance(value, list):
        return [cut(item) for item in value]
    if isinstance(value, dict):
        return {name: cut(item) for name, item in value.items()}
    return value
