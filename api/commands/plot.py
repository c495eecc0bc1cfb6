"""`factorize plot`: the picture of a result."""

from __future__ import annotations

from api.commands.options import Output, StoreUrl, Target, ToFile
from api.commands.sources import open_target, written_whole
from api.terminal import OutputForm, emit


def plot(target: Target, to: ToFile, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Draw heatmaps of C and C^-1, and the error of each query against the bound (.png, .pdf or .svg)."""
    from api.plot import check_format, save_picture

    check_format(to)
    factorization = open_target(target, store)
    with written_whole(to) as part:
        save_picture(factorization, part)
    emit(output, {"file": str(to), "digest": factorization.digest}, f"{to}: picture of {factorization.digest}")
