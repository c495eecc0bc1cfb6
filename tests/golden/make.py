"""`.venv-clients/bin/python -m tests.golden.make`: writes the golden files of this release and what they must go on being.

Run it once per release, before the tag, from the root of the repository. It makes one small file per structure under
`tests/golden/<release>/`, with `expected.json`: the digests of spec, result, file and of the rows of C as they are
streamed, which do not depend on the machine (those of C^-1 and B do, in the last bits). Files that are there are left
as they are with what they are expected to be, since later releases have to open exactly those. Beside them it keeps a
receipt of each kind of run, with its factor files by digest, in `receipts/<release>/`; and a store and its signed
mirror in `stores/<release>/` and `mirrors/<release>/`. Signing needs the environment of the other projects' clients.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from factorize import __version__, solvers
from factorize.api.mirror_writer import write_mirror
from factorize.factors.factor_file import cast, load
from factorize.factors.factorization import Factorization
from factorize.spec import Spec, parse_spec
from factorize.storage.store import open_store
from tests.support.receipt_runs import KINDS

HERE = Path(__file__).parent
EXPECTED = "expected.json"
STREAMED = 48
"""Rows of a matrix without end that are streamed."""
SAME_DECIMALS = 8
"""Of coefficients that go through `exp`, whose last bit depends on the processor."""

_MIN_SEP = {"kind": "min_sep", "min_sep": 8, "max_participations": 3}
_EPOCHS = {"kind": "fixed_epochs", "epochs": 4}


def _prefix(n: int | str, **rest: Any) -> dict[str, Any]:
    return {"workload": {"kind": "prefix", "n": n}, **rest}


SPECS: dict[str, dict[str, Any]] = {
    "dense": _prefix(24, mechanism={"kind": "dense"}),
    "dense-epochs": {
        "workload": {"kind": "momentum", "n": 24, "momentum": 0.9},
        "mechanism": {"kind": "dense"},
        "participation": _EPOCHS,
        "tolerance": 1e-6,
    },
    "dense-lambda": _prefix(20, mechanism={"kind": "dense"}, objective={"kind": "lambda_tau", "tau": 5}),
    "toeplitz": _prefix(48, mechanism={"kind": "square_root"}),
    "toeplitz-optimum": _prefix(32, mechanism={"kind": "toeplitz"}),
    "banded-toeplitz": _prefix(48, mechanism={"kind": "banded_square_root", "bands": 5}, participation=_MIN_SEP),
    "banded": _prefix(32, mechanism={"kind": "banded", "bands": 4}, participation=_MIN_SEP, tolerance=1e-6),
    "inverse-banded-toeplitz": _prefix(
        48, mechanism={"kind": "banded_inverse_square_root", "bands": 4}, participation=_MIN_SEP
    ),
    "scaled": _prefix(40, mechanism={"kind": "nu_toeplitz", "nu": 0.1, "normalization": "columns"}),
    "scaled-blt": _prefix(40, mechanism={"kind": "blt", "buffers": 2, "normalization": "columns"}),
    "scaled-inverse": _prefix(
        40, mechanism={"kind": "banded_inverse_square_root", "bands": 4, "normalization": "columns"}
    ),
    "buffered": _prefix(40, mechanism={"kind": "buffered_linear", "buffers": 2}),
    "buffered-momentum": {
        "workload": {"kind": "momentum", "n": 32, "momentum": 0.9},
        "mechanism": {"kind": "buffered_linear", "buffers": 2},
    },
    "buffered-epochs": _prefix(32, mechanism={"kind": "buffered_linear", "buffers": 3}, participation=_EPOCHS),
    "redrawn": _prefix(24, mechanism={"kind": "buffered_linear", "buffers": 3, "redraws": 2}, participation=_EPOCHS),
    "blt": _prefix(40, mechanism={"kind": "blt", "buffers": 2}),
    "blt-endless": _prefix("unbounded", mechanism={"kind": "blt", "buffers": 2}),
    "nu-toeplitz-endless": _prefix("unbounded", mechanism={"kind": "nu_toeplitz", "nu": 0.1}),
    "tree": _prefix(21, mechanism={"kind": "tree", "decoder": "honaker_online"}),
    "identity": {"workload": {"kind": "decay", "n": 16, "rate": 0.5}, "mechanism": {"kind": "identity"}},
}
EXPANDED = {"dense-expanded": "dense", "toeplitz-expanded": "toeplitz"}
STORED = ["blt", "banded-toeplitz", "identity"]
REVOKED = "identity"
OWN = [[1.0, 0.0], [2.0, 1.0]]
NARROW = {"dense-float32": "dense", "banded-float32": "banded"}


def made(name: str) -> Factorization:
    """Return what a golden file of this release holds."""
    if name in EXPANDED:
        return made(EXPANDED[name]).with_matrices(["C_inv", "B"])
    if name in NARROW:
        return cast(made(NARROW[name]), "float32")
    return solvers.solve(solvers.choose(parse_spec(SPECS[name])))


def row_digest(found: Factorization) -> str:
    """Return the sha256 of C as it is streamed: little-endian float64, row by row, in three blocks."""
    n = STREAMED if found.endless else found.shape("C")[0]
    edges = [0, n // 3, n // 2, n]
    state = hashlib.sha256()
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        rows = found.rows("C", start, stop)
        if found.strategy.structure == "nu_toeplitz":
            rows = np.round(rows, SAME_DECIMALS)
        state.update(np.ascontiguousarray(rows, dtype="<f8").tobytes())
    return state.hexdigest()


def main() -> None:
    """Write what is missing."""
    folder = HERE / __version__
    folder.mkdir(exist_ok=True)
    listing = folder / EXPECTED
    expected = json.loads(listing.read_text()) if listing.exists() else {}
    for name in (name for name in [*SPECS, *EXPANDED, *NARROW] if name not in expected):
        path = folder / f"{name}.safetensors"
        made(name).save(path)
        manifest = load(path).manifest
        expected[name] = {
            "digest": manifest["digest"],
            "spec_digest": manifest["spec_digest"],
            "file": hashlib.sha256(path.read_bytes()).hexdigest(),
            "rows": row_digest(load(path)),
        }
    listing.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {len(expected)} files, {size} bytes")
    receipts = HERE / "receipts" / __version__
    receipts.mkdir(parents=True, exist_ok=True)
    for run in (run for run in KINDS if not (receipts / f"{run.__name__}.json").exists()):
        with TemporaryDirectory() as work:
            made_run = run(Path(work))
        for factors, data in zip(made_run.document["factors"], made_run.files, strict=True):
            (receipts / f"{factors['digest']}.safetensors").write_bytes(data)
        (receipts / f"{run.__name__}.json").write_bytes(made_run.text)
    if not (HERE / "stores" / __version__).exists():
        make_store(HERE / "stores" / __version__, HERE / "mirrors" / __version__)


def make_store(folder: Path, mirror: Path) -> None:
    """Write a store of two results, a third that was revoked and one for a user's matrix; and its signed mirror."""
    store = open_store(folder)
    kept = {name: made(name) for name in STORED}
    kept["own"] = solvers.solve(Spec.of(np.array(OWN), mechanism="identity"))
    for one in kept.values():
        store.put(one)
    store.revoke(kept[REVOKED].digest, "to be told for ever")
    told = {
        name: {"spec": one.spec.digest, "digest": one.digest, "rows": row_digest(one)} for name, one in kept.items()
    }
    Path(f"{folder}.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with TemporaryDirectory() as work:
        (Path(work) / "key.pem").write_bytes(key.private_bytes(*form))
        write_mirror(store, str(mirror), private_key=Path(work) / "key.pem")
    public = key.public_key().public_bytes(form[0], serialization.PublicFormat.SubjectPublicKeyInfo)
    (mirror / "key.pub").write_bytes(public)
    shutil.rmtree(mirror / "pages")  # for people


if __name__ == "__main__":
    main()
