"""The portrait of a factorization in a notebook: its certificate in words, and a small picture of C, C^-1 and B.

It is HTML and SVG as text, which load nothing from outside. Colours are neutral enough for light and dark pages.
"""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from factorize.format.claims import is_exact
from factorize.format.labels import describe_spec
from factorize.format.manifest import ENDLESS_STEPS, Manifest
from factorize.format.quantities import at_least, at_most
from factorize.format.tensors import MatrixName

MAX_DRAWN_STEPS = 4096
"""The most steps of a matrix that is drawn; above, a notebook would wait too long for the rows."""
_CELLS, _SIDE, _DECADES, _SHADES = 24, 120, 4.0, 10


def line(manifest: Manifest) -> str:
    """Return factors in one line: the spec, sensitivity, loss and gap."""
    certificate = manifest.certificate
    stated = certificate["sensitivity"]
    parts = [
        describe_spec(manifest.spec),
        f"sensitivity {at_most(stated['value'])} ({stated['kind']})",
        f"rmse {_number(certificate['loss']['rmse'])}",
        _gap(certificate) + ("" if certificate["converged"] else ", tolerance not met"),
        f"digest {manifest.digest[:12]}",
    ]
    return f"<Factors {'; '.join(parts)}>"


def sentences(manifest: Manifest) -> list[str]:
    """Return the certificate in words."""
    certificate = manifest.certificate
    stated, loss, bound = certificate["sensitivity"], certificate["loss"], certificate["lower_bound"]
    kind = "the exact maximum" if is_exact(stated) else "an upper bound"
    texts = [
        f"One example can change C times the gradients by at most {at_most(stated['value'])} if each of its "
        f"contributions has norm 1 or less: {kind} (rule: {stated['rule']}; participation: "
        f"{stated['participation']['kind']}).",
        f"With noise of one sensitivity, the outputs have an error of {_number(loss['rmse'])} (root mean square) "
        f"overall, and at most {_number(loss['max_error'])} in any one; the objective, a variance, is "
        f"{_number(loss['objective'])}.",
    ]
    if bound is None:
        texts.append("No lower bound is known for this participation and objective.")
    else:
        texts.append(
            f"No strategy matrix has an objective below {at_least(bound['objective'])} ({bound['rule']}): this one is "
            f"within {100 * max(certificate['relative_gap'], 0.0):.3g} % of it."
        )
    if not certificate["converged"]:
        texts.append(
            "The solver stopped before it reached the spec's tolerance; the numbers are for the strategy that it found."
        )
    return texts + [str(text) for text in certificate["warnings"]]


def html(drawn: Any) -> str:
    """Return the portrait: the spec, the sentences, the picture where n allows one, and the digest."""
    manifest = drawn.manifest
    n = manifest.steps
    if n > MAX_DRAWN_STEPS:
        size = "no last row" if n == ENDLESS_STEPS else f"n={n}"
        pictures = f"<p>{size}: no picture here; <code>factorize plot</code> draws one.</p>"
    else:
        pictures = "".join(svg(label, thinned(drawn, name)) for name, label in _LABELS)
    words = "".join(f"<li>{escape(text)}</li>" for text in sentences(manifest))
    return (
        f'<div style="font-family:sans-serif;font-size:13px;max-width:60em"><b>Factors</b> '
        f"{escape(describe_spec(manifest.spec))}<ul>{words}</ul>{pictures}"
        f"<p><small>digest <code>{escape(manifest.digest)}</code></small></p></div>"
    )


_LABELS: tuple[tuple[MatrixName, str], ...] = (("C", "C"), ("C_inv", "C^-1"), ("B", "B"))


def thinned(drawn: Any, name: MatrixName) -> np.ndarray:
    """Return the sizes of a matrix at evenly spaced rows and columns, at most 24 of each."""
    rows, n = drawn.manifest.shape(name)
    picked = np.unique(np.linspace(0, rows - 1, _CELLS).round().astype(int))
    columns = np.unique(np.linspace(0, n - 1, _CELLS).round().astype(int))
    if rows <= 512:
        return np.abs(drawn.rows(name, 0, rows)[np.ix_(picked, columns)])
    return np.abs(np.concatenate([drawn.rows(name, i, i + 1)[:, columns] for i in picked.tolist()]))


def svg(title: str, sizes: np.ndarray) -> str:
    """Return a heatmap of sizes, each cell as dark as its share of the largest on a scale of four decades."""
    largest = float(sizes.max()) or 1.0
    with np.errstate(divide="ignore"):
        shades = np.ceil(_SHADES * np.clip(1 + np.log10(sizes / largest) / _DECADES, 0, 1))
    rows, columns = shades.shape
    cells = "".join(
        f'<path fill-opacity="{level / _SHADES:.1f}" d="{_squares(shades == level)}"/>'
        for level in range(1, _SHADES + 1)
        if (shades == level).any()
    )
    text = escape(f"|{title}|, largest shown {largest:.3g}")  # of the entries that were picked
    return (
        f'<span style="display:inline-block;margin-right:1em"><small>{text}</small><br>'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIDE}" height="{_SIDE}" viewBox="0 0 {columns} {rows}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges" role="img" '
        f'aria-label="{text}; dark is large" style="outline:1px solid #888" fill="#2a78d6">{cells}</svg></span>'
    )


def _squares(cells: np.ndarray) -> str:
    """Return the outline of the cells, row by row."""
    return "".join(f"M{j} {i}h1v1h-1z" for i, j in zip(*(part.tolist() for part in np.nonzero(cells)), strict=True))


def _number(value: float | None) -> str:
    return "infinite" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _gap(certificate: Mapping[str, object]) -> str:
    gap = certificate["relative_gap"]
    return "no bound known" if gap is None else f"gap {gap:.1e}"
