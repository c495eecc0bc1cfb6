"""Specs in words, digests by their beginning, and the commands that ask, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import CommandLine
from specs import solved, spec_text

from factorize.spec import parse_spec
from factorize.storage.store import open_store


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A store with two results, and their digests by mechanism."""
    url = str(tmp_path_factory.mktemp("filled"))
    store = open_store(url)
    kinds = ("identity", "square_root")
    return url, {kind: store.put(solved(4, mechanism={"kind": kind}))["digest"] for kind in kinds}


class TestWords:
    def test_the_commands_own_options_are_theirs(self, within: CommandLine, tmp_path: Path) -> None:
        given = ("estimate", "prefix", "--output", "json", "--n", 8, "--store", tmp_path / "none")
        done = within(*given, "--mechanism", "identity")
        assert done.json()["spec"]["mechanism"] == {"kind": "identity"} and not done.json()["known"]

    def test_what_a_workload_releases_is_no_form_of_the_answer(self, within: CommandLine) -> None:
        words = ("spec", "show", "adam", "--n", 8, "--beta", 0.9, "--output", "json")
        for released in ("moment", "iterate"):
            assert within(*words, "--released", released).json()["workload"]["output"] == released
        assert "--released " in within("solve", "prefix", "--help").out
        assert "The output of a workload is --released." in within("solve", "adam", "--n", 4, "--output", "iterate").err

    def test_a_file_of_that_name_is_a_file(self, within: CommandLine, tmp_path: Path) -> None:
        """Unless fields say that the workload is meant; a folder of experiments is never one."""
        words = ("spec", "digest", "prefix", "--n", 8)
        meant = within(*words).out
        (tmp_path / "prefix").mkdir()
        assert within(*words).out == meant and "/workload/n" in within("spec", "digest", "prefix").error(2)
        (tmp_path / "prefix").rmdir()
        (tmp_path / "prefix").write_text(spec_text(5))
        assert json.loads(within("spec", "show", "prefix").out)["workload"]["n"] == 5
        assert within(*words).out == meant

    def test_help_and_completion_know_every_kind(self, within: CommandLine) -> None:
        text = within("solve", "prefix", "--n", 8, "--help").out
        assert all(f"--{name} " in text for name in ("epochs", "learning-rates", "min-sep", "optimize-for", "tau"))
        assert "buffered_linear" in text

    @pytest.mark.parametrize(
        ("words", "place", "offered"),
        [
            ("solve pre", 2, "prefix"),
            ("solve prefix --mech", 3, "--mechanism"),
            ("solve prefix --mechanism buff", 4, "buffered_linear"),
        ],
    )
    def test_the_shell_completes_them(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, place: int, offered: str
    ) -> None:
        from factorize.api.commands.application import app

        asked = {"_FACTORIZE_COMPLETE": "complete_bash", "COMP_WORDS": f"factorize {words}", "COMP_CWORD": str(place)}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            app(prog_name="factorize")
        assert offered in capsys.readouterr().out.split()


class TestSpec:
    def test_the_canonical_form_and_its_meaning(self, within: CommandLine) -> None:
        shown = within("spec", "show", "prefix", "--n", 4).out
        assert parse_spec(shown).document() == json.loads(shown) and json.loads(shown)["mechanism"]["kind"] == "dense"
        told = within("spec", "explain", "prefix", "--n", 4, "--epochs", 2).out
        assert "Fixed order, `epochs` passes" in told and "stands for dense" in told

    def test_fields_of_a_kind(self, within: CommandLine) -> None:
        assert "fixed_epochs takes epochs" in within("spec", "fields", "fixed_epochs").out
        every = within("spec", "fields", "--output", "json").json()["kinds"]
        assert {"prefix", "lambda_tau", "blt", "balls_in_bins"} <= {one["kind"] for one in every}


class TestShortDigests:
    def test_the_beginning_of_a_digest_does(
        self, within: CommandLine, filled: tuple[str, dict[str, str]], tmp_path: Path
    ) -> None:
        url, digests = filled
        for digest in digests.values():
            asked = (digest[:8], "--store", url, "--output", "json")
            assert within("verify", *asked).json()["digest"] == digest
        assert "|B C - A|" in within("verify", digests["identity"], "--store", url, "--explain").out
        to = tmp_path / "c.safetensors"
        assert within("get", digests["identity"][:9], "--store", url, "--to", to).code == 0 and to.exists()

    def test_one_that_begins_nothing_or_several_is_refused(
        self, within: CommandLine, filled: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from factorize.storage.index import Index

        url, digests = filled
        absent = next(text for text in ("0000", "1111", "2222") if not open_store(url).index.beginning(text))
        assert "`factorize ls` lists" in within("verify", absent, "--store", url).error(2)
        monkeypatch.setattr(Index, "beginning", lambda _self, text: [text + "0" * 60, text + "1" * 60])
        assert "begins 2 digests" in within("verify", digests["identity"][:4], "--store", url).error(2)

    def test_ls_lists_them(self, within: CommandLine, filled: tuple[str, dict[str, str]]) -> None:
        url, digests = filled
        lines = within("ls", "--store", url).out.splitlines()
        assert {line[:12] for line in lines} == {digest[:12] for digest in digests.values()}
        assert "prefix(n=4)" in lines[0] and "objective" in lines[0]
        assert "and 1 more" in within("ls", "--store", url, "--limit", 1).out
        assert within("ls", "--store", url, "--n", 9, "--output", "json").json()["items"] == []
        assert "has no such result" in within("ls", "--store", url, "--n", 9).out

    def test_show_shows_one_by_its_beginning_and_from_a_file(
        self, within: CommandLine, filled: tuple[str, dict[str, str]], tmp_path: Path
    ) -> None:
        url, digests = filled
        shown = within("show", digests["identity"][:9], "--store", url)
        assert (
            f"digest        {digests['identity']}" in shown.out
            and "matrices      C (banded_toeplitz, float64)" in shown.out
        )
        stored = within("show", digests["identity"], "--store", url, "--output", "json").json()
        assert stored["digest"] == digests["identity"] and "certificate" in stored
        to = tmp_path / "c.safetensors"
        within("get", digests["identity"], "--store", url, "--to", to)
        assert within("show", to, "--store", url, "--output", "json").json()["digest"] == digests["identity"]
        assert "no matrix beats" in within("show", to, "--store", url, "--explain").out
        assert "no digest that begins" in within("show", "0000aaaa1111", "--store", url).error(2)
