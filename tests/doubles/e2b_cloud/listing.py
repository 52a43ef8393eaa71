"""The list of sandboxes: filters and pages."""

import base64
import datetime
import urllib.parse

from aiohttp import web

from .validate import Invalid

STATES = {"running", "paused"}


def page(cloud, team, request):
    """A page of the newest sandboxes first; where it goes on is in the header X-Next-Token."""
    states = set(",".join(request.query.getall("state", ["running,paused"])).split(","))
    if states - STATES:
        raise Invalid('validation error: parameter "state" in query has an error: value is not one of the allowed')
    limit, start = limit_of(request), start_of(request)
    found = find(cloud, team, request, states)
    headers = {"X-Total-Running": str(sum(sandbox.state == "running" for sandbox in found))}
    if start + limit < len(found):
        headers["X-Next-Token"] = base64.urlsafe_b64encode(str(start + limit).encode()).decode()
    return web.json_response([sandbox.listed() for sandbox in found[start : start + limit]], headers=headers)


def limit_of(request):
    text = request.query.get("limit", "100")
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise Invalid('validation error: parameter "limit" in query has an error: number must be 1 to 100')
    return int(text)


def start_of(request):
    try:
        return int(base64.urlsafe_b64decode(request.query.get("nextToken", "MA==")))
    except ValueError as error:
        raise Invalid("Invalid next token") from error


def find(cloud, team, request, states):
    query = request.query
    found = [one for one in cloud.sandboxes.values() if one.team == team and one.state in states]
    for name, value in decode_metadata(query.get("metadata", "")).items():
        found = [sandbox for sandbox in found if sandbox.metadata.get(name) == value]
    if "template" in query:
        found = [sandbox for sandbox in found if sandbox.template == query["template"]]
    if "startedAfter" in query:
        after = moment(query["startedAfter"])
        found = [sandbox for sandbox in found if sandbox.started >= after]
    order = query.get("order", "desc")
    return sorted(found, key=lambda sandbox: sandbox.started, reverse=order == "desc")


def decode_metadata(text):
    """Undoes the two layers that are left once the query is decoded."""
    wanted = {}
    for pair in filter(None, urllib.parse.unquote_plus(text).split("&")):
        name, separator, value = pair.partition("=")
        if not separator or "=" in value:
            raise Invalid("Error when parsing metadata: not a list of key=value")
        wanted[urllib.parse.unquote_plus(name)] = urllib.parse.unquote_plus(value)
    return wanted


def moment(text):
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid('validation error: parameter "startedAfter" in query has an error') from error
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
