"""A training image needs the base dependencies alone: run with these, and nothing else, on the path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bare_sites import PROJECT, name_of, required, run, site_of
from house import ROOT

JOB = """
import json, sys
from pathlib import Path
import numpy as np
from factorize import Spec
from factorize.auditor import ParticipationAuditor
from factorize.client import Service, load
from factorize.training import fixed_order

for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    factors = load(path)
    scale = factors.calibrate(epsilon=2.0, delta=1e-6)
    noise = factors.noise(scale, 1000, seed=5)
    for row in noise:
        assert abs(row).max() > 0
    auditor = ParticipationAuditor.of(scale, factors.steps)
    for batch in fixed_order(64, 2):
        auditor.record(batch)
    whole = factors.opened()
    assert whole.digest == factors.digest
    matrix, inverse, decoder = (whole.rows(name, 0, factors.steps) for name in ("C", "C_inv", "B"))
    assert np.allclose(matrix @ inverse, np.eye(factors.steps), atol=1e-12)
    assert np.allclose(decoder, np.cumsum(inverse, axis=0), atol=1e-12)
    for name, every in (("C", matrix), ("C_inv", inverse), ("B", decoder)):
        assert np.allclose(whole.rows(name, 5, 9), every[5:9], atol=1e-14)
        assert np.allclose(list(factors.rows(name)), every, atol=1e-14)
    try:
        whole.verify()
    except ModuleNotFoundError as error:
        assert "factorize[solve]" in str(error), error
    Spec.model_validate(factors.spec).document()
    print(path.stem, factors.structure, noise.step)
def needing():
    from factorize.client import load
    import factorize
    return [
        lambda: factorize.solve("prefix", n=8, mechanism="dense"),
        lambda: factorize.compare("prefix", n=8),
        lambda: load(path).calibrate(epsilon=1.0, delta=1e-6, sampling="balls_in_bins", bins=4),
        lambda: factorize.solve("prefix", n=8, mechanism="semidefinite"),
        lambda: load(path, signature=path, public_key=path),
    ]
for call in needing():
    try:
        call()
    except ModuleNotFoundError as error:
        assert "pip install 'factorize[" in str(error), error
    else:
        raise AssertionError("there was nothing to miss")
found = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps(sorted(found)))
"""

STREAMED = {"banded", "banded_toeplitz", "blt", "buffered", "dense", "inverse_banded_toeplitz", "redrawn", "scaled"}
STREAMED |= {"toeplitz", "tree"}


@pytest.fixture(scope="module")
def bare_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds the base dependencies, and this project's package."""
    return site_of(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from factorize import Spec
    from factorize.solvers import solve

    folder = tmp_path_factory.mktemp("files")
    mechanisms = [
        {"kind": "banded", "bands": 3},
        {"kind": "banded_inverse_square_root", "bands": 3},
        {"kind": "buffered_linear", "buffers": 1, "redraws": 1},
        {"kind": "dense"},
        {"kind": "buffered_linear", "buffers": 2},
        {"kind": "banded_toeplitz", "bands": 3},
        {"kind": "square_root"},
        {"kind": "square_root", "normalization": "columns"},
        {"kind": "tree", "decoder": "honaker_full"},
        {"kind": "blt", "buffers": 2},
    ]
    for i, mechanism in enumerate(mechanisms):
        asked = {"workload": {"kind": "prefix", "n": 32}, "mechanism": mechanism}
        if "redraws" in mechanism:
            asked["participation"] = {"kind": "fixed_epochs", "epochs": 4}
        solve(Spec.model_validate(asked)).save(folder / f"{i}-{mechanism['kind']}.safetensors")
    return folder


def test_the_base_is_small_and_nothing_else_is_on_the_path(bare_site: Path) -> None:
    assert [name_of(entry) for entry in required()] == ["numpy", "pydantic", "safetensors"]
    assert "No module named 'scipy'" in run(bare_site, "import scipy").stderr


def test_loads_calibrates_audits_and_makes_noise(bare_site: Path, files: Path) -> None:
    done = run(bare_site, JOB, str(files))
    assert done.returncode == 0, done.stderr
    *lines, modules = done.stdout.splitlines()
    assert len(lines) == 10 and all(line.endswith(" 32") for line in lines)
    assert {line.split()[1] for line in lines} == STREAMED
    assert set(json.loads(modules)) & {"numpy", "safetensors", "pydantic"}


def test_the_command_line_says_what_it_needs(bare_site: Path) -> None:
    done = run(bare_site, "from factorize.api.cli import main; main(['jobs', 'ls'])")
    assert done.returncode == 2 and "pip install 'factorize[cli]'" in done.stderr and "Traceback" not in done.stderr


def test_every_extra_is_declared_and_documented() -> None:
    extras = PROJECT["optional-dependencies"]
    text = (ROOT / "docs" / "adapters.md").read_text()
    assert {"solve", "conic", "cli", "cluster", "serve", "torch", "jax", "accounting"} < set(extras)
    for name in set(extras) - {"test", "example"}:
        assert f"`[{name}]`" in text, name
