"""Reads the numbers out of a matplotlib figure, in the form that `e2b_charts` gives."""

import re


def of(figure):
    try:
        from e2b_charts import chart_figure_to_dict
    except ImportError:
        chart_figure_to_dict = figure_chart
    try:
        return chart_figure_to_dict(figure)
    except Exception:  # as in the template
        return {}


def figure_chart(figure):
    axes = figure.get_axes()
    if not any(one.has_data() for one in axes):
        return {}
    if len(axes) > 1:
        title = figure.get_suptitle() or None
        return {"type": "superchart", "title": title, "elements": [axes_chart(one) for one in axes]}
    return axes_chart(axes[0])


def axes_chart(axes):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge
    from matplotlib.text import Text

    drawn = [artist for artist in axes.get_children() if artist in axes._children and not isinstance(artist, Text)]
    if all_are(drawn, Line2D):
        return {**points_chart(axes, "line"), "elements": [line_element(line) for line in axes.get_lines()]}
    if all_are(drawn, (PathPatch, Line2D)):
        return {**labels(axes, "box_and_whisker"), "elements": []}
    if all_are(drawn, PathCollection):
        return {**points_chart(axes, "scatter"), "elements": [scatter_element(dots) for dots in axes.collections]}
    if all_are(drawn, Wedge):
        return {"type": "pie", "title": axes.get_title() or None, "elements": [pie_element(one) for one in drawn]}
    if all_are(drawn, Rectangle):
        return bar_chart(axes)
    return {"type": "unknown", "title": axes.get_title() or None, "elements": []}


def all_are(drawn, kinds):
    return all(isinstance(artist, kinds) for artist in drawn)


def labels(axes, kind):
    x_label, y_label = axes.get_xlabel() or None, axes.get_ylabel() or None
    named = {"x_label": x_label, "y_label": y_label, "x_unit": unit(x_label), "y_unit": unit(y_label)}
    return {"type": kind, "title": axes.get_title() or None, **named}


def unit(label):
    found = re.search(r"\s\((.*?)\)|\[(.*?)\]", label or "")
    return (found[1] or found[2]) if found else None


def points_chart(axes, kind):
    return {**labels(axes, kind), **ticks("x", axes.xaxis), **ticks("y", axes.yaxis)}


def ticks(name, axis):
    from matplotlib import dates

    places = [float(place) for place in axis.get_ticklocs()]
    texts = [label.get_text() for label in axis.get_ticklabels()]
    scale = axis.get_scale()
    if "Date" in type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__:
        scale, places = "datetime", [dates.num2date(place).isoformat() for place in places]
    elif scale == "linear" and places == list(range(len(places))) and texts != [str(int(place)) for place in places]:
        scale = "categorical"
    return {f"{name}_ticks": places, f"{name}_tick_labels": texts, f"{name}_scale": scale}


def line_element(line):
    label = re.sub(r"^_child(\d+)$", r"Line \1", line.get_label())
    return {"label": label, "points": pairs(line.get_xdata(), line.get_ydata())}


def scatter_element(dots):
    return {"label": dots.get_label(), "points": [[float(x), float(y)] for x, y in dots.get_offsets()]}


def pie_element(wedge):
    return {"label": wedge.get_label(), "angle": round(abs(wedge.theta2 - wedge.theta1), 3), "radius": wedge.r}


def pairs(x_values, y_values):
    return [[coordinate(x), coordinate(y)] for x, y in zip(x_values, y_values, strict=False)]


def coordinate(value):
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    return value if isinstance(value, str) else float(value)


def bar_chart(axes):
    chart = {**labels(axes, "bar"), "elements": []}
    for container in axes.containers:
        group = re.sub(r"^_container(\d+)$", r"Group \1", container.get_label())
        values, names = [bar.get_height() for bar in container], axes.get_xticklabels()
        if len(set(values)) == 1:  # bars of one height lie on their side, as far as e2b_charts can tell
            values, names = [bar.get_width() for bar in container], axes.get_yticklabels()
            for one, other in (("x_label", "y_label"), ("x_unit", "y_unit")):
                chart[one], chart[other] = chart[other], chart[one]
        for name, value in zip(names, values, strict=False):
            chart["elements"].append({"label": name.get_text(), "group": group, "value": float(value)})
    return chart
