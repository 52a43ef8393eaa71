"""The Python kernel of one code context. box.py starts it, its channel is descriptor 3."""

import os
import sys

directory = sys.path.pop(0)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from double_kernel.cells import Kernel  # noqa: E402

sys.path[0] = ""  # programs import from their working directory, and nothing of ours
Kernel(channel=3).serve()
