"""Certificates of an authority of a test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Signer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def certificate(folder: Path, name: str, signer: Signer | None = None) -> Signer:
    """Write NAME.crt and NAME.key, of this machine, signed by the signer or by itself; what signs others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer[0].subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(signer[1] if signer else key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / f"{name}.crt").write_bytes(built.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return built, key


def authority_with(folder: Path, member: str) -> tuple[Path, Path, Path]:
    """Return the files of an authority's certificate, and of a member's certificate and key."""
    certificate(folder, member, certificate(folder, "authority"))
    return folder / "authority.crt", folder / f"{member}.crt", folder / f"{member}.key"
