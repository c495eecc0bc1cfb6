"""Factor files with one thing changed, every reader of them, and whether these agree.

All of them read its bytes by one class, so that what is changed is the manifest and the tensors. A change is refused by
both readers that trust a file's claims, or read alike by both of them: the same n and claim, and noise that is C^-1.
Where one refuses what another reads, what is read has to be the file before the change: a field that decides neither
noise nor claim. Where a proof accepts a file, the noise really made has a sensitivity within the claim.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from checker_files import sealed
from manifest_mutations import mutations
from safetensors import SafetensorError
from safetensors.numpy import load_file

from factorize.checker.check import check_factor_file
from factorize.client import load as load_light
from factorize.errors import FactorizeError, InvalidStrategy, UnsupportedProblem
from factorize.factors.factor_file import load
from factorize.format.container import Container
from factorize.format.manifest import ENDLESS_STEPS
from factorize.noise.source import Streamable, source_of

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0"
FIRST = 48
"""The rows that are compared of strategies without end."""
OF_NO_NOISE = ("is not the one that C and the workload define", "InvalidSpec", "does not hash to its spec digest")
"""The refusals of what noise is not made from: loading compares C_inv and B to 1e-9, and knows what C is good for."""
NAMES = ("", "C", "C.", "C_inv", "B", "D", "C.row_scale", "C.column_scale", "C.coefficients", "C.x", "dual.C", "dual.",
         "dual.weights", "dual.x", "tree.nodes", "tree.x", "C.tree.nodes", "C..", "c", "C_inv.", "C.theta")  # fmt: skip
STRUCTURES = ("dense", "toeplitz", "banded_toeplitz", "banded", "buffered", "state_space", "tree", "blt", "redrawn",
              "inverse_banded_toeplitz", "nu_toeplitz", "scaled", "x")  # fmt: skip
PARTICIPATIONS: tuple[dict[str, Any], ...] = (
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 2},
    {"kind": "fixed_epochs", "epochs": 7},
    {"kind": "min_sep", "min_sep": 4, "max_participations": 2},
    {"kind": "min_sep", "min_sep": 4, "max_participations": None},
    {"kind": "min_sep", "min_sep": 400, "max_participations": 2},
    {"kind": "single", "epochs": 3},
    {"kind": "x"},
)

Manifest = dict[str, Any]
Tensors = dict[str, np.ndarray]
Change = Callable[[np.random.Generator, Manifest, Tensors], None]


class Reading(NamedTuple):
    """The file as a reader takes it.

    Attributes:
        steps: n.
        strategy: C, its first rows.
        noising: rows of C^-1, those that noise is made with.
        claim: value, kind and participation.
    """

    steps: int
    strategy: np.ndarray | None
    noising: np.ndarray | None
    claim: tuple[float, str, str]


@dataclass
class Verdict:
    """The outcome of one change; `disagreement` is empty where all is well."""

    what: str
    refused: bool
    disagreement: str


class Original:
    """A sound file to be changed, and how it reads."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.data = path.read_bytes()
        container = Container(path)
        self.manifest: Manifest = json.loads(container.manifest_text)
        self.tensors = {name: container.read(name) for name in container.names}
        self.whole, self.light = read_whole(path), read_light(path)


def originals() -> list[Original]:
    """Return one for each golden file: every structure, type and participation."""
    return [Original(path) for path in sorted(GOLDEN.glob("*.safetensors"))]


# what readers say


def _claim(stated: Any) -> tuple[float, str, str]:
    return stated.value, stated.kind, json.dumps(dict(stated.participation), sort_keys=True)


def read_whole(path: Path) -> Reading:
    """Read as the library and the service do: rows of C and of C^-1."""
    found = load(path)
    steps = ENDLESS_STEPS if found.endless else found.strategy.n
    stop = min(steps, FIRST)
    noising: np.ndarray | None = None
    with suppress(InvalidStrategy):  # a C may be ill-conditioned
        noising = found.rows("C_inv", 0, stop)
    return Reading(steps, found.rows("C", 0, stop), noising, _claim(found.certificate.sensitivity))


def read_light(path: Path) -> Reading:
    """Read as a training job does: unit vectors in the place of normals."""
    factors = load_light(path)
    stop = min(factors.steps, FIRST)
    noising: np.ndarray | None = None
    with suppress(
        UnsupportedProblem, InvalidStrategy
    ):  # there is no noise: nu_toeplitz without end, or a C that is ill-conditioned
        source = source_of(factors)
        if isinstance(source, Streamable):
            noising = impulses(source, stop)
        else:
            noising = np.array([source.make()(step) for step in range(stop)])
    if noising is not None and not np.isfinite(noising).all():  # noise beyond double precision tells nothing
        noising = None
    return Reading(factors.steps, None, noising, _claim(factors.sensitivity))


def impulses(source: Streamable, stop: int) -> np.ndarray:
    """Return rows of C^-1 as the recurrence makes them."""
    recurrence = source.recurrence()
    state, units = np.zeros((recurrence.vectors, stop)), np.eye(stop)
    rows = np.empty((stop, stop))
    for step in range(stop):
        scratch = np.zeros((recurrence.scratch, stop))
        for place, (before, factor) in zip(scratch, recurrence.earlier(step), strict=False):
            place[...] = factor * units[before]
        rows[step] = recurrence.gain(step) * units[step]
        recurrence.advance(step, rows[step], state, scratch)
    return rows


def read_library(path: Path) -> np.ndarray | None:
    """`load_file(path)["C"]` of the documentation; None where C has a structure."""
    found = load_file(path).get("C")
    return None if found is None else found.astype(np.float64)


def proved(path: Path) -> bool:
    try:
        load(path).verify()
    except FactorizeError:
        return False
    return True


def proved_exactly(data: bytes) -> bool:
    try:
        report = check_factor_file(data)
    except FactorizeError:
        return False
    return report.supported and "certificate.sensitivity" not in report.unseen


INVERTIBLE = 1e9  # condition of rows, of whose inverse seven digits are compared


def attained(noising: np.ndarray, participation: str) -> float:
    """Return a sensitivity that noise made with these rows really has, or less: of patterns with equal contributions.

    0 where the rows cannot be inverted in doubles: a C with a diagonal of 1e-30 has an inverse whose own is rounding.
    """
    if not np.linalg.cond(noising) < INVERTIBLE:
        return 0.0
    given, strategy = json.loads(participation), np.linalg.inv(noising)
    n = len(strategy)
    if given["kind"] == "single":
        return float(np.linalg.norm(strategy, axis=0).max())
    epochs = given["kind"] == "fixed_epochs"
    apart = n // given["epochs"] if epochs else given["min_sep"]
    most = given["epochs"] if epochs else given["max_participations"] or n
    patterns = [np.arange(first, n, apart)[:most] for first in range(min(apart, n) if epochs else n)]
    sums = [np.linalg.norm(strategy[:, pattern].sum(axis=1)) for pattern in patterns]
    traces = [np.sqrt((strategy[:, pattern] ** 2).sum()) for pattern in patterns]
    return float(max(*sums, *traces))


# what they have to agree on


def judge(original: Original, what: str, data: bytes, folder: Path) -> Verdict:
    """Let every reader read a changed file."""
    path = folder / "changed.safetensors"
    path.write_bytes(data)
    found: dict[str, Reading | str] = {}
    for name, read in READERS.items():
        try:
            found[name] = read(path)
        except FactorizeError as error:
            found[name] = f"{type(error).__name__}: {error}"
    readings = {name: reading for name, reading in found.items() if isinstance(reading, Reading)}
    if isinstance(found["whole"], str) and any(word in found["whole"] for word in OF_NO_NOISE) and "light" in readings:
        rest = of_noise(original, data)  # the client looks at this, so that it has to read alike
        if rest != data:
            return Verdict(what, False, judge(original, what, rest, folder).disagreement)
    exact = proved_exactly(data)
    sound = exact or (bool(readings) and proved(path))
    return Verdict(what, not readings, _disagreement(original, found, readings, exact, sound, path))


READERS = {"whole": read_whole, "light": read_light}


def of_noise(original: Original, data: bytes) -> bytes:
    """The same file with what noise is made from and for: without C_inv and B, with the original's spec but for n and participation."""
    container = Container(data)
    manifest = json.loads(container.manifest_text)
    given, workload = manifest["spec"], dict(original.manifest["spec"]["workload"])
    workload |= {size: given["workload"][size] for size in ("n", "shape") if size in workload}
    manifest["spec"] = original.manifest["spec"] | {"workload": workload, "participation": given["participation"]}
    manifest["matrices"] = {"C": manifest["matrices"]["C"]}
    named = [*manifest["matrices"]["C"]["tensors"], *(manifest["dual"] or {"tensors": []})["tensors"]]
    return sealed(manifest, {name: container.read(name) for name in named})


def _disagreement(
    original: Original,
    found: dict[str, Reading | str],
    readings: dict[str, Reading],
    exact: bool,
    sound: bool,
    path: Path,
) -> str:
    if not readings:
        return f"only the exact checker accepts it: {found}"[:600] if exact else ""
    if len(readings) < len(found):
        odd = next((name for name, reading in readings.items() if not _same(reading, original, name)), None)
        return f"{odd} reads another thing than before, and others refuse it: {_brief(found)}" if odd else ""
    whole, light = readings["whole"], readings["light"]
    if (whole.steps, whole.claim) != (light.steps, light.claim):
        return f"n or claim differ: {_brief(found)}"
    try:
        library = read_library(path)
    except (SafetensorError, ValueError) as error:
        return f"safetensors refuses it: {error}"
    if library is not None and not np.array_equal(library[:FIRST], whole.strategy):  # type: ignore[arg-type]
        return "C of the safetensors library is another one"
    for name, reading in readings.items():
        if reading.noising is not None and not _inverse(whole.strategy, reading.noising):  # type: ignore[arg-type]
            return f"rows of C^-1 by {name} are not those of C"
    if sound and light.noising is not None and attained(light.noising, light.claim[2]) > light.claim[0] * (1 + 1e-6):
        return (
            f"proved, and the noise has sensitivity {attained(light.noising, light.claim[2])!r}, not {light.claim[0]!r}"
        )
    return ""


def _same(reading: Reading, original: Original, name: str) -> bool:
    before = original.light if name == "light" else original.whole
    alike = [
        (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
        for a, b in zip(reading[1:3], before[1:3], strict=True)
    ]
    return all(alike) and reading.steps == before.steps and reading.claim == before.claim


def _inverse(strategy: np.ndarray, noising: np.ndarray) -> bool:
    """Return whether C N is I, but for the factor of at least 1 by which the client covers its own rounding."""
    strategy, noising = strategy[:, : len(strategy)], noising[:, : len(noising)]  # the rest of these rows is zero
    with np.errstate(all="ignore"):
        factor = float(strategy[0] @ noising[:, 0])
        size, image = np.abs(strategy) @ np.abs(noising), strategy @ noising / factor
        near = (np.abs(image - np.eye(len(strategy))) <= 1e-6 * (1 + size)).all()
        return bool(near) and 1 - 1e-9 <= factor <= 1 + 2.0**-6


def _brief(found: dict[str, Reading | str]) -> str:
    said = {name: f"n={r.steps}, {r.claim}" if isinstance(r, Reading) else r for name, r in found.items()}
    return str(said)[:700]


# changes


def _pick(rng: np.random.Generator, options: Any) -> Any:
    options = list(options)
    return options[int(rng.integers(len(options)))]


def _own(array: np.ndarray) -> np.ndarray:
    return np.array(array, order="C")


def value(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """One entry of a tensor."""
    name = _pick(rng, tensors)
    array = _own(tensors[name])
    flat = array.reshape(-1)
    i, j = (int(k) for k in rng.integers(flat.size, size=2))
    with np.errstate(all="ignore"):
        old = flat[i]
        new = [1 + old, old * (1 + 1e-3), old * (1 + 1e-13), -old, 0.0, np.nan, np.inf, 1e-30, old * 1e3, flat[j], 1.0]
        flat[i] = _pick(rng, new)
    tensors[name] = array


def block(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """Many entries of a tensor: scaled, reversed, shifted."""
    name = _pick(rng, tensors)
    array, factor = _own(tensors[name]), _pick(rng, (0.5, 2.0, 1e-3, -1.0))
    kind = rng.integers(4)
    if kind == 0:
        array *= array.dtype.type(factor)
    elif kind == 1:
        array[: len(array) // 2] *= array.dtype.type(factor)
    elif kind == 2:
        array = _own(array[::-1])
    else:
        array = np.roll(array, 1, axis=-1)
    tensors[name] = array


def shape(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """The sides of a tensor, its numbers kept or not."""
    name = _pick(rng, tensors)
    array = tensors[name]
    tensors[name] = _own(
        _pick(
            rng,
            [
                array.T,
                array[..., None],
                array[None],
                array.reshape(-1),
                array[:-1] if len(array) > 1 else array,
                array[1:] if len(array) > 1 else array,
                np.concatenate([array, array[-1:]]),
                array[:0],
                array[..., :-1] if array.shape[-1] > 1 else array,
            ],
        )
    )


def kind_of_number(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """The type of a tensor, what the manifest says of it, or both."""
    name, new = _pick(rng, tensors), _pick(rng, ("float32", "float64", "float16", "int64", "int32", "bool"))
    if rng.random() < 0.7:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors[name] = tensors[name].astype(new)
    if rng.random() < 0.5:
        _pick(rng, manifest["matrices"].values())["dtype"] = new


def _lists(manifest: Manifest) -> list[dict[str, Any]]:
    return [*manifest["matrices"].values(), *([manifest["dual"]] if manifest["dual"] else [])]


def renamed(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """A tensor's name, in the file, in the manifest, or in both."""
    entry = _pick(rng, _lists(manifest))
    i = int(rng.integers(len(entry["tensors"])))
    old, new = entry["tensors"][i], _pick(rng, (*NAMES, *tensors))
    where = rng.integers(3)
    if where != 1:
        entry["tensors"][i] = new
    if where != 0:
        tensors[new] = tensors.pop(old)


def added(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """A tensor more, which nothing names, or the evidence, or a matrix."""
    name, n = _pick(rng, NAMES), len(next(iter(tensors.values())))
    array = _pick(rng, [np.full(n, 1000.0), np.eye(n), np.ones(1), *tensors.values()])
    tensors[name] = _own(array)
    where = rng.integers(3)
    if where == 1:
        if manifest["dual"] is None:
            manifest["dual"] = {"tensors": [], "sha256": ""}
        manifest["dual"]["tensors"].append(name)
    elif where == 2:
        _pick(rng, manifest["matrices"].values())["tensors"].append(name)


def dropped(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """A tensor less, in the file, in the manifest, or in both."""
    entry = _pick(rng, _lists(manifest))
    name = _pick(rng, entry["tensors"])
    where = rng.integers(3)
    if where != 1:
        entry["tensors"].remove(name)
    if where != 0:
        del tensors[name]


def reordered(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """The order of tensors in a list, or one of them twice, or two lists exchanged."""
    entry, kind = _pick(rng, _lists(manifest)), rng.integers(3)
    if kind == 0:
        rng.shuffle(entry["tensors"])
    elif kind == 1:
        entry["tensors"].append(_pick(rng, entry["tensors"]))
    else:
        other = _pick(rng, _lists(manifest))
        entry["tensors"], other["tensors"] = other["tensors"], entry["tensors"]


def restated(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """The structure, or who takes part, in the spec, in the claim, or in both."""
    if rng.random() < 0.5:
        _pick(rng, manifest["matrices"].values())["structure"] = _pick(rng, STRUCTURES)
        return
    participation = _pick(rng, PARTICIPATIONS)
    for statement in (manifest["spec"], manifest["certificate"]["sensitivity"]):
        if rng.random() < 0.8:
            statement["participation"] = dict(participation)


def field(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """A field of the manifest: gone, of another type, another number, or one more beside it."""
    document = next(mutations(manifest, rng)).document
    manifest.clear()
    manifest.update(document)


def another_size(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """The number of steps, in the spec, in the shapes, or in both."""
    n = _pick(rng, (1, 2, 8, 21, 24, 25, 47, 1025, "unbounded", None, True, 24.0, 40, 48, 0, -1))
    if rng.random() < 0.6:
        manifest["spec"]["workload"]["n"] = n
    if rng.random() < 0.6:
        side = None if n == "unbounded" else n
        _pick(rng, manifest["matrices"].values())["shape"] = _pick(
            rng, ([side, side], [side], [side, 24], [None, None])
        )


def another_claim(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """The sensitivity."""
    stated = manifest["certificate"]["sensitivity"]
    new = stated["value"] * _pick(rng, (0.5, 1 - 1e-6, 1 - 1e-13, 1 + 1e-13, 1.5, 0.0, -1.0))
    if rng.random() < 0.8:
        stated["value"] = new
    if rng.random() < 0.8:
        stated["hex"] = _pick(rng, (new.hex(), "nan", "inf", "x", "0x0.0p+0", new.hex().upper()))


def exchanged(rng: np.random.Generator, manifest: Manifest, tensors: Tensors) -> None:
    """Matrices under each other's names, hidden in the evidence, or one more."""
    matrices, kind = manifest["matrices"], rng.integers(4)
    if kind == 0:
        a, b = _pick(rng, matrices), _pick(rng, (*matrices, "C_inv", "B", "D"))
        matrices[a], matrices[b] = matrices.get(b, matrices[a]), matrices[a]
    elif kind == 1:
        matrices[_pick(rng, ("D", "C.", "c", "dual", "C_inv", "B"))] = copy.deepcopy(_pick(rng, matrices.values()))
    elif kind == 2:
        n = manifest["matrices"]["C"]["shape"][0] or 2
        tensors["C"] = tensors.get("C", np.eye(n)) * 1.0
        if "C" in matrices["C"]["tensors"]:
            tensors["C."] = tensors["C"]
            matrices["C"]["tensors"] = ["C." if t == "C" else t for t in matrices["C"]["tensors"]]
            tensors["C"] = np.eye(n)
        manifest["dual"] = {"tensors": [*(manifest["dual"] or {"tensors": []})["tensors"], "C"], "sha256": ""}
    else:
        old, new = _pick(rng, matrices), _pick(rng, ("C_inv", "B", "D"))
        matrices[new] = matrices.pop(old)


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        value, block, shape, kind_of_number, renamed, added, dropped, reordered, field, restated, another_size,
        another_claim, exchanged,
    )
}  # fmt: skip
TWICE = ("field", "value", "added", "restated")
"""The changes of which there are more kinds than others, drawn twice as often."""


def changed(rng: np.random.Generator, original: Original) -> tuple[str, bytes]:
    """Return the name of a change and the bytes of the file; sometimes two changes in one."""
    names = [*CHANGES, *TWICE]
    name = str(rng.choice(names))
    while True:
        manifest, tensors = copy.deepcopy(original.manifest), dict(original.tensors)
        try:
            if rng.random() < 0.15:
                CHANGES[str(rng.choice(list(CHANGES)))](rng, manifest, tensors)
            CHANGES[name](rng, manifest, tensors)
            return name, sealed(manifest, tensors)
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError, StopIteration, FactorizeError):
            continue  # a change that another one has made impossible
