"""What a session can add to an error that its own words leave open."""

import errno
import importlib.metadata
import importlib.util
import os
import socket
import sys

PACKAGES_FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "packages.txt")
ASK = "name it in the `packages` field of the request that makes the session"
NO_NETWORK = "a session has no network: upload what it needs as files, or put it into the code"
NO_SCREEN = "there is no screen: leave matplotlib's backend as it is, figures are shown by themselves"
SCREEN = ("GUI loop", "Qt binding", "interactive framework", "tkinter")
# modules whose package has another name
PACKAGE_OF = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "PyMuPDF",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}


def hint(error):
    """One sentence that tells what to do about an error, or None."""
    for cause in causes(error, lambda error: error.__cause__):
        if isinstance(cause, (ImportError, RuntimeError)) and any(word in str(cause) for word in SCREEN):
            return NO_SCREEN
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return missing(cause.name)
    # what libraries raise for a network error names no cause, but comes while one is handled
    for cause in causes(error, lambda error: error.__context__):
        if isinstance(cause, socket.gaierror) or getattr(cause, "errno", None) == errno.ENETUNREACH:
            return NO_NETWORK
    return None


def causes(error, came_from):
    """An error and what it came from, the latest first."""
    for _ in range(10):  # a chain may be a ring
        if error is not None:
            yield error
            error = came_from(error)


def missing(module):
    """What to do about a module that is not there."""
    top = module.partition(".")[0]
    if top != module and found(top):
        return f"`{top}` is there and has no module `{module}`"
    if top in sys.stdlib_module_names:
        return f"`{top}` is a part of Python that is not on this system"
    modules = modules_of(top)
    if modules:
        return f"the package {top} is imported as `{'`, `'.join(modules)}`"
    package = PACKAGE_OF.get(top, top)
    return f"no package {package} is installed: {ASK}; installed: {', '.join(installed())}"


def found(module):
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def modules_of(package):
    """The modules that an installed package brings, when they have another name than it."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    tops = {file.parts[0] for file in files if len(file.parts) > 1 and file.parts[-1] == "__init__.py"}
    return sorted(top for top in tops if top.isidentifier() and top != package)


def installed():
    """The packages that the guest was made for, without what they need themselves."""
    try:
        with open(PACKAGES_FILE, encoding="utf-8") as lines:
            return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    except OSError:
        return sorted({found.name for found in importlib.metadata.distributions()})
