"""Signatures of files and in-toto statements: bundles of OpenSSF Model Signing, made with keys and offline.

A digest says that bytes are whole; a signature says who vouches for them. The bundles are those that `model_signing`
makes and verifies, so that either side may use it instead.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorize.encoding import canonical_json, read_json, sha256
from factorize.errors import BadSignature, InvalidParameter, MalformedJson, extras_named
from factorize.format.container import check_is_regular, local_path, read_whole
from factorize.format.files import write_whole

_MAX_BUNDLE_BYTES = 1 << 16
"""The largest bundle in bytes that is read: a bundle over one file by a key has 1.3 kB."""
_IN_TOTO = "application/vnd.in-toto+json"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_CURVES = "on P-256, P-384 or P-521"


@dataclass(frozen=True)
class Signature:
    """A signature that was verified.

    Attributes:
        file: the bundle's path.
        key: sha256 of the public key as PEM, hexadecimal, as the bundle names it.
        sha256: of the signed bytes.
    """

    file: str
    key: str
    sha256: str

    def document(self) -> dict[str, str]:
        """Return the plain JSON form."""
        return {"file": self.file, "key": self.key}

    def check_bytes(self, data: bytes) -> None:
        """Raise BadSignature where these are not the signed bytes, as of a file that changed while it was read."""
        if sha256(data) != self.sha256:
            raise BadSignature(f"{self.file} signs other bytes than were read before; the file was changed: try again")

    def __str__(self) -> str:
        """Return one phrase for a report."""
        return f"{self.file}, by the key sha256:{self.key}"


def sign(path: str | Path, *, private_key: str | Path, to: str | Path | None = None) -> Path:
    """Sign a file, and return the path of the bundle.

    Args:
        path: a factor file or a receipt; any file.
        private_key: PEM without a password, on P-256, P-384 or P-521.
        to: the bundle's path; the file's with `.sig` by default.

    Raises:
        InvalidParameter: the key's file holds no such key.
        MissingExtra: the extra `signing` is not installed.
        OSError: a file cannot be read or written.
    """
    path = local_path(path)
    check_is_regular(path)
    target = Path(f"{path}.sig" if to is None else to)
    path.open("rb").close()
    write = signer(private_key)
    with write_whole(target) as part:
        write(path, part)
    return target


def signer(private_key: str | Path) -> Callable[[Path, Path], object]:
    """Return what signs a file and writes the bundle; the key is read here, once, and may come through a pipe.

    Raises:
        InvalidParameter, MissingExtra, OSError: see `sign`.
    """
    with extras_named("a signature"):
        from model_signing import signing
    config = signing.Config()
    _take(config.use_elliptic_key_signer, "private_key", private_key)
    return config.sign


def sign_statement(statement: Mapping[str, object], *, private_key: str | Path, to: str | Path) -> Path:
    """Sign an in-toto statement, and return the path of the bundle, which holds it: DSSE in a Sigstore bundle.

    Args:
        statement: plain data, whose canonical JSON is signed.
        private_key: a key as for `sign`.
        to: the bundle's path.

    Raises:
        InvalidParameter: see `sign`.
        MissingExtra: the extra `signing` is not installed.
        OSError: a file cannot be read or written.

    Reference:
        DSSE 1.0 (secure-systems-lab/dsse), in-toto attestations 1.0, Sigstore bundle 0.3.
    """
    with extras_named("a signature"):
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

    digests = {ec.SECP256R1: hashes.SHA256(), ec.SECP384R1: hashes.SHA384(), ec.SECP521R1: hashes.SHA512()}

    def elliptic_key(private_key: Path) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(read_whole(private_key), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or type(key.curve) not in digests:
            raise TypeError(key)
        return key

    key = _take(elliptic_key, "private_key", private_key)
    payload = canonical_json(statement)
    signed = b"DSSEv1 %d %s %d %s" % (len(_IN_TOTO), _IN_TOTO.encode(), len(payload), payload)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": _IN_TOTO,
        "signatures": [
            {"sig": base64.b64encode(key.sign(signed, ec.ECDSA(digests[type(key.curve)]))).decode(), "keyid": ""}
        ],
    }
    material = {"publicKey": {"hint": sha256(public)}, "tlogEntries": []}
    with write_whole(Path(to)) as part:
        part.write_bytes(
            canonical_json({"mediaType": _BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope})
        )
    return Path(to)


def check_signature(path: str | Path, signature: str | Path | None, public_key: str | Path | None) -> Signature | None:
    """Verify that the owner of a key has signed a file; return None where neither signature nor key is given.

    Args:
        path: path of the file.
        signature: path of the bundle.
        public_key: PEM, on P-256, P-384 or P-521.

    Raises:
        BadSignature: the signature is damaged, of other bytes, or of another key.
        InvalidParameter: the key's file holds no such key, or one of the two is missing.
        MissingExtra: the extra `signing` is not installed.
        OSError: a file cannot be read.
    """
    if signature is None or public_key is None:
        if signature is public_key:
            return None
        missing = "public_key" if public_key is None else "signature"
        raise InvalidParameter(f"a signature and a public key go together; give {missing}, too", field=missing)
    with extras_named("a signature"):
        from model_signing import verifying  # comes first, so that this package is the one that an error names

    from cryptography.exceptions import InvalidSignature

    path, signature = local_path(path), local_path(signature)
    check_is_regular(path)
    check_is_regular(signature)
    config = verifying.Config()
    _take(config.use_elliptic_key_verifier, "public_key", public_key)
    key, signed = _name(signature)
    with path.open("rb") as file:
        held = hashlib.file_digest(file, "sha256").hexdigest()
    if signed != [("sha256", held)]:
        raise BadSignature(f"{signature} signs another file than {path}, which hashes to {held}; get its own")
    try:
        config.verify(path, signature)
    except (ValueError, TypeError, LookupError, AttributeError, InvalidSignature):
        raise BadSignature(
            f"{signature}, which names the key sha256:{key}, was not made with {public_key} or was changed since; "
            "check the key, or get the signature again"
        ) from None
    return Signature(str(signature), key, held)


def _take(use: Any, name: str, path: str | Path) -> Any:
    """Return what a function makes of a key's file; the errors for a wrong key come from five libraries."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return use(**{name: local_path(path)})
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        kind = name.replace("_", " ")
        raise InvalidParameter(
            f"{path} does not contain a usable {kind}; give a PEM file with a key {_CURVES}, without a password",
            field=name,
        ) from None


def _name(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return the key and the digests that a bundle names, before any verification."""
    with path.open("rb") as file:
        text = file.read(_MAX_BUNDLE_BYTES + 1)
    try:
        bundle: Any = read_json(text, limit=_MAX_BUNDLE_BYTES)
        key = bundle["verificationMaterial"]["publicKey"]["hint"]
        statement: Any = read_json(base64.b64decode(bundle["dsseEnvelope"]["payload"], validate=True))
        signed = [(entry["algorithm"], entry["digest"]) for entry in statement["predicate"]["resources"]]
    except (MalformedJson, ValueError, KeyError, TypeError, AttributeError):
        message = f"{path} is damaged, or is not an OpenSSF Model Signing bundle signed with a key; get it again"
        raise BadSignature(message) from None
    return str(key)[:64], signed
