"""Signatures of OpenSSF Model Signing: over files and receipts, made by either side, and refused by name."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import signing
from model_signing._signing import sign_ec_key, sign_sigstore_pb
from receipt_runs import signed
from servers import serving
from sigstore.dsse import Statement as DsseStatement

import factorize
from factorize.checker import __main__ as checker
from factorize.checker.__main__ import main as check
from factorize.client import fetch
from factorize.encoding import canonical_json
from factorize.errors import BadSignature, InvalidParameter
from factorize.format.signatures import check_signature, sign
from factorize.storage.store import open_store
from factorize.training.auditor import ParticipationAuditor
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement

PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


def key_pair(folder: Path, name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / f"{name}.pem").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two keys, a stored result, its file, a receipt of it, and signatures of both."""
    for name in ("own", "foreign"):
        key_pair(tmp_path, name)
    factors = factorize.solve(
        "prefix", n=8, mechanism="identity", store=tmp_path / "store", to=tmp_path / "f.safetensors"
    )
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    statement = PrivacyStatement(
        calibration, factors.digest, steps=8, examples=8, used=8, sampling="fixed", unit="example"
    )
    auditor = ParticipationAuditor.of(calibration, 8)
    receipt = Receipt(tmp_path / "r.json")
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    auditor.record([0])
    receipt.close()
    for name in ("f.safetensors", "r.json"):
        assert sign(tmp_path / name, private_key=tmp_path / "own.pem") == tmp_path / f"{name}.sig"
    return tmp_path


def verified(home: Path, name: str = "f.safetensors", signature: str = "f.safetensors.sig", key: str = "own") -> Any:
    return check_signature(home / name, home / signature, home / f"{key}.pub")


def test_python(home: Path) -> None:
    signed = verified(home)
    assert (
        signed.key == json.loads((home / "f.safetensors.sig").read_text())["verificationMaterial"]["publicKey"]["hint"]
    )
    keys: dict[str, Any] = {"signature": home / "f.safetensors.sig", "public_key": home / "own.pub"}
    assert factorize.load(home / "f.safetensors", **keys).signature == signed
    assert factorize.load(home / "f.safetensors").signature is None
    digest = factorize.load(home / "f.safetensors").digest
    with serving(home / "store") as service:
        url = service.url
        with pytest.raises(BadSignature):
            fetch(digest, url=url, to=home / "g", signature=home / "r.json.sig", public_key=home / "own.pub")
        assert not (home / "g").exists()
        assert fetch(digest, url=url, to=home / "g", **keys).read_bytes() == (home / "f.safetensors").read_bytes()
        with pytest.raises(BadSignature):  # also where the file is there already
            fetch(digest, url=url, to=home / "g", signature=home / "r.json.sig", public_key=home / "own.pub")


def test_what_is_refused(home: Path) -> None:
    data, text = (home / "f.safetensors").read_bytes(), (home / "f.safetensors.sig").read_text()
    (home / "damaged").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (home / "truncated").write_bytes(data[:-9])
    document = json.loads(text)
    (home / "short.sig").write_text(text[: len(text) // 2])
    sign(home / "f.safetensors", private_key=home / "foreign.pem", to=home / "foreign.sig")
    claimed = json.loads((home / "foreign.sig").read_text())
    claimed["verificationMaterial"] = document["verificationMaterial"]
    (home / "claimed.sig").write_text(json.dumps(claimed))  # says that it is by the own key
    for given, words in (
        ({"name": "damaged"}, "signs another file"),
        ({"name": "truncated"}, "signs another file"),
        ({"signature": "r.json.sig"}, "signs another file"),
        ({"signature": "short.sig"}, "damaged"),
        ({"signature": "f.safetensors"}, "damaged"),
        ({"signature": "foreign.sig"}, "not made with"),
        ({"signature": "claimed.sig"}, "not made with"),
        ({"key": "foreign"}, "not made with"),
    ):
        with pytest.raises(BadSignature, match=words):
            verified(home, **given)
    (home / "none.pub").write_bytes((home / "own.pem").read_bytes())
    with pytest.raises(InvalidParameter, match="does not contain a usable public key"):
        verified(home, key="none")
    with pytest.raises(InvalidParameter, match="does not contain a usable private key"):
        sign(home / "r.json", private_key=home / "own.pub")
    with pytest.raises(InvalidParameter, match="give public_key"):
        factorize.load(home / "f.safetensors", signature=home / "f.safetensors.sig")
    with pytest.raises(FileNotFoundError):
        sign(home / "nothing", private_key=home / "own.pem")
    with pytest.raises(InvalidParameter, match="/dev/null is a pipe or a device"):
        sign("/dev/null", private_key=home / "own.pem", to=home / "null.sig")


def test_a_file_that_changes_while_it_is_checked_is_not_the_signed_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signature is then of what came later, and the report of what was read before; or the other way round."""
    unsigned = json.loads((home / "r.json").read_bytes())
    unsigned["delta"] *= 2
    later = (home / "r.json").read_bytes()

    def replace_and_check(path: Path, *given: Any) -> Any:
        path.write_bytes(later)
        return check_signature(path, *given)

    (home / "r.json").write_bytes(signed(unsigned))
    monkeypatch.setattr(checker, "check_signature", replace_and_check)
    names = [str(home / name) for name in ("r.json", "f.safetensors")]
    assert check([*names, "--signature", f"{names[0]}.sig", "--public-key", str(home / "own.pub")]) == 4
    assert "signs other bytes than were read before" in capsys.readouterr().err


def test_every_changed_field_of_a_bundle_is_refused(home: Path) -> None:
    """Each long string: the form, the key's name, what is signed, and the signature."""
    text = (home / "r.json.sig").read_text()
    refused = 0
    for word in sorted({word for word in text.split('"') if len(word) > 20}):
        (home / "changed.sig").write_text(text.replace(word, word[:9] + ("0" if word[9] != "0" else "1") + word[10:]))
        with pytest.raises(BadSignature):
            verified(home, "r.json", "changed.sig")
        refused += 1
    assert refused >= 4


def test_the_command_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = CommandLine(home)
    digest = factorize.load(home / "f.safetensors").digest
    keys, foreign = ["--public-key", "own.pub"], ["--public-key", "foreign.pub"]
    kept = ["--store", "store"]
    signed = ["--signature", "stored.sig"]
    assert command("sign", digest, "--private-key", "own.pem", "--to", "stored.sig", *kept).code == 0
    key = verified(home, signature="stored.sig").key
    for target in (digest[:10], "f.safetensors"):
        done = command("verify", target, *signed, *keys, *kept, "--output", "json")
        assert done.code == 0 and done.json()["signature"] == {"file": "stored.sig", "key": key}, done
        assert command("verify", target, *signed, *foreign, *kept).code == 4
    assert (
        f"signed        stored.sig, by the key sha256:{key}" in command("verify", "f.safetensors", *signed, *keys).out
    )
    done = command("get", digest, "--to", "g", *signed, *foreign, *kept, "--output", "json")
    assert done.code == 4 and done.json()["error"]["type"] == "bad-signature" and not (home / "g").exists()
    assert command("get", digest, "--to", "g", *signed, *kept).code == 2
    done = command("get", digest, "--to", "g", *signed, *keys, *kept, "--output", "json")
    assert done.code == 0 and done.json()["signature"]["key"] == key and (home / "g").exists()
    assert command("sign", digest, "--private-key", "own.pem", *kept).code == 2

    asked = [str(home / name) for name in ("r.json", "f.safetensors")]
    own, other = str(home / "own.pub"), str(home / "foreign.pub")
    assert check([*asked, "--signature", str(home / "r.json.sig"), "--public-key", own]) == 0
    assert f"by the key sha256:{key}" in capsys.readouterr().out
    assert check([*asked, "--signature", str(home / "r.json.sig"), "--public-key", other]) == 4
    assert check([*asked, "--signature", str(home / "stored.sig"), "--public-key", own]) == 4
    assert check([*asked, "--signature", str(home / "r.json.sig")]) == 2


def test_the_program_of_model_signing_signs_and_verifies_the_same_bundles(home: Path) -> None:
    def run(*order: str) -> None:
        done = subprocess.run([sys.executable, "-m", "model_signing", *order], cwd=home, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run("verify", "key", "r.json", "--signature", "r.json.sig", "--public_key", "own.pub")
    run("sign", "key", "f.safetensors", "--signature", "theirs.sig", "--private_key", "own.pem")
    assert verified(home, signature="theirs.sig")


def released(home: Path, model: Any, name: str = "d.json", steps: int = 8) -> Path:
    """Return the receipt of a run that has ended with a model."""
    factors = factorize.load(home / "f.safetensors")
    statement = PrivacyStatement(
        factors.calibrate(epsilon=2.0, delta=1e-5),
        factors.digest,
        steps=8,
        examples=8,
        used=8,
        sampling="fixed",
        unit="example",
    )
    receipt = Receipt(home / name)
    auditor = ParticipationAuditor.of(statement.calibration, 8)
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32", commitments=["0" * 64])
    for step in range(steps):
        auditor.record([step])
    if steps:
        receipt.close(model=model)
    return receipt.path


def test_the_epsilon_so_far_of_a_receipt(home: Path) -> None:
    path, command = released(home, None), CommandLine(home)
    done = command("receipt", "--factors", "f.safetensors", str(path), "--output", "json")
    assert done.json() == {"epsilon_so_far": 2.0, "delta": 1e-5, "steps": 8}
    shown = command("receipt", "--factors", "f.safetensors", str(path), "--delta", "1e-9").out
    assert "after 8 of 8 steps, and holds if the stop depended neither on the data nor" in shown
    document = json.loads(path.read_text())
    for changes in ({"epsilon": 0.1}, {"clip_norm": 2.0}, {"adjacency": "replace_one"}, {"delta": 0.1}):
        forged = {**document, "epsilon": changes.get("epsilon", 2.0)}
        path.write_bytes(signed({**forged, "calibration": {**document["calibration"], **changes}}))
        assert "does not hold, so it proves no epsilon" in command("receipt", "--factors", "f.safetensors", path).error(
            4
        )
    begun = released(home, None, "begun.json", steps=0)
    assert "no step was taken yet" in command("receipt", "--factors", "f.safetensors", begun).error(4)


def test_a_statement_on_a_model_is_verified_by_other_tools(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By DSSE's own definition over cryptography, by sigstore's reader and by the verifier of model_signing."""
    (home / "model" / "part").mkdir(parents=True)
    for place in ("model/part/a.bin", "model/b.bin", "model.bin"):
        (home / place).write_bytes(place.encode())
    command = CommandLine(home)
    kept = ["--private-key", "own.pem", "--to", "s.json"]
    for name in ("model.bin", "model"):
        receipt = released(home, home / name, f"{name}.json")
        done = command("receipt", "--statement", str(receipt), "--model", name, *kept)
        assert done.code == 0, done
        bundle = json.loads((home / "s.json").read_text())
        envelope = bundle["dsseEnvelope"]
        payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
        encoded = b" ".join([b"DSSEv1", b"28", kind.encode(), str(len(payload)).encode(), payload])
        public = serialization.load_pem_public_key((home / "own.pub").read_bytes())
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), encoded, ec.ECDSA(hashes.SHA256()))
        verifier = sign_ec_key.Verifier(home / "own.pub")
        signed = sign_sigstore_pb.Signature.read(home / "s.json")
        assert verifier._verify_signed_content(signed) == (kind, payload)
        with pytest.raises((ValueError, InvalidSignature)):
            sign_ec_key.Verifier(home / "foreign.pub")._verify_signed_content(signed)

        DsseStatement(payload)  # which refuses what is no in-toto statement
        statement = json.loads(payload)
        assert statement["predicateType"] == "urn:factorize:receipt:2"
        assert canonical_json(statement["predicate"]) == receipt.read_bytes().strip()
        (subject,) = statement["subject"]
        assert subject == {"name": name, "digest": {"sha256": subject["digest"]["sha256"]}}
        if name == "model":
            signing.Config().use_elliptic_key_signer(private_key=home / "own.pem").sign(
                home / name, home / "theirs.sig"
            )
            theirs = json.loads((home / "theirs.sig").read_text())["dsseEnvelope"]["payload"]
            assert json.loads(base64.b64decode(theirs))["subject"] == [subject]
        else:
            assert subject["digest"]["sha256"] == hashlib.sha256((home / name).read_bytes()).hexdigest()
        capsys.readouterr()
        assert check([str(receipt), str(home / "f.safetensors"), "--model", str(home / name)]) == 0


def test_a_private_key_may_come_through_a_pipe(home: Path) -> None:
    """It is read once, so that it need not lie on a disk; keys of other curves are refused, as for a file."""
    receipt = released(home, home / "f.safetensors", "of-factors.json")
    open_store(home / "piped", create=True)
    orders = (
        ["receipt", "--statement", receipt, "--to", "s.json"],
        ["mirror", "piped", "mirror"],
        ["sign", "r.json", "--to", "r.sig"],
    )
    other = ec.generate_private_key(ec.SECP256K1()).private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN)
    for order in orders:
        for key, code in (((home / "own.pem").read_bytes(), 0), (other, 2)):
            reading, writing = os.pipe()
            os.write(writing, key)
            os.close(writing)
            assert CommandLine(home)(*order, "--private-key", f"/dev/fd/{reading}").code == code
            os.close(reading)


def test_no_statement_on_what_a_receipt_does_not_say(home: Path) -> None:
    command = CommandLine(home)
    (home / "model.bin").write_bytes(b"model")
    (home / "other.bin").write_bytes(b"other")
    receipt = str(released(home, home / "model.bin"))
    text = command("receipt", "--statement", receipt).out
    assert json.loads(text)["subject"] == [
        {"name": "model", "digest": {"sha256": hashlib.sha256(b"model").hexdigest()}}
    ]
    command("receipt", "--statement", receipt, "--to", "plain.json")
    assert json.loads((home / "plain.json").read_text()) == json.loads(text)
    twice = json.loads(Path(receipt).read_text())
    twice["steps"] |= {"processes": [[0, 4], [2, 8]], "chain": twice["steps"]["chain"] * 2}
    (home / "twice.json").write_bytes(signed(twice))
    assert "steps 2 to 4 were taken twice" in command("receipt", "--statement", "twice.json").error(2)
    (home / "damaged.json").write_text(Path(receipt).read_text().replace("1e-05", "1e-06"))
    for arguments, code in (
        ([receipt], 2),
        (["--statement", receipt, "--model", "other.bin"], 4),
        (["--statement", receipt, "--private-key", "own.pem"], 2),
        (["--statement", receipt, "--private-key", "own.pub", "--to", "s.json"], 2),
        (["--statement", "damaged.json"], 4),
        (["--statement", "r.json"], 2),
        (["--statement", "missing.json"], 2),
        (["--statement", str(released(home, {"weights": np.ones(3)}, "t.json"))], 2),
    ):
        assert command("receipt", *arguments).code == code, arguments
    assert not (home / "s.json").exists()
