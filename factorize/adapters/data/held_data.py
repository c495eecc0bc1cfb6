"""What a data set has at hand to make items of: its attributes, and the globals that its methods read.

A data set of a notebook often reads arrays that stand beside its class.
"""

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from types import CellType, FunctionType
from typing import TypeVar

import numpy as np
import torch

_GLOBAL = "global "
"""What the names of globals begin with, beside those of attributes."""

Given = TypeVar("Given")


def list_held(dataset: object) -> dict[str, object]:
    """Return the attributes of a data set, and the globals that its methods read, as the arrays of a notebook."""
    found = dict[str, object]()
    for method in _methods_of(dataset).values():
        names = zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
        with suppress(ValueError):  # a cell that is empty as yet
            found |= {name: cell.cell_contents for name, cell in names}
        found |= {name: method.__globals__.get(name) for name in method.__code__.co_names}
    outer = {_GLOBAL + name: each for name, each in found.items() if hasattr(type(each), "__getitem__")}
    return {**getattr(dataset, "__dict__", {}), **outer}


def _methods_of(dataset: object) -> dict[str, FunctionType]:
    own = {name: each for kind in type(dataset).__mro__[::-1] for name, each in vars(kind).items()}
    return {name: each for name, each in own.items() if type(each) is FunctionType}


def with_others(dataset: Given, attributes: Mapping[str, object]) -> Given:
    """Return a copy of a data set with other attributes, and other globals of its methods."""
    made = copy(dataset)
    outer = {name.removeprefix(_GLOBAL): each for name, each in attributes.items() if name.startswith(_GLOBAL)}
    made.__dict__.update({name: each for name, each in attributes.items() if not name.startswith(_GLOBAL)})
    if outer:
        changed = {name: _with_globals(method, outer) for name, method in _methods_of(dataset).items()}
        made.__class__ = type(type(made).__name__, (type(made),), changed)
    return made


def _with_globals(method: FunctionType, outer: Mapping[str, object]) -> FunctionType:
    """Return a function with other values for some names that it takes from around it."""
    cells = zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
    closure = tuple(CellType(outer[name]) if name in outer else cell for name, cell in cells)
    made = FunctionType(method.__code__, {**method.__globals__, **outer}, method.__name__, method.__defaults__, closure)
    made.__kwdefaults__ = method.__kwdefaults__
    return made


def numbers_in(column: object) -> np.ndarray:
    """Return a column of whole numbers, such as places of examples, as an array; an empty one for any other column."""
    if isinstance(column, torch.Tensor):
        column = column.cpu() if not column.is_floating_point() else None
    listed = isinstance(column, list) and len(column) > 0 and type(column[0]) is int
    numbers = np.asarray(column if listed or getattr(column, "ndim", 0) == 1 else [])
    return numbers if np.issubdtype(numbers.dtype, np.integer) else np.zeros(0, dtype=int)
