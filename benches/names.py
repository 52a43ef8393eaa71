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

ORDER = [
    OURS,
    AFTER_FRAME,
    NO_POOL,
    IN_SANDBOX,
    IN_MODEL,
    OWN_PART,
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
]


def place(name: str) -> int:
    """Where a contestant stands in tables; those without a place stay in the order in which they came."""
    return ORDER.index(name) if name in ORDER else len(ORDER)
