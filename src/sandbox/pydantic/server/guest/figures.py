"""matplotlib's figures, which a program shows or leaves open."""

import importlib.abc
import importlib.machinery
import io
import sys

from _interpreterd import display

BACKEND = "_interpreterd_backend"


class Backend(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ours the backend when matplotlib is imported: to import it sooner would take its time."""

    def find_spec(self, name, path=None, target=None):
        if name == "matplotlib.pyplot":
            choose()
        return importlib.machinery.ModuleSpec(name, self) if name == BACKEND else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backend_bases import FigureManagerBase, _Backend
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        class Ours(_Backend):
            FigureCanvas = FigureCanvasAgg
            FigureManager = FigureManagerBase

            @staticmethod
            def show(*_, **__):
                show_open()

        Ours.__module__ = module.__name__
        _Backend.export(Ours)


def install(environ):
    if not any(type(finder).__name__ == "Backend" for finder in sys.meta_path):
        sys.meta_path.insert(0, Backend())
    environ.setdefault("MPLBACKEND", "Agg")  # for programs that are started: ours is not there
    if "matplotlib.pyplot" in sys.modules:  # the interpreter has brought it along
        choose()
        sys.modules["matplotlib.pyplot"].switch_backend(f"module://{BACKEND}")


def choose():
    settings = sys.modules["matplotlib"].rcParams
    if str(dict.__getitem__(settings, "backend")).lower() == "agg":
        settings["backend"] = f"module://{BACKEND}"


def show_open():
    """Shows all open figures in their order, and closes them."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return
    for number in plt.get_fignums():
        drawn = plt.figure(number)
        if drawn.axes or drawn.lines or drawn.images or drawn.texts:
            display.display(drawn)
        plt.close(drawn)


def show_left_open():
    """Figures that a cell has not shown, whichever of matplotlib's backends it chose."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is not None and plt.get_fignums():
        show_open()


def png(value):
    """The picture of a figure; None of anything else."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(value, module.Figure):
        return None
    buffer = io.BytesIO()
    # a figure may hold what cannot be drawn: that is the cell's own error
    value.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


display.Current.draw = png
