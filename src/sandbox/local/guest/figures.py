"""Figures that a cell has left open, whichever of matplotlib's backends it chose."""

import sys


def show_left_open():
    """Programs choose Agg where there is no screen; their figures are shown like all others."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return
    plt.draw_if_interactive.called = False  # else %run would show an empty figure of its own
    if plt.get_fignums() and plt.get_backend().lower() == "agg":
        from matplotlib_inline.backend_inline import show

        show(True)
