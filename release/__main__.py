"""`python -m release [--to FOLDER]`: builds a release twice, compares the bytes, and states what it is made from."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from factorize import __version__
from release import check, distributions
from release.bill_of_materials import bill
from release.distributions import ROOT, changed, commit_of
from release.provenance import digest_of, statement

LOCK = ROOT / "requirements.lock"
PLACE = ROOT / "release" / "place.toml"
CLIENTS = ROOT / ".venv-clients/bin/python"
GOLDEN = [
    [sys.executable, "-m", "pytest", "tests/contract/test_golden.py"],
    [str(CLIENTS), "-m", "pytest", "tests/clients/test_mirror_signatures.py", "-k", "release"],
]
"""What opens the golden corpus; its signatures need the environment of the other projects' clients."""
INPUTS = [LOCK, ROOT / "pyproject.toml", ROOT / "release" / "check.toml"]


def main(arguments: list[str] | None = None) -> int:
    """Make a release.

    The exit status is 1 where two builds differ, the commit is not what would be built, an address or the clients'
    environment is missing, or the golden corpus does not open.
    """
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder for the files")
    parser.add_argument("--materials", action="store_true", help="the bill of materials alone")
    parser.add_argument("--draft", action="store_true", help="build without the addresses of release/place.toml")
    given = parser.parse_args(arguments)
    given.to.mkdir(parents=True, exist_ok=True)
    commit, second = commit_of()
    materials = given.to / f"factorize-{__version__}.cdx.json"
    _write(materials, bill(LOCK, version=__version__, commit=commit, second=second))
    if given.materials:
        print(materials)
        return 0
    if changed():
        print(
            "what is built differs from the commit; commit or put it away first:",
            *changed()[:10],
            sep="\n  ",
            file=sys.stderr,
        )
        return 1
    empty = [] if given.draft else [name for name, text in tomllib.loads(PLACE.read_text()).items() if not text]
    if empty:
        print(f"release/place.toml says no {' and no '.join(empty)}; fill it in, or give --draft", file=sys.stderr)
        return 1
    if not CLIENTS.exists():
        print(
            "the signatures of earlier releases need the clients' environment; make release makes it", file=sys.stderr
        )
        return 1
    if not opens_what_was_released():
        print("what earlier releases wrote does not open or prove as it did; nothing was built", file=sys.stderr)
        return 1
    files = _build(given.to, second)
    with tempfile.TemporaryDirectory() as folder:
        again = _build(Path(folder), second)
        different = [a.name for a, b in zip(files, again, strict=True) if digest_of(a) != digest_of(b)]
    if different:
        print(f"two builds differ in {', '.join(different)}", file=sys.stderr)
        return 1
    released = [*files, materials]
    origin = statement(released, commit=commit, second=second, inputs=INPUTS)
    provenance = given.to / f"factorize-{__version__}.provenance.json"
    _write(provenance, origin)
    sums = [f"{digest_of(path)}  {path.name}" for path in (*released, provenance)]
    (given.to / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(*sums, sep="\n")
    return 0


def opens_what_was_released() -> bool:
    """Whether all of the golden corpus opens, verifies and proves as it did when it was released."""
    codes = [subprocess.run([*each, "-q", "-n", "0"], cwd=ROOT, stdout=sys.stderr).returncode for each in GOLDEN]
    return not any(codes)


def _build(to: Path, second: int) -> list[Path]:
    return [*distributions.build(to, second=second), check.build(to, second=second)]


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
