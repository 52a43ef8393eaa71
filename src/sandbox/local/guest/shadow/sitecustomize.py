"""What Python gets in a session when it is run as a program: advice on errors, glyphs for figures."""

import os
import sys

GUEST = os.path.join(os.path.dirname(os.path.dirname(__file__)), "interpreterd_guest")
FONTS = "matplotlib.font_manager"


def guest_module(name):
    """A module of the guest, which is on no program's path."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(f"_interpreterd_{name}", os.path.join(GUEST, f"{name}.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tell(kind, error, frames, /, *, tell_as_ever=sys.excepthook):
    tell_as_ever(kind, error, frames)
    try:
        advice = guest_module("hints").hint(error)
    except Exception:
        return
    if advice:
        print(advice, file=sys.stderr)


class FontFinder:
    """Adds the guest's font to matplotlib once a program has imported it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != FONTS:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(FontFinder)
        spec = find_spec(name)
        load = spec.loader.exec_module

        def load_and_add(module):
            load(module)
            try:
                guest_module("fonts").add_to(sys.modules["matplotlib"])
            except Exception:
                pass  # a guest without the font draws boxes, and everything else works

        spec.loader.exec_module = load_and_add
        return spec


def add_packages():
    folder = os.environ.get("SANDBOX_PACKAGES")
    if folder:
        import site

        site.addsitedir(folder)


sys.excepthook = tell
sys.meta_path.insert(0, FontFinder)
add_packages()
