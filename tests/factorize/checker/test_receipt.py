"""Receipts: what a run writes is proved from its factor files, and no field of it can be made to say more."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import numpy as np
import pytest
from checker_files import parts, random_result, sealed, true_squares
from checker_mutations import dense
from manifest_mutations import changed, nodes
from receipt_runs import GUARANTEED, KINDS, Run, in_fixed_order, in_one_epoch, signed, with_others

import factorize
from factorize.checker.__main__ import PAGES, main
from factorize.checker.__main__ import run as run_command
from factorize.checker.receipt import check_receipt
from factorize.checker.receipt_text import UNKNOWN, page
from factorize.encoding import canonical_json
from factorize.errors import CorruptObject, InvalidParameter
from factorize.format.quantities import at_most
from factorize.numbers.gaussian import gaussian_delta
from factorize.privacy import BestOf
from factorize.training.auditor import ParticipationAuditor
from factorize.training.orders import fixed_order
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement


@pytest.fixture(scope="module", params=KINDS, ids=lambda make: make.__name__)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return request.param(tmp_path_factory.mktemp("run"))  # type: ignore[no-any-return]  # of a parameter


def test_the_receipt_of_a_run_is_proved(run: Run) -> None:
    report = check_receipt(run.text, run.files[::-1])  # in any order
    assert report.supported, report.failed
    assert report.unseen == []
    assert check_receipt(run.text, run.files).supported
    assert {name: run.document[name] for name in GUARANTEED} == GUARANTEED
    assert run.document["steps"]["processes"] == [[0, 12]]


@pytest.mark.parametrize("name", PAGES.values())
def test_every_page_states_the_guarantee_of_what_is_seen(run: Run, name: str) -> None:
    report, document = check_receipt(run.text, run.files), run.document
    seen = document["together"] if "trials" in document else document  # the best run of a search has seen the others
    made = page(name, report, document)
    if name == "registry.json":
        stated = json.loads(made)["deployment"]["privacy_loss"]["privacy_parameters"]
        assert stated == {"epsilon": seen["epsilon"], "delta": seen["delta"]}
    else:
        assert f" | ({at_most(seen['epsilon'])}, {at_most(seen['delta'])})-differential privacy" in made
        assert ("privacy as the best of 5 runs in the mean" in made) == ("trials" in document)


def changes(value: Any) -> list[Any]:
    """Return other values of a field, of its type and of others."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, value - 1, -value - 1, str(value)]
    if isinstance(value, float):
        return [value * 0.9, value * 1.1, -value, 0.0 if value else 1e-6]
    if isinstance(value, str):
        return [value[:-1], "zero_out" if value == "replace_one" else "other", 1]
    return [1, "other"]


def holds(document: dict[str, Any], sensitivity: float) -> bool:
    """Whether a receipt in a fixed order says no more than its noise is worth, by the accountant's closed form."""
    calibration = document["calibration"]
    factor = {"zero_out": 1, "replace_one": 2}[calibration["adjacency"]]
    mu = sensitivity * factor * calibration["clip_norm"] / calibration["sigma_of_sums"]
    enough = gaussian_delta(document["epsilon"], mu * (1 - 1e-9)) <= document["delta"]
    return enough and calibration["mu"] >= mu * (1 - 1e-9)


def test_no_changed_field_makes_a_receipt_say_more_than_is_true(run: Run) -> None:
    accepted = 0
    document = run.document
    for path, value in nodes(document):
        if path[:1] in ((), ("digest",)) or (value and isinstance(value, (dict, list))):
            continue
        for other in changes(value)[: 1 if path[0] == "factors" or "claim" in path else None]:
            forged = changed(document, path, other)
            report = check_receipt(signed(forged), run.files)
            if not report.supported or report.unseen:
                continue
            accepted += 1
            assert path[0] not in ("factors", "schema") and "claim" not in path, path
            assert forged["epsilon"] >= 2.0 or path == ("epsilon",), path
            if document["calibration"]["sampling"] == "fixed" and len(run.files) == 1:
                assert holds(forged, run.sensitivity), (path, other)
            elif path[-1] in ("epsilon", "delta", "sigma_of_sums", "clip_norm", "sensitivity"):
                assert (path[-1] != "clip_norm") == (other > value), (path, other)
    assert accepted < 40


def test_no_changed_factor_file_makes_a_receipt_say_more_than_is_true(tmp_path: Path) -> None:
    """Receipts name files of which one number of C was changed, every digest made right again; truth is in fractions."""
    rng, verdicts = np.random.default_rng(37), Counter[bool]()
    for turn in range(150):
        structure = ("dense", "banded", "toeplitz")[turn % 3]
        factors = random_result(rng, structure, n=4)
        calibration = factors.calibrate(**GUARANTEED)
        receipt, auditor = Receipt(tmp_path / f"{turn}.json"), ParticipationAuditor.of(calibration, 4)
        statement = PrivacyStatement(
            calibration, factors.digest, steps=4, examples=4, used=4, sampling="fixed", unit="example"
        )
        receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
        document = json.loads(receipt.path.read_bytes())

        manifest, tensors = parts(factors)
        numbers = tensors[manifest["matrices"]["C"]["tensors"][0]].reshape(-1)
        numbers[rng.choice(np.flatnonzero(numbers))] *= rng.choice([-1.0, 0.5, 1 - 1e-6, 1 + 1e-6, 2.0])
        data = sealed(manifest, tensors)
        document["factors"][0]["digest"] = manifest["digest"]
        try:
            supported = check_receipt(signed(document), [data]).supported
        except CorruptObject:  # a diagonal that is no longer positive
            supported = False
        verdicts[supported] += 1
        squared, _ = true_squares(dense(structure, tensors, 4), calibration.sensitivity.participation)
        mu = math.sqrt(squared) / calibration.sigma_of_sums
        assert not supported or gaussian_delta(2.0, mu * (1 - 1e-9)) <= 1e-5, (turn, structure)
    assert min(verdicts.values()) > 30, verdicts


def test_a_changed_or_damaged_receipt_is_refused(run: Run) -> None:
    document = run.document
    texts = [
        canonical_json({**document, "epsilon": 1.0}),  # signed for another
        run.text[: len(run.text) // 2],
        signed({**document, "schema": "factorize.receipt/0"}),
        signed({**document, "note": "two runs"}),
        signed({name: value for name, value in document.items() if name != "unit"}),
        b"[]",
        b"",
    ]
    for text in texts:
        assert not check_receipt(text, run.files).supported, text[:80]


def test_a_receipt_is_of_its_own_factors(run: Run, tmp_path: Path) -> None:
    other = factorize.solve("prefix", n=12, epochs=3, mechanism="banded_toeplitz", bands=2)
    other.save(tmp_path / "other.safetensors")
    data = (tmp_path / "other.safetensors").read_bytes()
    report = check_receipt(run.text, [data] * len(run.files))
    assert not report.supported and "the receipt names the factors" in report.failed[0]
    assert not check_receipt(run.text, [*run.files, data]).supported
    damaged = bytearray(run.files[0])
    damaged[-1] ^= 1
    with pytest.raises(CorruptObject):
        check_receipt(run.text, [bytes(damaged), *run.files[1:]])


@pytest.mark.parametrize(
    ("n", "code", "words"), [((1 << 20) + 1, 6, "divided up to n=1048576"), (10**9, 4, "1 to 100,")]
)
def test_a_small_file_of_a_long_run_takes_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int, code: int, words: str
) -> None:
    made, (manifest, tensors) = (
        in_one_epoch(tmp_path),
        parts(factorize.solve("prefix", n=12, mechanism="banded_inverse_square_root", bands=3)),
    )
    manifest["spec"]["workload"]["n"], manifest["matrices"]["C"]["shape"] = n, [n, n]
    (tmp_path / "long.safetensors").write_bytes(sealed(manifest, tensors))
    factors = [{"digest": manifest["digest"], "spec": manifest["spec"]}]
    (tmp_path / "long.json").write_bytes(signed({**made.document, "factors": factors}))
    assert main([str(tmp_path / "long.json"), str(tmp_path / "long.safetensors")]) == code
    assert words in capsys.readouterr().err


def test_files_that_do_not_fit_in_memory_are_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise MemoryError

    monkeypatch.setattr("factorize.checker.__main__.read_whole", refuse)
    assert main([str(tmp_path / "receipt.json"), str(tmp_path / "vast.safetensors")]) == 6
    assert "too little memory" in capsys.readouterr().err


def begun(path: Path, **options: Any) -> tuple[Receipt, ParticipationAuditor, Callable[[int], list[int]]]:
    """Return a receipt that a process begins or continues, its auditor and its batches."""
    factors = factorize.solve("prefix", n=12, epochs=3, mechanism="banded_toeplitz", bands=2)
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor = ParticipationAuditor.of(calibration, 12)
    order = fixed_order(24, 6, epochs=3, seed=1)
    receipt = Receipt(path, **options)
    statement = PrivacyStatement(
        calibration, factors.digest, steps=12, examples=24, used=24, sampling="fixed", unit="example"
    )
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    factors.save(path.with_name("factors.safetensors"))
    return receipt, auditor, lambda step: order[step].tolist()


@pytest.mark.parametrize("unpublished", [False, True])
@pytest.mark.parametrize("taken_again", [0, 2])
def test_a_run_that_was_killed_and_continues(tmp_path: Path, taken_again: int, unpublished: bool) -> None:
    path = tmp_path / "receipt.json"
    _, auditor, batch = begun(path)
    for step in range(7 - taken_again):
        auditor.record(batch(step))
    checkpoint = auditor.state_dict()
    for step in range(7 - taken_again, 7):
        auditor.record(batch(step))
    files = [(tmp_path / "factors.safetensors").read_bytes()]
    report = check_receipt(path.read_bytes(), files)
    assert report.supported and "the run has not ended" in report.not_checked[0]

    receipt, auditor, batch = begun(path, unpublished=unpublished)
    auditor.load_state_dict(checkpoint)
    for step in range(7 - taken_again, 12):
        auditor.record(batch(step))
    receipt.close()
    assert json.loads(path.read_text())["steps"]["processes"] == [[0, 7], [7 - taken_again, 12]]
    report = check_receipt(path.read_bytes(), files)
    assert report.supported == (unpublished or not taken_again)
    said = report.failed if taken_again and not unpublished else report.not_checked
    assert any("steps 5 to 7 were taken twice" in sentence for sentence in said) == bool(taken_again)

    with pytest.raises(InvalidParameter, match="of a finished run"):
        begun(path)


def test_a_receipt_is_continued_by_its_own_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    _, auditor, batch = begun(path)
    auditor.record(batch(0))
    with pytest.raises(InvalidParameter, match="another run"):
        in_fixed_order(tmp_path)
    path.write_text("{}")
    with pytest.raises(InvalidParameter, match="not a receipt, or is damaged"):
        begun(path)
    with pytest.raises(InvalidParameter, match="no run has begun"):
        Receipt(path).close()


def test_steps_that_were_left_out_or_are_too_many_are_refused(tmp_path: Path) -> None:
    made = in_fixed_order(tmp_path)
    for processes, why in (
        ([[0, 3], [4, 12]], "were skipped"),
        ([[0, 13]], "covers 12"),
        ([[3, 3]], "must be its first step"),
        ([[2, 4]], ""),
    ):
        document = made.document
        document["steps"]["processes"] = processes
        report = check_receipt(signed(document), made.files)
        assert not report.supported and why in report.failed[0]


def fields(required: str = "", also: str = "", **kinds: Any) -> dict[str, Any]:
    """Return the schema of an object of texts, or of what the keywords say, with no other keys."""
    kinds |= {name: {"type": "string"} for name in f"{required} {also}".split() if name not in kinds}
    return {"type": "object", "properties": kinds, "required": required.split(), "additionalProperties": False}


def among(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


NAMES = {"type": "array", "items": {"type": "string"}, "minItems": 1}
# Of opendp/deployments-registry-data, 3e9c812 of 15 July 2026: names, what is required, and the values of choices.
REGISTRY = fields(
    "url_slug status tier deployment",
    status=among("Converted", "Draft", "Pending", "Changes Required", "Approved"),
    tier=among(1, 2, 3),
    deployment=fields(
        "basic",
        basic=fields(
            "name data_curators description intended_use data_product_type data_product_region publication_date",
            data_curators=NAMES,
            data_product_type=among("Summary statistics", "Machine learning model", "Dataset", "Synthetic data"),
            publication_date={"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
            data_product_sector=among("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
        ),
        dp_variant=fields(
            also="data_domain unprotected_quantities",
            variant_name=among("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
        ),
        privacy_loss=fields(
            also="privacy_unit privacy_unit_details privacy_parameters_details",
            privacy_parameters=fields(
                epsilon={"type": "number"}, delta={"type": ["number", "string"]}, rho={"type": "number"}
            ),
        ),
        deployment_model=fields(
            also="model_name_details actors release_type_details data_source_type_details access_type_details",
            model_name=among("Local", "Central", "Shuffle", "Federated", "Varies"),
            release_type=among("One release", "Many releases"),
            data_source_type=among("Static", "Dynamic"),
            access_type=among("Interactive", "Non-interactive"),
        ),
        accounting=fields(also="post_processing composition"),
        implementation=fields(also="preprocessing_and_hyperparameter_tuning mechanisms justification"),
        administrative=fields("registry_authors", "sources notes", registry_authors=NAMES),
    ),
)


def folder_in(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_a_receipt_may_come_through_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = in_one_epoch(tmp_path).text
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    assert main([f"/dev/fd/{reading}", str(tmp_path / "0.safetensors"), "--output", "card"]) == 0
    os.close(reading)
    assert capsys.readouterr().out.startswith("# Privacy of this model")


def test_a_device_without_end_is_no_receipt_and_no_factors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("factorize.format.container.MAX_PIPE_BYTES", 100_000)
    in_one_epoch(tmp_path)
    for files in (["receipt.json", "/dev/zero"], ["/dev/zero", "0.safetensors"]):
        assert main([str(tmp_path / name) for name in files]) == 2
        assert "error: /dev/zero is a pipe or a device that gives more than 100000 " in capsys.readouterr().err


def test_who_reads_the_report_may_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `| head`; a full disk and Ctrl-C are sentences and codes, too."""
    handlers: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    full = OSError(errno.ENOSPC, "No space left on device")
    for end, code, words in (
        (0, 0, ""),
        (KeyboardInterrupt, 130, ""),
        (full, 2, "cannot be written to standard output"),
    ):
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            monkeypatch.setattr(sys, "stdout", out)
            monkeypatch.setattr(sys, "stderr", err)
            monkeypatch.setattr("factorize.checker.__main__.main", Mock(side_effect=[end]))
            with pytest.raises(SystemExit) as ended:
                run_command()
        said = (tmp_path / "err").read_text()
        assert ended.value.code == code and words in said and "Traceback" not in said
    assert handlers == {signal.SIGPIPE: signal.SIG_DFL}


def test_what_a_search_for_hyperparameters_costs_is_stated_and_proved(tmp_path: Path) -> None:
    seen = in_fixed_order(folder_in(tmp_path, "seen"), trials=4)
    best = in_fixed_order(folder_in(tmp_path, "best"), trials=BestOf(4.0))
    mu = seen.document["calibration"]["mu"]
    assert seen.document["together"]["mu"] == pytest.approx(2 * mu)
    assert seen.document["others"][0]["name"] == "3 more trials"
    together = best.document["together"]
    assert together["epsilon"] == pytest.approx(BestOf(4.0).epsilon(1e-5, mu)) and together["mu"] == pytest.approx(mu)
    assert 2.0 < together["epsilon"] < seen.document["together"]["epsilon"]
    for made in (seen, best):
        assert check_receipt(made.text, made.files).supported
    for change in ({"surplus": 0.9 * best.document["trials"]["surplus"]}, {"mean": 4.1}):
        forged = signed({**best.document, "trials": best.document["trials"] | change})
        assert "the best of" in check_receipt(forged, best.files).failed[0]


def test_the_command_prints_pages_and_needs_no_heavy_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = with_others(tmp_path)
    names = [str(tmp_path / "receipt.json"), str(tmp_path / "0.safetensors")]
    assert main(names) == 0 and "verified" in capsys.readouterr().out
    assert main([*names, "--output", "json"]) == 0 and json.loads(capsys.readouterr().out)["verified"]
    assert main([*names, "--output", "card"]) == 0
    page = capsys.readouterr().out
    assert "| Guarantee | (2, 1e-05)-differential privacy |" in page and "hyperparameters" in page
    assert main([*names, "--output", "nist"]) == 0
    page = capsys.readouterr().out
    assert "whose data are protected? | one example of 24 examples |" in page
    assert "| Data security and access control | not in the receipt |" in page and "- clipping: the job states" in page
    assert main([*names, "--output", "registry"]) == 0
    entry = json.loads(capsys.readouterr().out)
    jsonschema.validate(entry, REGISTRY)
    loss, basic = entry["deployment"]["privacy_loss"], entry["deployment"]["basic"]
    assert loss["privacy_parameters"] == GUARANTEED and loss["privacy_unit"] == "Example"
    assert basic["name"] == basic["data_curators"][0] == UNKNOWN
    Path(names[0]).write_bytes(signed({**made.document, "epsilon": 1.0}))
    for form in ("card", "nist", "registry"):
        assert main([*names, "--output", form]) == 4 and "NOT SUPPORTED" in capsys.readouterr().out
    assert main(names) == 4 and "NOT SUPPORTED" in capsys.readouterr().out
    assert main([str(tmp_path / "none.json"), names[1]]) == 2
    Path(names[0]).write_bytes(made.text)
    alone = """
import sys
for name in ("numba", "pydantic", "scipy", "threadpoolctl"):
    sys.modules[name] = None
from factorize.checker.__main__ import PAGES, main
sys.exit(main(sys.argv[1:]))
"""
    done = subprocess.run([sys.executable, "-c", alone, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-c", alone.replace("numba", "flint"), *names], capture_output=True, text=True
    )
    assert done.returncode == 6 and "not installed; install factorize-check\n" in done.stderr, done.stderr
