"""The command line, run as users run it: real processes, real files, real signals, a real service."""

from __future__ import annotations

import csv
import errno
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
from checker_files import claim, parts, sealed
from command_line import PROGRAM, ROOT, CommandLine, Run, environment
from safetensors.numpy import load_file
from specs import spec_text

from factorize import __version__, solve
from factorize.api.commands import application
from factorize.api.commands.batch_report import COLUMNS
from factorize.api.terminal.targets import write_whole
from factorize.checker.__main__ import main as factorize_check
from factorize.errors import (
    CertificateError,
    CorruptObject,
    InvalidSpec,
    NotFound,
    ServiceError,
    ServiceUnreachable,
    SolveFailed,
    StoreUnavailable,
    Violation,
)
from factorize.factors.factor_file import load
from factorize.format.files import Files

PAGE = (ROOT / "docs" / "cli.md").read_text()
GROUPS = {
    "jobs": ("list", "show", "cancel", "retry", "watch"),
    "keys": ("create", "list", "show", "revoke"),
    "audit": ("scores", "verify"),
    "spec": ("show", "digest", "explain", "fields"),
}
COMMANDS = sorted(set(re.findall(r"^## ([a-z]+)$", PAGE, re.MULTILINE)) - GROUPS.keys())
HEAVY = {"cvxpy", "scs", "fastapi", "uvicorn", "distributed", "dask", "scipy", "numba", "matplotlib", "sqlalchemy"}


SQUARE_ROOT = {"mechanism": {"kind": "square_root"}}
# Minutes of work in LAPACK: no structure that a fast solver could use.
LONG = json.dumps({"workload": {"kind": "window", "n": 3000, "width": 1400}, "mechanism": {"kind": "dense"}})


@pytest.fixture
def factorize(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A home whose store holds prefix n=8 by dense and square_root, and their files. Tests only read it."""
    command = CommandLine(tmp_path_factory.mktemp("solved"))
    assert command("solve", spec_text(8), "--to", "dense.safetensors").code == 0
    assert command("solve", spec_text(8, **SQUARE_ROOT), "--to", "root.safetensors").code == 0
    return command


# Start


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["calibrate", "--help"], ["batch", "--help"], ["ls", "--help"], ["show", "--help"]],
)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom factorize.api.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('LOADED', *{name.split('.')[0] for name in sys.modules}, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.rsplit("LOADED", 1)[1].split())
    if arguments[0] in ("ls", "show"):  # what looks into the store solves nothing
        assert not loaded & {"factorize.solvers", "factorize.checker.check", "flint"}
    absent = HEAVY if len(arguments) == 2 else HEAVY | {"numpy", "pydantic"}  # those of a command and of its options
    assert "typer" in loaded and not loaded & absent, loaded & absent


def test_help_lists_every_command_that_there_is_and_no_other(factorize: CommandLine) -> None:
    from factorize.api.commands import application

    assert factorize("--version") == Run(0, f"factorize {__version__}\n", "")
    listed = factorize("--help").out
    assert all(f" {name} " in listed for name in (*COMMANDS, *GROUPS))
    assert set(application.COMMANDS) == {*COMMANDS, *GROUPS}
    assert {name: tuple(application.command_of(name).commands) for name in GROUPS} == GROUPS
    for name in application.COMMANDS:
        assert application.line_of(name) == " ".join(application.command_of(name).help.split("\n\n")[0].split())


@pytest.mark.parametrize("arguments", [["solve"], ["solve", "{}", "--nonsense"], ["nonsense"], ["plot", "x"]])
def test_usage_errors(within: CommandLine, arguments: list[str]) -> None:
    assert "--help` lists commands and options" in within(*arguments).error(2)
    done = within(*arguments, "--output", "json")
    assert done.code == 2 and done.json()["error"]["type"] == "usage" and done.err == ""
    bare = within()
    assert bare.code == 2 and "solve" in bare.out, "the help, where no command is given"


# solve


def test_solve_prints_stores_and_writes(factorize: CommandLine) -> None:
    done = factorize("solve", spec_text(6), "--to", "c.safetensors")
    assert done.code == 0 and "converged     yes" in done.out and "solved now" in done.out
    written = load(factorize.home / "c.safetensors")
    written.verify()
    again = factorize("solve", spec_text(6), "--output", "json").json()
    assert again["digest"] == written.digest
    assert again["certificate"] == written.manifest["certificate"]
    assert [p.name for p in factorize.home.iterdir() if "part" in p.name] == []
    assert (factorize.home / ".local/share/factorize/store.json").is_file()


def test_a_known_spec_is_not_solved_again(filled: CommandLine) -> None:
    first = filled("solve", spec_text(8), "--output", "json").json()
    same = '{"tolerance": 1E-9, "objective": {"kind": "mean"}, "workload": {"n": 8, "kind": "prefix"}}'
    assert filled("solve", same, "--output", "json").json() == first and first["origin"]["place"] == "store"
    assert "known before" in filled("solve", spec_text(8, tolerance=1e-3)).out


@pytest.mark.parametrize("way", ["inline", "path", "stdin"])
def test_a_spec_comes_inline_from_a_file_or_from_stdin(filled: CommandLine, way: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(spec_text(8))
    argument = {"inline": f" {spec_text(8)}", "path": str(path), "stdin": "-"}[way]
    done = filled("solve", argument, "--output", "json", stdin=spec_text(8))
    assert done.code == 0 and done.json()["spec"]["workload"] == {"kind": "prefix", "n": 8}


def test_the_store_is_the_option_then_the_variable(factorize: CommandLine) -> None:
    argument = spec_text(4, **SQUARE_ROOT)
    assert factorize("solve", argument, "--store", "a", FACTORIZE_STORE="b").code == 0
    assert (factorize.home / "a" / "store.json").is_file() and not (factorize.home / "b").exists()
    assert factorize("solve", argument, FACTORIZE_STORE=str(factorize.home / "b")).code == 0
    assert (factorize.home / "b" / "store.json").is_file()


def test_matrices_are_written_on_request(factorize: CommandLine) -> None:
    arguments = ("--matrices", "C,C_inv,B", "--to", "all.safetensors", "--output", "json")
    manifest = factorize("solve", spec_text(5), *arguments).json()
    tensors = load_file(factorize.home / "all.safetensors")
    np.testing.assert_allclose(tensors["B"] @ tensors["C"], np.tril(np.ones((5, 5))), atol=1e-14)
    np.testing.assert_allclose(tensors["C_inv"] @ tensors["C"], np.eye(5), atol=1e-14)
    assert list(manifest["matrices"]) == ["B", "C", "C_inv"]
    assert factorize("verify", manifest["digest"]).code == 0
    assert "'D' is not one of C, C_inv, B" in factorize("solve", spec_text(5), "--matrices", "C,D").error(2)


def test_a_matrix_of_ones_own_is_solved_and_verified_from_the_store(factorize: CommandLine) -> None:
    own = json.dumps({"workload": {"kind": "matrix", "rows": [[1.0, 0.0], [0.5, 2.0]]}})
    manifest = factorize("solve", own, "--to", "own.safetensors", "--output", "json").json()
    assert manifest["spec"]["workload"].keys() == {"kind", "sha256", "shape"}
    named = json.dumps({"workload": manifest["spec"]["workload"], "tolerance": 1e-8})
    assert factorize("solve", named).code == 0
    assert factorize("verify", "own.safetensors").code == 0
    assert "whose numbers are not in the file" in factorize("verify", "own.safetensors", "--store", "none").error(2)


SPEC = "prefix --n 12"
JOB = "recommend --examples 6000 --batch-size 60 --epochs 3 --epsilon 2 --delta 1e-5 --memory 2"
REFUSED = [
    ("solve missing.json", "missing.json"),
    ("solve .", "."),
    ("batch missing.jsonl", "missing.jsonl"),
    ("batch FILE --report r.xml", "must end in .csv or .json"),
    ("batch FILE --report no/r.csv", "make it first"),
    ("spec fields colour", "no part of a spec"),
    ("verify", "one thing"),
    ("jobs list", "--service URL or FACTORIZE_SERVICE"),
    ("gc --retention inf", "less than or equal to 36500"),
    ("solve Prefix --n 8", "did you mean 'prefix'"),
    ("solve weight-decay --n 8", "did you mean 'weight_decay'"),
    ("keys create --name t --scopes write", "got 'write'"),
    ("keys create --name t --days 0", "days: Input should be greater than 0"),
    ("keys show 000000000000", "no key 000000000000"),
    ("keys revoke 000000000000", "no key 000000000000"),
    ("calibrate FILE", "0 privacy targets given"),
    ("calibrate FILE --mu 1 --rho 1", "2 privacy targets given"),
    ("calibrate FILE --epsilon 1", "needs a delta"),
    ("calibrate FILE --mu 1 --adjacency add_remove", "is not supported"),
    ("calibrate FILE --mu 1 --spent-mu 1.5", "nothing is left"),
    ("calibrate FILE --mu 1 --batch-size 4", "batch_size=4"),
    ("calibrate FILE --sigma 1 --delta 1e-5 --steps 9", "steps=9 is not an integer from 1 to 8"),
    ("profile FILE --sigma 3 --epsilons one,two", "numbers separated by commas"),
    ("profile FILE --sigma 3 --epsilons 0", "above 0"),
    ("profile FILE --sigma -3", "sigma"),
    ("profile FILE --sigma 3 --sampling shuffle", "gives away"),
    ("profile FILE --sigma 3 --sampling poisson", "dataset_size and batch_size"),
    ("profile FILE --sigma 3 --plot curve.gif", "png"),
    (f"compare {SPEC} --epsilon 1", "epsilon and delta come together"),
    (f"compare {SPEC} --dataset-size 100", "dataset_size and batch_size come together"),
    (f"compare {SPEC} --dataset-size 100 --batch-size 10", "give epsilon"),
    (f"compare {SPEC} --epsilon 1 --delta 1e-6 --sampling poisson", "dataset_size"),
    (f"compare {SPEC} --memory -1", "memory: Input should be greater than or equal to 0"),
    (f"compare {SPEC} --epsilon 1 --delta 1e-6 --sampling shuffle", "gives away"),
    (f"compare {SPEC} --plot x.txt", ".png"),
    ("recommend --examples many", "examples: Input should be a valid integer; got 'many'"),
    (f"{JOB} --parameters 0", "parameters: Input should be greater than or equal to 1"),
    ("recommend --memory a", "memory: Input should be a valid integer; got 'a'"),
    ("recommend prefix --n 8", "leave out n"),
    ("recommend prefix --mechanism dense", "leave out mechanism, which the job or the recommendation decides"),
    ("recommend --code rust", "code='rust' is not one of torch, jax, numpy, federated, none"),
    ("recommend --examples 10", "no terminal can ask for it; give --batch-size, --epsilon, --delta as options"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_what_does_not_fit_is_refused(filled: CommandLine, within: CommandLine, line: str, words: str) -> None:
    assert words in within(*line.replace("FILE", str(filled.home / "dense.safetensors")).split()).error(2)


BAD_SPECS = {
    "": "",
    "{": "not JSON",
    "{}": "/workload",
    '{"workload":{"kind":"prefix","n":4},"workload":{"kind":"prefix","n":4}}': "given twice",
    "{" * 100_000: "nested deeper than 16",
    '{"workload":{"kind":"prefix","n":4},"mechanism":{"kind":"tree","decoder":"online","restart_every":9}}': "exceeds n=4",
}


@pytest.mark.parametrize("text", BAD_SPECS, ids=lambda text: text[:40])
def test_bad_specs_are_refused_with_a_sentence(within: CommandLine, text: str) -> None:
    assert BAD_SPECS[text] in within("solve", "-", stdin=text).error(2)


def test_every_violation_has_its_line_and_its_pointer(factorize: CommandLine) -> None:
    bad = '{"workload":{"kind":"prefix","n":0,"m":1},"tolerance":2}'
    lines = factorize("solve", bad).error(2).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["/workload/n", "/workload/m", "/tolerance"]
    done = factorize("solve", bad, "--output", "json")
    error = done.json()["error"]
    assert (done.code, done.err, error["type"]) == (2, "", "invalid-spec")
    assert [entry["pointer"] for entry in error["errors"]] == ["/workload/n", "/workload/m", "/tolerance"]


def test_what_cannot_be_opened_or_held_is_usage(factorize: CommandLine) -> None:
    huge = spec_text(10_000_000, mechanism={"kind": "dense"})
    assert re.search("10000000.* GiB", factorize("solve", huge).error(2))
    (factorize.home / "file").write_text("no folder")
    for order in (("solve", spec_text(4)), ("ls",)):
        said = factorize(*order, "--store", "file").error(2)
        assert "cannot be opened" in said and "a file is in the way; name a folder" in said
    assert "there is no store" in factorize("verify", "0" * 64, "--store", "missing").error(2)
    assert not (factorize.home / "missing").exists()


def test_a_target_that_cannot_be_written_is_refused_before_the_work(within: CommandLine, tmp_path: Path) -> None:
    spec = spec_text("prefix", n=8, mechanism="identity")
    for order in (["solve", spec, "--to"], ["compare", spec, "--plot"]):
        said = within(*order, tmp_path / "missing" / "x.png").error(2)
        assert "there is no folder" in said and str(tmp_path / "missing") in said
    for target in (tmp_path, "-", "/dev/stdout", "/dev/fd/1", "/dev/null"):
        assert "name the file to write" in within("solve", spec, "--to", target).error(2)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "order",
    [["solve", spec_text(8), "--output", "json"], ["--help"], ["solve", "--help"], ["keys", "-h"], ["--version"]],
)
def test_a_closed_pipe_ends_quietly(filled: CommandLine, order: list[str]) -> None:
    with filled.start(*order) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_an_end_that_is_not_of_a_pipe_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a completion script that was shown, and of a server that could not start."""
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))  # not that of make, which is sh
    with pytest.raises(SystemExit) as end:
        application.run(["--show-completion", "bash"])
    assert end.value.code == 0 and "_factorize_completion" in capsys.readouterr().out
    monkeypatch.setattr(application, "app", lambda **_given: sys.exit(3))
    with pytest.raises(SystemExit) as end:
        application.run(["serve"])
    assert end.value.code == 3


def test_a_home_folder_that_the_shell_leaves_is_found(filled: CommandLine, within: CommandLine, tmp_path: Path) -> None:
    """`--to=~/file`; `within` has its home in `tmp_path`."""
    (tmp_path / "specs.jsonl").write_text(spec_text(8))
    os.link(filled.home / "dense.safetensors", tmp_path / "f.safetensors")
    for order in ("show ~/f.safetensors", "batch ~/specs.jsonl --dry-run", "keys create --name t --to=~/t.key"):
        assert within(*order.split()).code == 0, order
    assert (tmp_path / "t.key").exists()


DOORS = ["show", "verify", "calibrate --mu 1", "profile --sigma 2", "plot --to x.png"]


@pytest.mark.parametrize("order", DOORS)
def test_factors_are_no_pipe(filled: CommandLine, within: CommandLine, tmp_path: Path, order: str) -> None:
    """A FIFO that nobody writes to would block for ever."""
    os.mkfifo(tmp_path / "fifo")
    command, *options = order.split()
    assert "save it as a file" in within(command, tmp_path / "fifo", *options).error(2)


@pytest.mark.parametrize(
    "order", ["audit scores ZERO --epsilon 1", "batch ZERO.toml", "verify --strategy ZERO --participation single"]
)
def test_a_device_without_end_is_not_read_to_its_end(within: CommandLine, tmp_path: Path, order: str) -> None:
    os.symlink("/dev/zero", tmp_path / "ZERO")
    os.symlink("/dev/zero", tmp_path / "ZERO.toml")
    assert "is a pipe or a device that gives more than 268435456 bytes; save it" in within(*order.split()).error(2)


def test_a_spec_may_come_through_a_pipe(within: CommandLine) -> None:
    reading, writing = os.pipe()
    os.write(writing, spec_text(8).encode())
    os.close(writing)
    assert within("spec", "digest", f"/dev/fd/{reading}").code == 0
    os.close(reading)


# verify, calibrate, plot


@pytest.mark.always
def test_verify_says_what_was_checked_and_what_was_not(filled: CommandLine) -> None:
    done = filled("verify", "dense.safetensors")
    assert done.code == 0 and done.err == ""
    checked = [line for line in done.out.splitlines() if line.startswith("checked")]
    left = [line for line in done.out.splitlines() if line.startswith("not checked")]
    assert any("no strategy matrix has an objective below" in line for line in checked)
    assert any("provenance is recorded" in line for line in left)
    assert "attained by   steps" in done.out and "every loss enclosed" in done.out
    document = filled("verify", "dense.safetensors", "--output", "json").json()
    assert document["verified"] is True and document["failed"] == []
    assert document["certificate"]["relative_gap"] < 1e-9
    assert document["certificate"]["sensitivity"]["value"] >= document["sensitivity"]["upper"]


@pytest.mark.parametrize(
    ("order", "named"),
    [
        ("ls --store a --store=b", "--store"),
        ("solve prefix --n 4 --n 5", "--n"),
        ("solve prefix --n 4 --output json --output text", "--output"),
        ("calibrate f.safetensors --epsilon 1 --delta 1e-5 --epsilon 2", "--epsilon"),
        ("spec digest prefix --store a --store b", "--store"),
        ("keys create --name a --name b", "--name"),
    ],
)
def test_an_option_given_twice_is_refused(within: CommandLine, order: str, named: str) -> None:
    done = within(*order.split())
    assert done.code == 2 and f"{named} is given more than once; give it once" in done.out + done.err


def test_a_file_that_changes_while_it_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("factorize.api.commands.verify")
    one, other = (tmp_path / f"{n}.safetensors" for n in (2, 3))
    for n, path in ((2, one), (3, other)):
        solve("prefix", n=n, mechanism="identity", to=path)

    def open_late(target: str, store: str | None) -> Any:
        os.replace(other, one)
        return load(target)

    monkeypatch.setattr(module, "open_target", open_late)
    with pytest.raises(CorruptObject, match="was changed while it was read"):
        module.verify(str(one))


def test_verify_ends_with_its_own_code_where_a_claim_was_not_looked_at(
    filled: CommandLine, within: CommandLine, tmp_path: Path
) -> None:
    """6, after the report: no rule tells the frequency-domain optimum. A tuned nu, the best as its solver says, has 0."""
    path = tmp_path / "tuned.safetensors"
    tuned = spec_text(8, mechanism={"kind": "nu_toeplitz", "nu": "tune"})
    assert within("solve", tuned, "--to", path).code == 0
    assert within("verify", path).code == 0
    spectral = {"kind": "spectral", "learning_rate": 0.1, "eigenvalues": [1.0, 0.5]}
    path = tmp_path / "spectral.safetensors"
    assert within("solve", spec_text(8, mechanism=spectral, tolerance=1e-3), "--to", path).code == 0
    done = within("verify", path)
    assert done.code == 6 and done.out.startswith("NOT ALL SEEN")
    assert [line for line in done.out.splitlines() if line.startswith("NOT LOOKED AT spec.mechanism: ")]
    document = within("verify", path, "--output", "json").json()
    assert document["verified"] is True and document["complete"] is False
    status = {one["claim"]: one["status"] for one in document["claims"]}
    assert status.pop("spec.mechanism") == "not_looked_at" and set(status.values()) == {"proved"}
    sure = within("verify", filled.home / "dense.safetensors", "--output", "json").json()
    assert sure["complete"] is True and {one["status"] for one in sure["claims"]} == {"proved"}


def test_verify_takes_a_strangers_strategy(within: CommandLine, tmp_path: Path) -> None:
    array = np.tril(np.ones((8, 8)))
    path = tmp_path / "C.npy"
    np.save(path, array / np.linalg.norm(array, axis=0).max())
    verify = partial(within, "verify", "--strategy", path, "--participation")
    twice = '{"kind": "min_sep", "min_sep": 4}'
    low = verify(twice)
    assert low.code == 4 and "8 bands, more than min_sep=4" in low.out and "steps +0 +4" in low.out
    high = verify(twice, "--claim", "2", "--output", "json")
    assert high.code == 0 and high.json()["sensitivity"]["kind"] == "exact"
    assert verify("single", "--claim", "1.000001").code == 0
    whole = json.dumps({"workload": {"kind": "prefix", "n": 8}, "participation": {"kind": "fixed_epochs", "epochs": 2}})
    assert verify(whole, "--claim", "2").code == 0


def test_verify_strategy_refuses_what_it_cannot_read(within: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "C.npy"
    np.save(path, np.triu(np.ones((3, 3))))
    verify = partial(within, "verify", "--strategy", path, "--participation")
    assert "transposed" in verify("single").error(4)
    assert "--participation" in within("verify", "--strategy", path).error(2)
    assert "one thing" in within("verify", path, "--strategy", path).error(2)
    assert "epochs" in verify('{"kind": "fixed_epochs", "epochs": 2}').error(2)
    assert "n=4" in verify('{"workload": {"kind": "prefix", "n": 4}}').error(2)
    for number in ("nan", "inf", "0", "-1"):
        assert "give the sensitivity that you expect" in verify("single", "--claim", number).error(2)
    path.write_bytes(b"\x93NUMPY")
    verify("single").error(4)


@pytest.mark.parametrize("command", ["verify", "calibrate", "plot"])
def test_damaged_files_are_verification_failures(
    filled: CommandLine, within: CommandLine, tmp_path: Path, command: str
) -> None:
    path, data = tmp_path / "damaged.safetensors", bytearray((filled.home / "dense.safetensors").read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    more = {"verify": [], "calibrate": ["--mu", "1"], "plot": ["--to", str(tmp_path / "p.png")]}[command]
    within(command, path, *more).error(4)
    assert within(command, path, *more, "--output", "json").json()["error"]["type"] == "corrupt-object"
    assert not (tmp_path / "p.png").exists()


def test_a_forged_certificate_is_found(filled: CommandLine, within: CommandLine, tmp_path: Path) -> None:
    """Every digest fits again, as somebody who wants to cheat would make it."""
    path = tmp_path / "forged.safetensors"
    manifest, tensors = parts(load(filled.home / "root.safetensors"))
    claim(manifest, manifest["certificate"]["sensitivity"]["value"] * (1 - 1e-7))
    path.write_bytes(sealed(manifest, tensors))
    found = within("verify", path)
    assert found.code == 4 and "NOT SUPPORTED" in found.out
    document = within("verify", path, "--output", "json")
    assert document.code == 4 and document.json()["verified"] is False
    assert "understated" in found.out
    for line in (("calibrate", path, "--mu", "1"), ("show", path)):
        assert "Noise scaled to it would be too small" in within(*line).error(4)


def test_calibrate_answers_the_contract(filled: CommandLine) -> None:
    options = ("--epsilon", "1", "--delta", "1e-5", "--clip-norm", "2", "--divisor", "4", "--output", "json")
    answer = filled("calibrate", "dense.safetensors", *options, "--adjacency", "replace_one").json()
    names = "noise_multiplier sigma_of_sums sensitivity clip_norm adjacency epsilon delta rho mu"
    assert set(names.split()) <= answer.keys()
    assert answer["noise_multiplier"] == pytest.approx(3.730632, rel=1e-6)  # docs/privacy.md, by Balle and Wang 2018
    assert answer["sigma_of_sums"] == pytest.approx(3.730632 * 2 * 2 * answer["sensitivity"], rel=1e-6)
    assert answer["sigma_of_means"] == answer["sigma_of_sums"] / 4
    text = filled("calibrate", "dense.safetensors", "--rho", "0.5", "--adjacency", "REPLACE_SPECIAL").out
    assert "noise_multiplier  1.0" in text and "adjacency         zero_out" in text
    assert "attack advantage  0.382925" in text and "the guarantee is exact" in text  # 2 Phi(1 / 2) - 1


def test_plot_writes_a_picture(filled: CommandLine, tmp_path: Path) -> None:
    done = filled("plot", "dense.safetensors", "--to", tmp_path / "p.PNG")
    assert done.code == 0 and (tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["p.PNG"]
    assert ".png, .pdf, .svg" in filled("plot", "dense.safetensors", "--to", "p.txt").error(2)


# get, serve


def test_get_copies_from_the_store(filled: CommandLine, tmp_path: Path) -> None:
    target = tmp_path / "copy.safetensors"
    manifest = filled("get", spec_text(8), "--to", target, "--output", "json").json()
    assert target.read_bytes() == (filled.home / "dense.safetensors").read_bytes()
    assert filled("get", manifest["digest"], "--to", target).code == 0
    assert "`factorize solve` first" in filled("get", spec_text(9), "--to", target).error(2)
    assert "solve its spec first" in filled("get", "0" * 64, "--to", target).error(2)


def test_get_from_nowhere_is_unreachable(factorize: CommandLine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert "cannot be reached" in factorize("get", spec_text(4), "--to", "c.safetensors", "--service", url).error(5)
        assert "cannot be reached" in factorize("solve", spec_text(4), "--service", url).error(5)
        for named in ("http://a..b", f"http://{'a' * 64}.invalid", f"{url}/\u00fc"):
            assert "cannot be reached" in factorize("jobs", "list", "--service", named).error(5)
    assert not list(factorize.home.iterdir())


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_key_stands_in_what_a_service_prints(factorize: CommandLine, form: str) -> None:
    """What it prints goes to logs, which others read."""
    arguments = ("serve", "--port", "0", "--output", form, "--log-format", form)
    (factorize.home / "factorize.toml").write_text("require_keys = true")
    with factorize.start(*arguments) as service:
        assert service.stdout is not None
        first = "".join(iter(service.stdout.readline, "}\n")) if form == "json" else service.stdout.readline()
        service.send_signal(signal.SIGINT)
        out, err = service.communicate(timeout=600)
    assert "fk_" not in first + out + err and "factorize keys create --name admin" in err


ASKS_A_SERVICE = {
    "solve": [spec_text(4)],
    "get": [spec_text(4), "--to", "c.safetensors"],
    "batch": ["specs.jsonl"],
    "compare": [spec_text(4)],
    "recommend": "--examples 1000 --batch-size 10 --epochs 1 --epsilon 2 --delta 1e-6 --memory 4".split(),
    "calibrate": ["0" * 64, "--rho", "1"],
    "plot": ["0" * 64, "--to", "c.png"],
    "jobs": ["list"],
}


@pytest.mark.parametrize("command", ASKS_A_SERVICE)
def test_whoever_asks_a_service_names_no_store(factorize: CommandLine, command: str) -> None:
    """A service has a store of its own; the option would be ignored."""
    (factorize.home / "specs.jsonl").write_text(spec_text(4))
    arguments = [command, *ASKS_A_SERVICE[command], "--store", "elsewhere"]
    assert "leave --" in (refusal := factorize(*arguments, "--service", NOWHERE).error(2)) and NOWHERE in refusal
    assert factorize(*arguments, FACTORIZE_SERVICE=NOWHERE).error(2) == refusal


def test_serve_and_get_through_it(factorize: CommandLine) -> None:
    with factorize.start("serve", "--port", "0", "--store", "served", "--output", "json") as service:
        try:
            assert service.stdout is not None
            url = json.loads("".join(iter(service.stdout.readline, "}\n")) + "}")["url"]
            own = ("--service", url, "--output", "json")
            manifest = factorize("get", spec_text(7), "--to", "c.safetensors", *own).json()
            assert load(factorize.home / "c.safetensors").digest == manifest["digest"]
            assert factorize("get", manifest["digest"], "--to", "c2.safetensors", FACTORIZE_SERVICE=url).code == 0
            solved = factorize("solve", spec_text(6), "--to", "c3.safetensors", *own).json()
            assert load(factorize.home / "c3.safetensors").digest == solved["digest"]
            assert "service       " + url in factorize("solve", spec_text(6), FACTORIZE_SERVICE=url).out
            for option, value in (("--store", "other"), ("--matrices", "C,B")):
                assert option in factorize("solve", spec_text(6), "--service", url, option, value).error(2)
            assert "/workload/n: " in factorize("get", spec_text(0), "--to", "x", "--service", url).error(2)
            factorize("get", "0" * 64, "--to", "x", "--service", url).error(2)
        finally:
            service.send_signal(signal.SIGINT)
        assert service.wait(600) == 130
    assert factorize("verify", manifest["digest"], "--store", "served").code == 0


def test_a_second_ctrl_c_ends_a_service_without_a_traceback(factorize: CommandLine) -> None:
    with factorize.start("serve", "--port", "0", "--store", "served") as service:
        assert service.stdout is not None
        url = service.stdout.readline().split()[1]
        with urlopen(f"{url}/healthz") as answer:  # it has started
            assert answer.status == 200
        for _ in range(2):
            service.send_signal(signal.SIGINT)
            time.sleep(0.03)
        _, err = service.communicate(timeout=600)
    assert service.returncode == 130 and "Traceback" not in err


def test_a_ctrl_c_while_the_interpreter_ends_shows_no_traceback() -> None:
    late = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    command = [sys.executable, "-c", f"{late}; from factorize.api.cli import main; main(['--version'])"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_serve_on_a_port_in_use_is_usage(factorize: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in factorize("serve", "--port", port, "--store", "served").error(2)


# batch


def grid(folder: Path) -> Path:
    path = folder / "grid.toml"
    path.write_text(
        '[spec]\nworkload = {kind = "prefix"}\nmechanism = {kind = "square_root"}\n'
        "[grid]\nn = [2, 3, 4]\n[[exclude]]\nn = 3\n"
    )
    return path


def test_batch_shows_the_expansion_first_and_solves_nothing_on_a_dry_run(factorize: CommandLine) -> None:
    document = factorize("batch", grid(factorize.home), "--dry-run", "--output", "json", "--store", "empty")
    assert not (factorize.home / "empty").exists()
    assert [item["state"] for item in document.json()["items"]] == ["to_solve", "to_solve"]
    assert document.json()["estimate"]["seconds"] > 0 and "estimate: " in document.err
    factorize("solve", spec_text(4, **SQUARE_ROOT))
    done = factorize("batch", grid(factorize.home), "--dry-run", "--output", "json")
    assert [item["state"] for item in done.json()["items"]] == ["to_solve", "cached"]
    assert all(len(item["spec_digest"]) == 64 for item in done.json()["items"])
    assert "2 specs: 1 cached, 1 to solve" in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_costs_its_words_alone(filled: CommandLine, closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *PROGRAM, "verify", str(filled.home / "dense.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(filled.home))
    assert (done.returncode, done.stderr) == (0, "") and ("proved" in done.stdout) == (">&-" not in closed)


def test_a_name_that_is_no_text_is_shown(filled: CommandLine, tmp_path: Path) -> None:
    """The file system takes it, and the result is in it by then."""
    name = tmp_path / os.fsdecode(b"caf\xe9")
    command = [*PROGRAM, "get", spec_text(8), "--to", name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(filled.home))
    assert done.returncode == 0 and "caf\\udce9 (from the store" in done.stdout and name.exists()


@pytest.mark.parametrize(
    ("order", "code", "words"),
    [
        ("solve SPEC --output json 2>full", 0, '"digest"'),
        ("verify dense.safetensors --output json >full", 3, "cannot be written to standard output: File too large"),
        ("verify nowhere --output json >full", 3, "cannot be written to standard output"),
        ("verify nowhere --output json 2>full", 2, '"error"'),
    ],
)
def test_a_full_disk_behind_a_stream_is_said_on_the_other(
    filled: CommandLine, tmp_path: Path, order: str, code: int, words: str
) -> None:
    """A limit on the size of files stands for the disk; remarks on stderr are never worth a result."""
    order = order.replace("SPEC", f"'{spec_text(8)}'").replace("full", str(tmp_path / "full"))
    command = ["sh", "-c", f'cd "$0" && ulimit -f 0 && "$@" {order}', str(filled.home), *PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(filled.home))
    assert done.returncode == code and words in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_working_folder_that_is_gone_is_said(filled: CommandLine, tmp_path: Path) -> None:
    gone = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    for target, code, words in (("x", 2, "folder has been removed; change to another"), (tmp_path / "x", 0, "")):
        command = ["sh", "-c", gone, tmp_path / "gone", *PROGRAM, "solve", spec_text(8), "--to", target]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(filled.home))
        assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr


def test_a_notebook_names_a_backend_that_is_not_installed(filled: CommandLine) -> None:
    settings = environment(filled.home) | {"MPLBACKEND": "module://of_a_notebook.backend_inline"}
    command = [*PROGRAM, "plot", "dense.safetensors", "--to", "picture.png"]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=filled.home)
    assert done.returncode == 0 and (filled.home / "picture.png").exists(), done.stderr


@pytest.mark.parametrize("settings", [{"NUMBA_DISABLE_JIT": "1"}, {"PYTHONWARNINGS": "error"}])
def test_settings_of_developers_change_nothing(factorize: CommandLine, settings: dict[str, str]) -> None:
    command = [*PROGRAM, "solve", "prefix", "--n", "12", "--epochs", "3", "--mechanism", "banded", "--bands", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(factorize.home) | settings)
    assert done.returncode == 0 and "class bound" in done.stdout and "Traceback" not in done.stderr


def test_help_in_a_terminal_of_unknown_width(factorize: CommandLine) -> None:
    settings = environment(factorize.home) | {"COLUMNS": "0"}
    done = subprocess.run([*PROGRAM, "solve", "--help"], capture_output=True, text=True, env=settings)
    assert done.returncode == 0 and "--matrices" in done.stdout


def test_the_end_of_a_file_is_no_interruption(factorize: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(_text: str) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr("factorize.api.commands.solve.read_spec", cut_off)
    with pytest.raises(EOFError, match="Ran out of input"):
        factorize("estimate", spec_text(4))


def test_no_cache_and_no_kernels_can_be_kept(factorize: CommandLine) -> None:
    """As an account without a home has it: a worker's warning is told once, by the command."""
    (factorize.home / "plain").write_text("")
    folders = {name: str(factorize.home / "plain") for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "FACTORIZE_CACHE")}
    command = [*PROGRAM, "solve", "prefix", "--n", "12", "--epochs", "3", "--mechanism", "banded", "--bands", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(factorize.home) | folders)
    assert done.returncode == 0 and "class bound" in done.stdout
    assert done.stderr.count("warning: ") == 1 and f"in {folders['NUMBA_CACHE_DIR']} (" in done.stderr


def test_an_answer_needs_no_store_that_nobody_named(factorize: CommandLine) -> None:
    (factorize.home / ".local").write_text("no folder")
    done = factorize("solve", spec_text(4, **SQUARE_ROOT), "--to", factorize.home / "c.safetensors")
    assert done.err.count("warning: ") == 1 and "--store or FACTORIZE_STORE" in done.err and "none (solved" in done.out
    assert "converged" in factorize("verify", factorize.home / "c.safetensors").out
    assert "cannot be opened" in factorize("batch", "-").error(2)  # whose results are the point


def test_a_store_that_takes_no_files_is_said_before_the_work(
    factorize: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has is still answered; where nobody named it, a warning is all."""
    known, new, grid = spec_text(8, **SQUARE_ROOT), spec_text(9, **SQUARE_ROOT), tmp_path / "specs.jsonl"
    assert factorize("solve", known).code == 0
    grid.write_text(new)
    own, create = tmp_path / ".local/share/factorize", Files.create

    def refuse(files: Files, path: Path) -> int:
        if path.is_relative_to(own):
            raise OSError(errno.EROFS, "Read-only file system")
        return create(files, path)

    monkeypatch.setattr(Files, "create", refuse)
    assert "known before" in factorize("solve", known).out
    done = factorize("solve", new)
    assert done.code == 0 and done.err.count("warning: ") == 1 and "Read-only" in done.err
    for place in ("solvers.search", "api.commands.recommend.advise", "api.commands.batch._run"):
        monkeypatch.setattr(f"factorize.{place}", Mock(side_effect=AssertionError("the work has begun")))
    for command, code in ((["solve", new], 2), (JOB.split(), 2), (["batch", grid], 3)):
        done = factorize(*command, "--store", own)
        assert done.code == code and "Read-only" in done.err
    with pytest.raises(StoreUnavailable, match="Read-only"):
        solve(json.loads(new), store=own)


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space.*'.*whole'"), write_whole(tmp_path / "whole"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_an_estimate_solves_nothing_and_knows_what_is_stored(factorize: CommandLine) -> None:
    first = factorize("estimate", spec_text(4, **SQUARE_ROOT), "--output", "json").json()
    assert not (factorize.home / ".local").exists()
    assert not first["known"] and first["estimate"]["seconds"] > 0
    factorize("solve", spec_text(4, **SQUARE_ROOT))
    again = factorize("estimate", spec_text(4, **SQUARE_ROOT))
    assert "not solved again" in again.out and "idle cores" in again.out


def test_batch_reports_bad_lines_and_failures_and_does_the_rest(factorize: CommandLine) -> None:
    singular = {"workload": {"kind": "matrix", "sha256": "0" * 64, "shape": [2, 2]}, "mechanism": {"kind": "dense"}}
    lines = [
        spec_text(2, **SQUARE_ROOT),
        "oops",
        spec_text(3, **SQUARE_ROOT),
        spec_text(2, **SQUARE_ROOT),
        json.dumps(singular),
        spec_text(0),
    ]
    (factorize.home / "specs.jsonl").write_text("\n".join(lines))
    done = factorize("batch", "specs.jsonl", "--output", "json", "--report", "report.json", "--report", "report.csv")
    assert done.code == 3
    items = done.json()["items"]
    documents = json.loads((factorize.home / "report.json").read_text())
    assert [{name: document[name] for name in items[0]} for document in documents] == items
    with (factorize.home / "report.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert table[0].keys() == COLUMNS.keys() and table[0]["objective"] == '{"kind": "mean"}'
    assert float(table[0]["sensitivity"]) == documents[0]["certificate"]["sensitivity"]["value"]
    assert [row["error"] != "" for row in table] == [False, True, False, False, True, True]
    assert table[5]["error"].startswith("/workload/n: ")
    assert [item["state"] for item in items] == ["solved", "bad", "solved", "duplicate", "failed", "bad"]
    assert items[1]["error"]["type"] == "malformed-json" and items[4]["error"]["type"] == "not-found"
    assert items[5]["error"]["errors"][0]["pointer"] == "/workload/n"
    assert factorize("verify", items[0]["digest"]).code == 0
    again = factorize("batch", "specs.jsonl", "--output", "json").json()["items"]
    assert [item["state"] for item in again] == ["cached", "bad", "cached", "duplicate", "failed", "bad"]
    assert [item["origin"] and item["origin"]["place"] for item in again] == [
        "store",
        None,
        "store",
        "store",
        None,
        None,
    ]
    text = factorize("batch", "specs.jsonl")
    assert text.code == 3 and "line 2\n            not JSON" in text.out and "Traceback" not in text.err


def read_until(process: subprocess.Popen[str], words: str, seconds: float = 600) -> None:
    assert process.stderr is not None
    end = time.monotonic() + seconds
    while words not in (line := process.stderr.readline()):
        assert line and time.monotonic() < end, f"no {words!r} on stderr"


def test_ctrl_c_leaves_what_is_finished(factorize: CommandLine) -> None:
    (factorize.home / "specs.jsonl").write_text(
        "\n".join([spec_text(2, **SQUARE_ROOT), LONG, spec_text(3, **SQUARE_ROOT)])
    )
    with factorize.start("batch", "specs.jsonl") as process:
        read_until(process, "[1/3] solved")
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in rest and "interrupted" in rest
    items = factorize("batch", "specs.jsonl", "--dry-run", "--output", "json").json()["items"]
    states = [item["state"] for item in items]
    assert "cached" in states and states[1] == "to_solve"  # two at a time: either small spec may be the first
    assert factorize("fsck").code == 0


def test_a_batch_that_was_killed_goes_on_where_it_was(factorize: CommandLine) -> None:
    (factorize.home / "specs.jsonl").write_text("\n".join([spec_text(n, **SQUARE_ROOT) for n in (2, 3)] + [LONG]))
    with factorize.start("batch", "specs.jsonl") as process:
        read_until(process, "[2/3] solved")
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=600)
    _, alive = psutil.wait_procs(workers, timeout=600)
    assert not alive, "workers end with whoever asked"
    assert factorize("fsck").code == 0
    items = factorize("batch", "specs.jsonl", "--dry-run", "--output", "json").json()["items"]
    assert [item["state"] for item in items] == ["cached", "cached", "to_solve"]


def test_ctrl_c_in_solve_stores_nothing(factorize: CommandLine) -> None:
    factorize("solve", spec_text(2, **SQUARE_ROOT))
    with factorize.start("solve", LONG) as process:
        while psutil.Process(process.pid).memory_info().rss < 250 << 20:  # it holds the problem, and solves
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    report = factorize("fsck", "--output", "json").json()
    assert report["clean"] and not [f for f in report["findings"] if f["kind"].startswith("orphan")]


@pytest.mark.parametrize(("cause", "code"), [("KeyboardInterrupt", 130), ("LookupError", 1)])
def test_ctrl_c_while_a_class_is_made_is_no_fault(cause: str, code: int) -> None:
    """Python 3.11 turns what `__set_name__` raises into a RuntimeError."""
    program = f"""
from factorize.api import cli
class Hurried:
    def __set_name__(self, owner, name):
        raise {cause}
cli._commands = lambda: type("Owner", (), {{"field": Hurried()}})
cli.main([])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code and ("Traceback" in done.stderr) == (code == 1)


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupt_that_numerical_code_swallows_still_ends_the_process(signals: int) -> None:
    code = (
        "import signal, time\nfrom factorize.api.terminal.progress import prompt_interrupt\n"
        "signal.signal(signal.SIGINT, lambda *_: print('swallowed', flush=True))\n"
        f"with prompt_interrupt(grace_seconds={0.2 if signals == 1 else 3600}):\n"
        "    print('ready', flush=True)\n"
        "    while True:\n        time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            # the second ends the process at once, perhaps in the middle of its line
            assert signals == 1 or "swallowed\n".startswith(process.stdout.readline())
        assert process.wait(600) == 130


# fsck, terminal


def test_fsck_finds_and_repairs(factorize: CommandLine) -> None:
    manifest = factorize("solve", spec_text(4, **SQUARE_ROOT), "--output", "json").json()
    assert factorize("fsck").code == 0
    (blob,) = (factorize.home / ".local/share/factorize/blobs").rglob(manifest["files"][0]["sha256"])
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1])
    done = factorize("fsck")
    assert done.code == 4 and "damaged" in done.out
    factorize("verify", manifest["digest"]).error(4)
    assert factorize("fsck", "--repair", "--output", "json").json()["clean"]
    assert factorize("fsck").code == 0
    assert "solved now" in factorize("solve", spec_text(4, **SQUARE_ROOT)).out
    assert factorize("verify", manifest["digest"]).code == 0


def test_progress_is_drawn_in_a_terminal(factorize: CommandLine) -> None:
    (factorize.home / "specs.jsonl").write_text("\n".join(spec_text(n) for n in (2, 3)))
    leader, follower = pty.openpty()
    arguments = [*PROGRAM, "batch", "specs.jsonl"]
    variables = environment(factorize.home) | {"TERM": "xterm"}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=follower, cwd=factorize.home, env=variables, text=True
    ) as process:
        os.close(follower)
        shown = _read_terminal(leader)
        assert process.stdout is not None
        out = process.stdout.read()
    assert process.returncode == 0
    assert "all specs" in shown and "2 of 2" in shown and "\x1b[" in shown
    assert "solved  line 1" in shown and "solved  line 2" in shown
    assert "\x1b[" not in out and "2 solved" in out


def _read_terminal(leader: int) -> str:
    shown = b""
    while select.select([leader], [], [], 600)[0]:
        try:
            data = os.read(leader, 65536)
        except OSError:  # Linux: the other end has closed
            break
        if not data:
            break
        shown += data
    os.close(leader)
    return shown.decode()


# Exit codes


@pytest.mark.parametrize("name", ["x\nverified", "x\x1b[1mverified", "x\u202everified"])
def test_no_name_of_a_file_adds_a_line_to_an_error(
    within: CommandLine, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("verify", name), ("receipt", "--statement", name)):
        (line,) = within(*arguments).error(2).splitlines()
        assert line.isprintable() and line.startswith("error: x")
    assert factorize_check([name, "f"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and line.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSpec([Violation("/n", "too small")]), 2),
        (NotFound("none"), 2),
        (FileNotFoundError(2, "No such file", "x"), 2),
        (OSError(28, "No space left on device", "x"), 3),
        (SolveFailed("stopped"), 3),
        (CertificateError("a lie"), 3),
        (StoreUnavailable("full"), 3),
        (CorruptObject("damaged"), 4),
        (ServiceError("refused", status=422), 2),
        (ServiceError("later", status=503), 5),
        (ServiceError("bytes", status=503, problem={"type": "/problems/corrupt-object"}), 4),
        (ServiceError("bug", status=500), 3),
        (ServiceUnreachable("nobody"), 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    from factorize.api.terminal.output import error_document, error_lines, exit_code

    assert exit_code(error) == code
    assert error_document(error)["detail"] and error_lines(error)


# The page


def test_every_command_and_option_is_documented() -> None:
    from factorize.api.commands.application import command_of

    for name in (*COMMANDS, *GROUPS):
        section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0] + PAGE.split("\n## ")[0]
        command = command_of(name)
        for each in getattr(command, "commands", {"": command}).values():
            flags = {flag for parameter in each.params for flag in parameter.opts if flag.startswith("--")} - {"--help"}
            assert all(flag in section for flag in flags), f"{name} {flags}"
            assert {"--output", "--store"} <= flags, f"{name} {flags}"


def test_every_exit_code_is_documented() -> None:
    from factorize.api.terminal.output import ExitCode

    assert all(f"\n| {int(code)} | " in PAGE for code in ExitCode)
