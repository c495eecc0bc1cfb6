"""Tokens: what a caller sends to be known, `fk_<id>_<secret>_<checksum>` in hexadecimal digits.

The prefix and the checksum (CRC-32 of what stands before it) let scanners find leaked tokens without a service to ask.
The secret has 256 random bits, so its sha256 is kept without salt or slow hash: nobody guesses it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field

PREFIX = "fk"
PATTERN = r"fk_[0-9a-f]{12}_[0-9a-f]{64}_[0-9a-f]{8}"
"""For scanners."""
_FORM = re.compile(PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """A token, taken apart. Its text form shows the id alone.

    Args:
        id: which key it is of, 12 hexadecimal digits.
        secret: 64 hexadecimal digits.
    """

    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The token as it is sent."""
        body = f"{PREFIX}_{self.id}_{self.secret}"
        return f"{body}_{_checksum(body)}"

    @property
    def sha256(self) -> str:
        """What is stored of the secret."""
        return hashlib.sha256(self.secret.encode("ascii")).hexdigest()

    def is_of(self, sha256: str) -> bool:
        """Say, in constant time, whether a stored hash is that of this secret."""
        return hmac.compare_digest(self.sha256, sha256)


def new_token() -> Token:
    """Return a token nobody has had, of a new key."""
    return Token(secrets.token_hex(6), secrets.token_hex(32))


def read_token(text: str) -> Token | None:
    """Return a token from its text; None where the form or the checksum is wrong, as when it was cut."""
    if not _FORM.fullmatch(text):
        return None
    body, _, checksum = text.rpartition("_")
    if _checksum(body) != checksum:
        return None
    _, key_id, secret = body.split("_")
    return Token(key_id, secret)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii')):08x}"
