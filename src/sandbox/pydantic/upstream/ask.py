"""Asks our modules in this interpreter: `told` is JSON, and so is the answer.

`{"absent":true}` says that bring.py must bring them first.
"""

import builtins
import sys

# in two places: programs clear one or the other
places = [sys.modules, vars(builtins)]
found = [getattr(place.get("_interpreterd"), "ask", None) for place in places]
ours = [ask for ask in found if callable(ask)]
await ours[0](told) if ours else '{"absent":true}'  # noqa: F704, F821
