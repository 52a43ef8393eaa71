"""Fits libraries to the kernel at the moment when they are imported."""

import importlib.util
import os
import sys

BACKEND = "module://double_kernel.figures"


def install(kernel):
    """Figures show after each cell, saved images show, IPython's display is ours."""
    from_import = {
        # not in the environment: programs that a cell starts do not know this backend
        "matplotlib": use_backend,
        "matplotlib.pyplot": lambda _: kernel.after_cell.append(figures_after_cell),
        "PIL.Image": lambda module: show_what_is_saved(module, kernel),
        "IPython.core.display_functions": lambda module: setattr(module, "display", kernel.display),
    }
    sys.meta_path.insert(0, Finder(from_import))


class Finder:
    """Calls a hook after a module has run."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


def use_backend(matplotlib):
    if "MPLBACKEND" not in os.environ:
        matplotlib.rcParams["backend"] = BACKEND


def figures_after_cell():
    from . import figures

    figures.show_what_is_open()


def show_what_is_saved(module, kernel):
    """As the template's startup script: `image.save("a.png")` displays the image too."""
    save = module.Image.save

    def save_and_show(image, file, format=None, **options):
        if isinstance(file, str):
            kernel.display(image)
        save(image, file, format, **options)

    module.Image.save = save_and_show
