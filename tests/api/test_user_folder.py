"""Commands run in a folder that has modules of the user's own, under the names that ours have."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from command_line import ROOT, environment

from factorize.api.workers.search_path import search_path
from factorize.api.workers.worker import Worker
from factorize.factors.factor_file import load

SCRIPT = f"""import sys
sys.path.append({str(ROOT)!r})
from factorize.api.cli import main
sys.exit(main())
"""
SHADOWS = ("api", "solvers", "numpy", "factorize", "sitecustomize", "usercustomize", "json", "typer", "runpy")
SPEC = json.dumps({"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "square_root"}})


def shadow(name: str, folder: Path) -> None:
    """Let a module of the user's leave a mark and fail wherever it is imported."""
    module = folder / name / "__init__.py" if name in ("api", "solvers") else folder / f"{name}.py"
    module.parent.mkdir(exist_ok=True)
    mark = folder / "marks"
    module.write_text(f"open({str(mark)!r}, 'a').write('{name}\\n')\nraise ImportError('{name} of the user')\n")


class Folder:
    """A user's folder, and the command as a console script starts it."""

    def __init__(self, home: Path, names: tuple[str, ...] = SHADOWS, python_path: str = "") -> None:
        self.path = home / "project"
        self.path.mkdir()
        self._script = home / "factorize"
        self._script.write_text(SCRIPT)
        self._environment = environment(home) | {"PYTHONPATH": python_path}
        for name in names:
            shadow(name, self.path)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, self._script, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.path, env=self._environment)

    def __call__(self, *arguments: str) -> None:
        with self.start(*arguments) as process:
            out, _ = process.communicate(timeout=600)
        assert process.returncode == 0, out

    def check(self, name: str) -> None:
        """Check that the file holds the true answer, and that nothing of the user's was imported."""
        answer = load(self.path / name)
        row = answer.rows("C", 2, 3)[0]
        assert (row[:3] / row[2]).tolist() == pytest.approx([0.375, 0.5, 1.0]) and answer.verify().residual < 1e-12
        assert not (self.path / "marks").exists(), (self.path / "marks").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_the_shadows_are_real(folder: Folder) -> None:
    assert subprocess.run([sys.executable, "-c", "import numpy"], cwd=folder.path, capture_output=True).returncode
    assert (folder.path / "marks").read_text() == "numpy\n"


def test_a_service_and_its_children_import_nothing_of_the_user(folder: Folder) -> None:
    with folder.start("serve", "--port", "0", "--store", "served", "--output", "json") as service:
        try:
            assert service.stdout is not None
            url = json.loads("".join(iter(service.stdout.readline, "}\n")) + "}")["url"]
            folder("get", SPEC, "--to", "root.safetensors", "--service", url)
        finally:
            service.terminate()
    folder.check("root.safetensors")


LATER = ("numpy", "solvers", "typer", "scipy", "numba", "safetensors")


@pytest.mark.parametrize(("names", "python_path"), [(SHADOWS, ""), (LATER, ".")], ids=["", "in PYTHONPATH"])
def test_solve_and_verify_import_nothing_of_the_user(tmp_path: Path, names: tuple[str, ...], python_path: str) -> None:
    """Nor from a working folder in PYTHONPATH, but for what Python itself imports before it runs a command."""
    folder = Folder(tmp_path, names, python_path)
    folder("solve", SPEC, "--to", "root.safetensors")
    folder("verify", "root.safetensors")
    folder.check("root.safetensors")


def test_a_child_imports_from_where_its_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_here.py").write_text(
        "make_ready = lambda: None\nQUESTIONS = {'where': lambda request, tell: __file__}"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "elsewhere", *sys.path])
    path = search_path()
    assert "" not in path and str(tmp_path) not in path and str(elsewhere) == path[0 if str(ROOT) in path[1:] else 1]
    with closing(Worker("only_here")) as worker:
        assert worker.ask("where", {}) == str(elsewhere / "only_here.py")
