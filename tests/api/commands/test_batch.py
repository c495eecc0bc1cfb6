"""Lists of specs: what a grid expands to, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from house import ROOT

from factorize.api.commands import batch_lists
from factorize.api.commands.batch_lists import each_spec
from factorize.api.commands.batch_report import Item
from factorize.errors import InvalidParameter


def read(tmp_path: Path, text: str, name: str = "grid.toml") -> list[Item]:
    path = tmp_path / name
    path.write_text(text)
    return list(each_spec(path))


GRID = """
[spec]
tolerance = 1e-6
workload = {kind = "prefix"}
participation = {kind = "fixed_epochs"}
[grid]
n = [4, 8]
"participation.epochs" = [1, 2]
[[exclude]]
n = 8
"participation.epochs" = 2
"""


def test_a_grid_is_all_combinations_less_the_excluded_ones(tmp_path: Path) -> None:
    entries = read(tmp_path, GRID)
    documents = [entry.spec and entry.spec.document() for entry in entries]
    assert [entry.label for entry in entries] == [
        "workload.n=4 participation.epochs=1",
        "workload.n=4 participation.epochs=2",
        "workload.n=8 participation.epochs=1",
    ]
    expected = [(4, {"kind": "single"}), (4, {"kind": "fixed_epochs", "epochs": 2}), (8, {"kind": "single"})]
    assert [(d["workload"]["n"], d["participation"]) for d in documents if d] == expected
    assert all(d and d["tolerance"] == 1e-6 for d in documents)
    nested = GRID.replace('"participation.epochs" = [1, 2]', "participation.epochs = [1, 2]")
    assert read(tmp_path, nested) == entries


def test_whole_tables_can_vary(tmp_path: Path) -> None:
    grid = """
    [grid]
    workload = [{kind = "prefix", n = 4}, {kind = "window", n = 4, width = 2}]
    mechanism = [{kind = "dense"}, {kind = "nu_toeplitz", nu = 0.5}]
    [[exclude]]
    "workload.kind" = "window"
    mechanism = {kind = "dense"}
    """
    entries = read(tmp_path, grid)
    assert [entry.label for entry in entries] == [
        "workload=prefix(n=4) mechanism=dense",
        "workload=prefix(n=4) mechanism=nu_toeplitz(nu=0.5)",
        "workload=window(n=4,width=2) mechanism=nu_toeplitz(nu=0.5)",
    ]
    assert all(entry.error is None for entry in entries)


def test_combinations_that_are_no_specs_are_kept_with_their_error(tmp_path: Path) -> None:
    entries = read(tmp_path, GRID.replace("[1, 2]", "[1, 3]"))
    bad = [entry for entry in entries if entry.spec is None]
    assert [entry.label for entry in bad] == [
        "workload.n=4 participation.epochs=3",
        "workload.n=8 participation.epochs=3",
    ]
    assert all("/participation/epochs" in str(entry.error) for entry in bad)


@pytest.mark.parametrize("value", ["nan", "inf", "1979-05-27", "true", '"4"', "4.0"])
def test_toml_values_that_json_has_not_are_bad_specs(tmp_path: Path, value: str) -> None:
    (entry,) = read(tmp_path, f'[spec]\nworkload = {{kind = "prefix", n = {value}}}\n')
    assert entry.spec is None and entry.error is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid", "is not TOML"),
        ("[specs]\n", "unknown table [specs]"),
        ("grid = 3\n", "grid must be a table"),
        ("exclude = {n = 3}\n", "written [[exclude]]"),
        ("[grid]\nn = 4\n", "needs a list of values"),
        ("[grid]\nn = []\n", "lists no value; give one"),
        ('[grid]\nworkload = [{kind = "prefix", n = 4}]\nn = [4]\n', "a part of it"),
        ("[grid]\nn = [4]\n[[exclude]]\nm = 4\n", "neither [grid] nor [spec] sets"),
        (
            '[grid]\nn = [4]\nmechanism = [{kind = "dense"}]\n[[exclude]]\n"mechanism.knd" = "dense"\n',
            "'mechanism.knd'",
        ),
        ("[spec]\nworkload = 3\n[grid]\nn = [4]\n", "'workload' in [spec] is a value"),
        ("[grid]\nn = [4]\n[[exclude]]\nn = 4\n", "contains no spec"),
        ("[grid]\nn = [4]\n[[exclude]]\n", "not empty"),
        ('[grid]\nn = [4]\n"workload.n" = [8]\n', "has 'workload.n' in two spellings"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)


def test_one_and_true_are_not_the_same_value(tmp_path: Path) -> None:
    grid = (
        '[spec]\nworkload = {kind = "momentum", momentum = 0.5}\n[grid]\nn = [4]\n"workload.nesterov" = [true, false]\n'
    )
    assert len(read(tmp_path, grid + '[[exclude]]\n"workload.nesterov" = 1\n')) == 2
    assert len(read(tmp_path, grid + '[[exclude]]\n"workload.nesterov" = true\n')) == 1


def test_too_many_combinations_are_refused_before_they_are_made(tmp_path: Path) -> None:
    values = ", ".join(str(n) for n in range(1, 1001))
    with pytest.raises(InvalidParameter, match=r"1000000 specs .* above 100000"):
        read(tmp_path, f'[grid]\nn = [{values}]\n"participation.epochs" = [{values}]\n')


def test_lines_are_read_one_by_one_and_bad_ones_keep_their_number(tmp_path: Path) -> None:
    path, good = tmp_path / "specs.jsonl", b'{"workload":{"kind":"prefix","n":4}}'
    path.write_bytes(b"\n".join([good, b"", b"{oops", good.replace(b"4", b"0"), b"[]", b"\xff\xfe", good]))
    first, *bad, last = each_spec(path)
    assert (first.label, last.label) == ("line 1", "line 7") and first.spec is not None and last.spec is not None
    assert [entry.label for entry in bad] == [f"line {number}" for number in (3, 4, 5, 6)]
    for entry, words in zip(bad, ("not JSON", "/workload/n", "JSON object", "UTF-8"), strict=True):
        assert entry.spec is None and words in str(entry.error)


@pytest.mark.parametrize(
    ("limit", "most", "words"), [("MAX_FILE_BYTES", 10, "111 bytes, more than 10"), ("MAX_SPECS", 2, "3 specs")]
)
def test_lists_above_the_limits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, words: str
) -> None:
    monkeypatch.setattr(batch_lists, limit, most)
    with pytest.raises(InvalidParameter, match=words):
        read(tmp_path, '{"workload":{"kind":"prefix","n":4}}\n' * 3, "specs.jsonl")


def test_the_grid_of_the_page_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "cli.md").read_text().split("    [spec]\n")[1].split("\nAny other file")[0]
    entries = read(tmp_path, "[spec]\n" + "\n".join(line.strip() for line in text.splitlines()))
    assert len(entries) == 15 and all(entry.spec for entry in entries)


def test_a_line_longer_than_a_spec_ends_the_list(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="line 2 is longer than 1048576 bytes"):
        read(tmp_path, "{}\n" + "x" * (1 << 20) + "x\n", "specs.jsonl")
