"""A release: the same bytes from two builds, materials that name every pin, and a scan that does not pass unasked."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from house import ROOT

from factorize import __version__
from factorize.encoding import sha256
from release import __main__ as release
from release import advisories, check, distributions
from release.bill_of_materials import bill, components
from release.provenance import statement

LOCK = ROOT / "requirements.lock"
SECOND = 1_700_000_000


def test_two_builds_have_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """The second has other modes and other times of its files, and stands elsewhere."""
    copy, again = tmp_path / "checkout", tmp_path / "again"
    for name in (*distributions.tracked(), "release/check.toml", "release/check.md"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
        (copy / name).chmod(0o600)
        os.utime(copy / name, (1, 1))
    run = {"cwd": copy, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "-q"], **run)
    subprocess.run(["git", "add", "-A"], **run)
    again.mkdir()
    distributions.build(again, second=SECOND, root=copy)
    wheels = [check.build(folder, second=SECOND, root=root) for folder, root in ((tmp_path, ROOT), (again, copy))]
    assert sha256(wheels[0].read_bytes()) == sha256(wheels[1].read_bytes())
    wheels[1].unlink()
    found = [{path.name: sha256(path.read_bytes()) for path in folder.iterdir()} for folder in (built, again)]
    assert found[0] == found[1]
    assert sorted(name.rpartition(".")[2] for name in found[0]) == ["gz", "whl"]


def test_the_bill_names_every_pin_with_its_hashes() -> None:
    pins = re.findall(r"^(\S+)==(\S+)", LOCK.read_text(), re.MULTILINE)
    document = bill(LOCK, version="1.2.3", commit="c" * 40, second=SECOND)
    assert [(part["name"], part["version"]) for part in document["components"]] == [
        (re.sub("[-_.]+", "-", name).lower(), version) for name, version in pins
    ]
    hashes = {entry["hashes"][0]["content"] for part in document["components"] for entry in part["externalReferences"]}
    assert hashes == set(re.findall(r"--hash=sha256:([0-9a-f]{64})", LOCK.read_text()))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    references = [part["bom-ref"] for part in document["components"]]
    assert len(set(references)) == len(references) and document["dependencies"][0]["dependsOn"] == references
    assert document == bill(LOCK, version="1.2.3", commit="c" * 40, second=SECOND)


def test_a_pin_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="numpy have no hash"):
        components("numpy==2.0.0\n")
    with pytest.raises(ValueError, match="line 1"):
        components("numpy>=2\n")
    (one,) = components(f"a.B==1 ; python_version < '3.12' \\\n    --hash=sha256:{'0' * 64}\n")
    assert (one["purl"], one["properties"][0]["value"]) == ("pkg:pypi/a-b@1", "python_version < '3.12'")


def test_the_statement_names_files_commit_and_locks(tmp_path: Path) -> None:
    file = tmp_path / "factorize.whl"
    file.write_bytes(b"bytes")
    made: Any = statement([file], commit="c" * 40, second=SECOND, inputs=[LOCK])
    assert made["subject"] == [{"name": "factorize.whl", "digest": {"sha256": sha256(b"bytes")}}]
    definition = made["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": "c" * 40}
    assert definition["resolvedDependencies"][1]["digest"] == {"sha256": sha256(LOCK.read_bytes())}
    assert json.loads(json.dumps(made)) == made


def said(*packages: dict[str, Any], status: int = 0) -> tuple[int, str, str]:
    """How pip-audit ends; it calls packages that were skipped a pass."""
    return status, json.dumps({"dependencies": packages, "fixes": []}), "No known vulnerabilities found"


OK = (0, "", "")
GOOD = said({"name": "a", "version": "1", "vulns": []})
BAD = said({"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}, status=1)
SKIPPED = said({"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"})


@pytest.mark.parametrize(
    ("ends", "status", "words"),
    [
        ([(1, "", "no index\nERROR: no route")], 75, "NOT SCANNED: pip-audit cannot be installed: ERROR: no route"),
        ([OK, (1, "", "ConnectionError"), GOOD, GOOD], 75, "NOT SCANNED: the index of advisories does not answer"),
        ([OK, BAD, GOOD, GOOD], 1, ""),
        ([OK, BAD, SKIPPED, GOOD], 1, ""),
        (
            [OK, GOOD, SKIPPED, GOOD],
            75,
            "NOT SCANNED: 1 of 2 packages of requirements-dev.lock are unknown to the index",
        ),
        ([OK, GOOD, GOOD, GOOD], 0, ""),
    ],
)
def test_a_scan_that_was_not_made_is_none(
    ends: list[Any], status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(ends)

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, *next(answers))

    monkeypatch.setattr(advisories, "_run", run)
    monkeypatch.setattr(advisories.venv, "create", lambda *_, **__: None)
    assert advisories.main() == status
    assert words in capsys.readouterr().err
    assert next(answers, None) is None


def test_a_release_needs_its_addresses_and_the_golden_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "changed", list)
    monkeypatch.setattr(release, "opens_what_was_released", lambda: False)
    place = tmp_path / "place.toml"
    place.write_text((ROOT / "release/place.toml").read_text())
    monkeypatch.setattr(release, "PLACE", place)
    assert release.main(["--to", str(tmp_path)]) == 1
    assert "says no repository and no security; fill it in" in capsys.readouterr().err
    monkeypatch.setattr(release, "CLIENTS", tmp_path / "none")
    assert release.main(["--to", str(tmp_path), "--draft"]) == 1
    assert "need the clients' environment; make release makes it" in capsys.readouterr().err
    monkeypatch.setattr(release, "CLIENTS", place)
    assert release.main(["--to", str(tmp_path), "--draft"]) == 1
    assert "does not open or prove as it did; nothing was built" in capsys.readouterr().err
    place.write_text('repository = "https://example.org"\nsecurity = "a@example.org"\n')
    assert release.main(["--to", str(tmp_path)]) == 1 and "does not open" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.whl"))


def test_the_image_runs_as_nobody_and_holds_no_tools() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    stages = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    last = "\n".join(lines[stages[-1] :])
    assert len(stages) == 2 and re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert all("@sha256:" in lines[number] or "ARG BASE" in "\n".join(lines[:number]) for number in stages)
    assert "pip install" not in last and "COPY --from=build" in last
    assert not stat.S_ISLNK((ROOT / "Dockerfile").lstat().st_mode)


def test_the_recipe_of_conda_installs_what_pip_does() -> None:
    recipe = yaml.safe_load((ROOT / "release/recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated, extras = project["project"], project["project"]["optional-dependencies"]
    asked = [f"python{stated['requires-python']}", *stated["dependencies"], *extras["solve"], *extras["cli"]]
    pinned = sorted(one.replace("matplotlib>", "matplotlib-base>") for one in asked if not one.startswith("factorize["))
    assert sorted(one.replace(" ", "") for one in recipe["requirements"]["run"]) == pinned
    assert {one.replace(" ", "") for one in recipe["requirements"]["host"]} == {
        "pip",
        pinned[pinned.index("python>=3.11")],
        *project["build-system"]["requires"],
    }
    scripts = [f"{name} = {entry}" for name, entry in stated["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["context"]["version"] == __version__
    assert recipe["about"]["license"] == stated["license"] and recipe["about"]["summary"] == stated["description"]
