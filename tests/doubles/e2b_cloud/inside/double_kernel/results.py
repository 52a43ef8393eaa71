"""Turns a value into the fields of a result, as the formatters of the real template do."""

import base64
import json
import math
import sys

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
    "e2b/data": "_repr_e2b_data_",
    "e2b/chart": "_repr_e2b_chart_",
}
WIDTH = 79


def of(value):
    """The fields of a result that shows this value."""
    bundle = {"text/plain": text_of(value)}
    if not isinstance(value, type):
        for mime, method in METHODS.items():
            shown = call(value, method)
            if shown is not None:
                bundle[mime] = shown
        bundle.update(call(value, "_repr_mimebundle_", include=None, exclude=None) or {})
    add_known_kinds(value, bundle)
    return from_mime(bundle)


def from_mime(bundle):
    """The fields for values by their media types."""
    fields, extra = {}, {}
    for mime, shown in bundle.items():
        shown = plain(shown)
        if mime in FIELDS:
            fields[FIELDS[mime]] = shown
        else:
            extra[mime] = shown
    text = fields.get("text")
    if text and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        fields["text"] = text[1:-1]
    return {**fields, "extra": extra}


def call(value, method, **arguments):
    try:
        found = getattr(value, method, None)
        shown = found(**arguments) if callable(found) else None
    except Exception:  # a formatter that fails does not fail the cell
        return None
    return shown[0] if isinstance(shown, tuple) else shown


def add_known_kinds(value, bundle):
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ())):
        bundle["e2b/data"] = value.to_dict(orient="list")
    if isinstance(value, (list, dict)):
        try:
            bundle["application/json"] = json.loads(json.dumps(plain(value, strict=True)))
        except (TypeError, ValueError, RecursionError):
            pass
    figure = sys.modules.get("matplotlib.figure")
    if figure is not None and isinstance(value, getattr(figure, "Figure", ())):
        from . import charts, figures

        bundle["image/png"] = figures.png(value)
        bundle["e2b/chart"] = charts.of(value)


def plain(value, strict=False):
    """The value as JSON can hold it. When strict, values that JSON does not know are a TypeError."""
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {plain_key(key): plain(item, strict) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, strict) for item in value]
    if isinstance(value, bytes) and not strict:
        return base64.b64encode(value).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return plain(value.tolist(), strict)
    if strict:
        raise TypeError(type(value).__name__)
    return str(value)


def plain_key(key):
    return key if isinstance(key, str) else str(plain(key, strict=False))


def text_of(value):
    """The plain text, as IPython would print it."""
    if isinstance(value, type):
        module = value.__module__
        return value.__qualname__ if module in ("builtins", "exceptions") else f"{module}.{value.__qualname__}"
    if type(value).__name__ == "function":
        import inspect

        return f"<function {value.__module__}.{value.__qualname__}{inspect.signature(value)}>"
    return pretty(value, 0)


def pretty(value, indent):
    """One line if it fits, else one line for each item."""
    text = repr(value)
    if indent + len(text) <= WIDTH or type(value) not in (list, dict, tuple, set) or len(value) < 2:
        return text
    if type(value) is dict:
        items = [f"{key!r}: {pretty(item, indent + len(repr(key)) + 3)}" for key, item in value.items()]
    else:
        items = [pretty(item, indent + 1) for item in value]
    return text[0] + (",\n" + " " * (indent + 1)).join(items) + text[-1]
