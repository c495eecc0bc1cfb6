"""`python -m release.advisories`: asks the public advisories about every pinned package, by pip-audit.

Exit status 0: no advisory; 1: there are some; 75: it could not be asked, which is not the same as none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from release.distributions import ROOT

NOT_ASKED = 75  # EX_TEMPFAIL
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-docs.lock")
_REASON = 300
_ORDER = (0, NOT_ASKED, 1)  # an advisory that is known outweighs a package that is not


def main() -> int:
    """Ask about all locks, with pip-audit in an environment of its own."""
    with tempfile.TemporaryDirectory(prefix="factorize-advisories-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        done = _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit>=2.7"])
        if done.returncode:
            return _not_asked("pip-audit cannot be installed", done.stderr)
        return max([_asked(python, lock) for lock in LOCKS], key=_ORDER.index)


def _asked(python: str, lock: str) -> int:
    """Ask about one lock, and say what was found: the exit status that follows from it."""
    command = [python, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    done = _run([*command, "--progress-spinner", "off", "--requirement", str(ROOT / lock)])
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return _not_asked(f"the index of advisories does not answer about {lock}", done.stderr)
    bad = [(package, entry) for package in packages for entry in package.get("vulns", [])]
    for package, entry in bad:
        fixed = ", ".join(entry.get("fix_versions", [])) or "no release"
        print(f"{lock}: {package['name']} {package['version']}: {entry['id']}, mended in {fixed}")
    unknown = [package for package in packages if "vulns" not in package]
    print(f"{lock}: {len(packages) - len(unknown)} packages asked about, {len(bad)} advisories")
    if bad:
        return 1
    if unknown or not packages:  # pip-audit itself calls this a pass
        reason = unknown[0].get("skip_reason", "no reason given") if unknown else "the lock is empty"
        return _not_asked(f"{len(unknown)} of {len(packages)} packages of {lock} are unknown to the index", reason)
    return 0


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)


def _not_asked(what: str, errors: str) -> int:
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "it said nothing")
    print(f"NOT SCANNED: {what}: {last.strip()[:_REASON]}", file=sys.stderr)
    print("Nothing is known about advisories. Run this where a package index can be reached.", file=sys.stderr)
    return NOT_ASKED


if __name__ == "__main__":
    sys.exit(main())
