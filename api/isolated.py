"""A child Python that imports what this process imports, and nothing from the folder in which the user stands.

`python -m factorize.api.jobs.child` puts the working folder first on `sys.path`: a folder `api/`, a `numpy.py` or a
`sitecustomize.py` there would be imported in place of the real one. Children are therefore started with `-I` (no
working folder, no PYTHON* variables, no sitecustomize from there) on this very file, which takes over this process's
own `sys.path` without the working folder and runs the module as `__main__`. So a virtual environment, an editable
install, a user's site-packages and a PYTHONPATH of absolute folders go on working.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

SOLVE, COMPARE, RECOMMEND, PROVE, CALIBRATE, ANSWER, EXPAND, NURSERY, BATCH_SOLVE, BATCH_PROVE = (
    "factorize.api.jobs.child",
    "factorize.api.comparing.child_comparison",
    "factorize.api.recommending.child_advice",
    "factorize.api.proof",
    "factorize.api.children.calibrating",
    "factorize.api.children.answering",
    "factorize.api.children.expanding",
    "factorize.api.processes.nursery_process",
    "factorize.api.batches.solve_worker",
    "factorize.api.batches.proof_worker",
)
"""The modules that run in a process of their own."""

SELDOM = (10_000, 10, 10)
"""Thresholds of the garbage collector: imports make much and drop little of it, a tenth of a second's looking."""

_HERE = Path(os.path.abspath(__file__))  # in a checkout, by way of the link factorize/api
_ROOT = os.path.realpath(_HERE.parents[__name__.count(".")])
"""The folder that holds our packages: a source checkout, or site-packages."""


def child_command(module: str) -> tuple[str, ...]:
    """Return the command line that runs one of our modules in a process of its own.

    Args:
        module: one of the names above.
    """
    return (sys.executable, "-I", str(_HERE), module, *search_path())


def search_path() -> list[str]:
    """Return `sys.path` as absolute folders without the working folder; our own folder is in it, wherever that is."""
    here = _working_folder()
    found = [os.path.abspath(entry) for entry in sys.path if entry and os.path.realpath(entry) != here]
    return found if _ROOT in map(os.path.realpath, found) else [_ROOT, *found]


def leave_working_folder() -> None:
    """Take the working folder off this process's `sys.path`, where `python -m` or PYTHONPATH=. has put it."""
    sys.path[:] = search_path()


def _working_folder() -> str | None:
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it was removed; nothing can be imported from it
        return None


def _run(module: str, path: list[str]) -> None:
    """Run a module as `__main__` on a search path; in a child, whose `sys.argv` is the module's alone."""
    import runpy

    sys.path[:] = path
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        gc.freeze()  # whoever waits for its end need not wait for a last collection of all that was imported


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
