"""Masked arrays of numpy, which become plain ones with the numbers under their masks."""

import numpy as np

from factorize.errors import InvalidParameter


def refuse_masked(name: str, values: object) -> None:
    """Raise InvalidParameter for masked entries, whose numbers would be used."""
    if np.ma.is_masked(values):
        raise InvalidParameter(f"{name} has masked entries; fill them first, with .filled(0) for example", field=name)
