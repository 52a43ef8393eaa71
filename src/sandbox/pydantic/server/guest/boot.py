"""Brings our modules into this interpreter.

What programs do to shared modules and builtins must not reach ours: they are patched, frozen and
faked by honest libraries. So ours see copies, made before any program ran, and stand in no list of modules.
"""

import builtins
import importlib
import json
import sys
import types

COPIED = "ast asyncio base64 gc importlib inspect io json linecache math os signal time traceback types"
PLACE = "_interpreterd"
MODULES = "place display figures errors streams finishing alarm packages taming kernel"


class Ours(types.ModuleType):
    """Our modules by name, in the order in which they need each other."""

    def __init__(self, sources):
        super().__init__(PLACE)
        self.modules = {}
        self.copies = {name: copied(importlib.import_module(name)) for name in COPIED.split()}
        self.copies["os"].path = copied(self.copies["os"].path)
        vars(self.copies["json"]).update(dumps=json_text, loads=json_value)
        self.builtins = {**vars(builtins), "__import__": self.get}
        for name in MODULES.split():
            module = types.ModuleType(f"{PLACE}.{name}")
            module.__dict__["__builtins__"] = self.builtins
            self.modules[name] = module
            exec(compile(sources[name], f"<interpreterd {name}>", "exec"), module.__dict__)

    def get(self, name, scope=None, local=None, wanted=(), level=0):
        if name == PLACE:
            return types.SimpleNamespace(**self.modules)
        if name.startswith(f"{PLACE}."):
            return self.modules[name.partition(".")[2]]
        return self.copies.get(name) or importlib.__import__(name, scope, local, wanted, level)


def refuse(value):
    raise TypeError(f"no JSON can be made of {type(value).__name__}")


# json's parts in C: programs teach its classes in Python their own types, which must not reach ours
encoder = json.encoder.c_make_encoder(
    None, refuse, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)
decoder = json.scanner.c_make_scanner(
    types.SimpleNamespace(
        strict=True, object_hook=None, object_pairs_hook=None, parse_float=float, parse_int=int, parse_constant=float
    )
)


def json_text(value):
    return "".join(encoder(value, 0))


def json_value(text):
    """What the worker tells; it writes no space around it."""
    return decoder(text, 0)[0]


def copied(module):
    return types.SimpleNamespace(**vars(module))


ours = Ours(json.loads(SOURCES))  # noqa: F821 - what the worker lays beside this program
ours.kernel = ours.modules["kernel"].Kernel()
# the import system finds it here, also once a snapshot was restored
sys.modules[PLACE] = ours
