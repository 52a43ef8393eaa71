"""The matplotlib backend of the kernel: figures become results."""

import io
import sys

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas  # noqa: F401 - matplotlib looks for it


def png(figure):
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    return picture.getvalue()


def show(*_, **__):
    """Shows every open figure and closes it."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        sys.modules["__main__"].__dict__["display"](pyplot.figure(number))
    pyplot.close("all")


def show_what_is_open():
    """After a cell: what it drew without showing it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    # with another backend a program shows, or saves, for itself
    if pyplot is not None and pyplot.get_fignums() and pyplot.get_backend() == f"module://{__name__}":
        show()
