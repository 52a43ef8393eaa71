"""The contestants' names as they stand in tables."""

OURS = "interpreterd"
AFTER_FRAME = "interpreterd, after a small DataFrame"
NO_POOL = "interpreterd, no pool"
GATEWAY = "jupyter-kernel-gateway"
GATEWAY_QUICK = "jupyter-kernel-gateway, quick ACKs"
GATEWAY_IMPORTS = "jupyter-kernel-gateway + imports"
RAW = "raw ipykernel"
RAW_IMPORTS = "raw ipykernel + imports"
COLD = "cold Python"
FORK_FLOOR = "fork + unshare, the floor"
IN_SANDBOX = "interpreterd, in the sandbox"
IN_MODEL = "interpreterd, in the model"
OWN_PART = "interpreterd, own part"
HTTP_FLOOR = "GET /healthz, the floor"
MODEL_FLOOR = "POST to the model, the floor"
MODEL_FLOOR_OWN = "POST to the model, without the model's part"
IN_E2B = "interpreterd, in E2B"
OTHER_BUILD = "interpreterd, another build"
E2B_SDK = "E2B's Python SDK"
E2B_FLOOR = "POST /execute, kept connection, the floor"
E2B_FLOOR_NEW = "POST /execute, a new connection each"
E2B_LISTING_FLOOR = "listing of the files, kept connection, the floor"
UPSTREAM = "mcp-run-python"
UPSTREAM_SERVED = "mcp-run-python, through interpreterd"
UPSTREAM_HANDSHAKE = "mcp-run-python, no Python yet"
# databases
SQLITE, POSTGRES = "SQLite", "Postgres"
DATABASES = (SQLITE, POSTGRES)

ORDER = [
    OURS,
    AFTER_FRAME,
    NO_POOL,
    IN_SANDBOX,
    IN_MODEL,
    IN_E2B,
    OWN_PART,
    OTHER_BUILD,
    E2B_SDK,
    UPSTREAM_SERVED,
    UPSTREAM,
    UPSTREAM_HANDSHAKE,
    GATEWAY,
    GATEWAY_QUICK,
    GATEWAY_IMPORTS,
    RAW,
    RAW_IMPORTS,
    COLD,
    FORK_FLOOR,
    HTTP_FLOOR,
    MODEL_FLOOR,
    MODEL_FLOOR_OWN,
    E2B_FLOOR,
    E2B_FLOOR_NEW,
    E2B_LISTING_FLOOR,
]


def place(name: str) -> int:
    """Where a contestant stands in tables; those without a place stay in the order in which they came."""
    return ORDER.index(name) if name in ORDER else len(ORDER)
