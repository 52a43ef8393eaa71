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
OWN_PART = "interpreterd, own part"
HTTP_FLOOR = "GET /healthz, the floor"

ORDER = [
    OURS,
    AFTER_FRAME,
    NO_POOL,
    IN_SANDBOX,
    OWN_PART,
    GATEWAY,
    GATEWAY_QUICK,
    GATEWAY_IMPORTS,
    RAW,
    RAW_IMPORTS,
    COLD,
    FORK_FLOOR,
    HTTP_FLOOR,
]


def place(name: str) -> int:
    """Where a contestant stands in tables; those without a place stay in the order in which they came."""
    return ORDER.index(name) if name in ORDER else len(ORDER)
