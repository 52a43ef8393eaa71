"""Checks of what a client sends to the control plane."""

import ipaddress
import re

CREATE = {
    "templateID": str,
    "timeout": int,
    "metadata": "strings",
    "envVars": "strings",
    "autoPause": bool,
    "autoPauseMemory": bool,
    "autoResume": {"enabled": bool},
    "allow_internet_access": bool,
    "network": {
        "allowOut": "list",
        "denyOut": "list",
        "allowPublicTraffic": bool,
        "maskRequestHost": str,
        "httpsPorts": list,
        "dnsServers": "list",
        "egressProxy": {"address": str, "username": str, "password": str, "tls": bool},
        "rules": dict,
    },
    "volumeMounts": list,
    "mcp": dict,
    "secure": bool,
}
NETWORK = {**CREATE["network"], "allow_internet_access": bool}
CONNECT = {"timeout": int, "memory": bool}
PAUSE = {"memory": bool, "requireHealthyGuest": bool}
TIMEOUT = {"timeout": int}
REFRESH = {"duration": int}
NULLABLE = ("allowPublicTraffic", "egressProxy", "dnsServers")
NAMES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}


class Invalid(Exception):
    """The body is not what the API describes: 400."""


def check(body, shape, required=(), where=""):
    """Compares a body with its shape. Fields that the API does not know are ignored, as there."""
    if not isinstance(body, dict):
        raise Invalid(f"validation error: {where or 'request body'} must be an object")
    for name in required:
        if body.get(name) is None:
            raise Invalid(f'validation error: request body has an error: property "{name}" is missing')
    for name, kind in shape.items():
        if name in body and not (body[name] is None and name in NULLABLE):
            check_value(body[name], kind, f"{where}/{name}")
    return body


def check_value(value, kind, where):
    if isinstance(kind, dict):
        check(value, kind, (), where)
    elif kind == "strings":
        if not is_strings(value):
            raise Invalid(f'validation error: "{where}": value must be an object of strings')
    elif kind == "list":
        if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise Invalid(f'validation error: "{where}": value must be an array of strings')
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Invalid(f'validation error: "{where}": value must be of type {NAMES[kind]}')


def is_strings(value):
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def check_create(body, options, secure):
    """The rules beyond the types."""
    if body.get("timeout") is not None and body["timeout"] <= 0:
        raise Invalid("Timeout must be greater than 0")
    check_longest(body.get("timeout"), options)
    if body.get("autoPauseMemory") is False:
        if not body.get("autoPause"):
            raise Invalid("autoPauseMemory can only be false when autoPause is true")
        if (body.get("autoResume") or {}).get("enabled"):
            raise Invalid("autoResume needs a snapshot of the memory")
    network = body.get("network") or {}
    check_rules(network)
    if network.get("allowPublicTraffic") is False and not secure:
        raise Invalid("You cannot disable public traffic access without enabling secure envd access via 'secure' flag.")


def check_longest(timeout, options):
    if timeout is not None and timeout > options.max_timeout:
        raise Invalid(f"Timeout cannot be greater than {options.max_timeout // 3600} hours")


def check_rules(network):
    denied = network.get("denyOut") or []
    for rule in denied:
        if not is_network(rule):
            raise Invalid(f"invalid denied CIDR {rule}")
    domains = [rule for rule in network.get("allowOut") or [] if not is_network(rule)]
    if domains and "0.0.0.0/0" not in denied:
        raise Invalid("When specifying allowed domains in allow out, you must include '0.0.0.0/0' in deny out")


def is_network(rule):
    try:
        ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return False
    return True


def check_idempotency_key(key):
    if not re.fullmatch(r"[a-z0-9-]{1,255}", key):
        raise Invalid("validation error: header Idempotency-Key must be 1 to 255 characters of [a-z0-9-]")
