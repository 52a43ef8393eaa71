"""Rich results: what programs show, as MIME types and data, within bounds."""

import base64
import json
import math
import os

from _interpreterd.place import readable

MOST_OUTPUTS = 10_000
DEEPEST = 40
MOST_BYTES = 16 << 20  # of all rich results of a cell
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
}


class Shown:
    """The rich results of one cell."""

    def __init__(self):
        self.outputs, self.ids, self.sizes, self.size, self.cut = [], [], [], 0, False

    def add(self, data, metadata=None, main=False, display_id=None, update=False):
        output = {"data": plain(data), "metadata": plain(metadata or {}), "main": main}
        size = len(json.dumps(output))
        place = self.ids.index(display_id) if update and display_id in self.ids else None
        before = 0 if place is None else self.sizes[place]
        if len(self.outputs) >= MOST_OUTPUTS or self.size - before + size > MOST_BYTES:
            self.cut = True
            return
        self.size += size - before
        if place is not None:
            self.outputs[place], self.sizes[place] = output, size
        else:
            self.outputs.append(output)
            self.ids.append(display_id)
            self.sizes.append(size)


class Handle:
    """What shows something in the place of what was shown before."""

    def __init__(self, display_id):
        self.display_id = display_id

    def display(self, value, **more):
        display(value, display_id=self.display_id, **more)

    def update(self, value, **more):
        display(value, display_id=self.display_id, update=True, **more)


class Current:
    """What the running cell has shown, None while none runs; and what makes pictures of figures."""

    shown = None
    draw = None


def display(*values, raw=False, metadata=None, display_id=None, update=False, **_):
    """Shows values, as IPython's function of this name does."""
    if display_id is True:
        display_id = os.urandom(8).hex()
    if Current.shown is not None:
        for value in values:
            data, own = (value, {}) if raw else bundle(value)
            Current.shown.add(data, metadata or own, display_id=display_id, update=update)
    return None if display_id is None else Handle(display_id)


def publish(data, metadata=None, *, transient=None, update=False, **_):
    """Shows a bundle that is ready, as IPython's publish_display_data does."""
    display_id = (transient or {}).get("display_id")
    display(data, raw=True, metadata=metadata, display_id=display_id, update=update)


def bundle(value):
    """A value by MIME type, with what it says about that."""
    data, metadata = {}, {}
    if not isinstance(value, type):
        for mime, method in METHODS.items():
            put(data, metadata, mime, called(value, method))
        whole = called(value, "_repr_mimebundle_", include=None, exclude=None)
        whole, about = whole if isinstance(whole, tuple) else (whole, None)
        if isinstance(whole, dict):
            data.update({mime: part for mime, part in whole.items() if part is not None})
        if isinstance(about, dict):
            metadata.update(about)
        if Current.draw is not None:
            put(data, metadata, "image/png", Current.draw(value))
    data.setdefault("text/plain", repr(value))
    return data, metadata


def put(data, metadata, mime, found):
    if isinstance(found, tuple) and len(found) == 2:
        found, metadata[mime] = found
    if found is not None:
        data[mime] = found


def called(value, method, **arguments):
    """What a method of a value gives; None where there is none, or it fails."""
    try:
        found = getattr(value, method, None)
        # a value may have every attribute that it is asked for
        if not callable(found) or callable(getattr(value, "_canary_method_should_not_exist_", None)):
            return None
        return found(**arguments)
    except Exception:
        return None


def plain(value, depth=0):
    """A value of which JSON can be made, whatever it is."""
    if isinstance(value, str):
        return readable(str.__str__(value))
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__int__(value)
        return number if abs(number) < 1 << 63 else hex(number)  # it may be too long for a decimal one
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else float.__repr__(number)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if depth < DEEPEST and isinstance(value, dict):
        return {plain(str(key)): plain(part, depth + 1) for key, part in dict.items(value)}
    if depth < DEEPEST and isinstance(value, (list, tuple)):
        return [plain(part, depth + 1) for part in value]
    return readable(str(value))


def teach_ipython():
    """Programs that import IPython's display get ours, where there is one."""
    try:
        import IPython.display as face
        from IPython.core import display_functions
    except Exception:
        return
    for module in (display_functions, face):
        module.display, module.publish_display_data = display, publish
