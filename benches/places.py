"""Where this machine keeps what the service and its tests have installed."""

import os
from pathlib import Path


def guests() -> Path:
    """The folder of what `interpreterd guest install` has installed."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    place = Path("/var/lib") if os.geteuid() == 0 else data
    return Path(os.environ.get("INTERPRETERD_GUEST_DIR") or place / "interpreterd" / "guest")


def doubles() -> Path:
    """The folder of what `make doubles` has installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    tools = Path(os.environ.get("INTERPRETERD_TOOLS_DIR") or cache / "interpreterd-tools")
    return tools / "doubles"
