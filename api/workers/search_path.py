"""The search path of this process and its workers: nothing is imported from the folder in which the user stands.

`python -m` puts the working folder first on `sys.path`: a folder `api/`, a `numpy.py` or a `sitecustomize.py` there
would be imported in place of the real one. Workers are therefore started with `-P`, and their PYTHONPATH is this
process's own `sys.path` without the working folder. So a virtual environment, an editable install, a user's
site-packages and a PYTHONPATH of absolute folders go on working.
"""

import os
import sys
from pathlib import Path

_ROOT = os.path.realpath(Path(os.path.abspath(__file__)).parents[__name__.count(".")])
"""The folder that holds our packages: a source checkout, or site-packages."""


def search_path() -> list[str]:
    """Return `sys.path` as absolute folders without the working folder; our own folder is in it, wherever that is."""
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it was removed; nothing can be imported from it
        here = None
    folders = [os.path.abspath(entry) for entry in sys.path if entry and os.path.realpath(entry) != here]
    return folders if _ROOT in map(os.path.realpath, folders) else [_ROOT, *folders]


def leave_working_folder() -> None:
    """Take the working folder off this process's `sys.path`, where `python -m` or PYTHONPATH=. has put it."""
    sys.path[:] = search_path()
