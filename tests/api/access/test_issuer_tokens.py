"""Tokens of an issuer with a real key set on loopback: those that are taken, and every way to make one that is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from issuer_server import AUDIENCE, NAME, IssuerServer, issuing, private_key, public_jwk, token

from factorize.api.access.caller import Quotas, Scope
from factorize.api.access.issuer_keys import (
    LARGEST_BYTES,
    MOST_KEYS,
    PAUSE_SECONDS,
    STALE_SECONDS,
    IssuerKeys,
    keys_in,
)
from factorize.api.access.issuer_tokens import IssuerTokens
from factorize.api.access.refusals import AccessRefused
from factorize.errors import ServiceUnreachable

HOUR = 3600


@pytest.fixture(scope="module")
def served() -> Iterator[IssuerServer]:
    with issuing() as served:
        yield served


@pytest.fixture(scope="module")
def tokens(served: IssuerServer) -> IssuerTokens:
    return IssuerTokens([served.issuer(open_jobs=3, leeway_seconds=300)])


def now() -> int:
    return int(time.time())


def test_a_token_is_a_caller_with_the_scopes_of_its_claims(tokens: IssuerTokens) -> None:
    ada = tokens.caller(token())
    assert ada.scopes == {Scope.READ} and ada.quotas == Quotas(open_jobs=3)
    assert ada.owner.startswith("oidc:") and "ada" not in ada.owner
    assert tokens.caller(token("ec", aud=["other", AUDIENCE])) == ada
    assert tokens.caller(token(sub="bob")).owner != ada.owner
    assert tokens.caller(token(scope=["mf.write", "mf.read", 5])).scopes == {Scope.READ, Scope.SUBMIT, Scope.UPLOAD}
    for nothing in ("admin", "read", "", None, 7, {"mf.read": True}):
        assert tokens.caller(token(scope=nothing)).scopes == frozenset()


def test_clocks_may_differ_by_the_leeway(tokens: IssuerTokens) -> None:
    owner = tokens.caller(token()).owner
    for claims in ({"exp": now() - 5, "iat": now() - 60}, {"iat": now() + 15}, {"nbf": now() + 15}):
        assert tokens.caller(token(**claims)).owner == owner
    for claims in ({"exp": now() - HOUR, "iat": now() - 2 * HOUR}, {"iat": now() + HOUR}, {"nbf": now() + HOUR}):
        with pytest.raises(AccessRefused, match="has ended, or is not good yet"):
            tokens.caller(token(**({"exp": now() + 2 * HOUR} | claims)))


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example/"},
        {"iss": NAME.rstrip("/")},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"aud": []},
        {"sub": None},
        {"sub": ""},
        {"sub": "a" * 300},
        {"exp": None},
        {"iat": None},
        {"exp": "soon"},
        {"exp": 4_000_000_000},
    ],
    ids=str,
)
def test_claims_that_are_not_taken(tokens: IssuerTokens, claims: dict[str, Any]) -> None:
    with pytest.raises(AccessRefused, match="neither a key of this service nor a valid token"):
        tokens.caller(token(**claims))


def part(document: object) -> str:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def forged(header: object, text: str | None = None, signature: str = "") -> str:
    return f"{part(header)}.{(text or token()).split('.')[1]}.{signature}"


def mixed_up() -> str:
    """Signed by the public key of the issuer as if it were a shared secret."""
    public = private_key("rsa").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header, claims = part({"alg": "HS256", "kid": "rsa", "typ": "JWT"}), token().split(".")[1]
    signature = hmac.new(public, f"{header}.{claims}".encode(), hashlib.sha256).digest()
    return f"{header}.{claims}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


FORGED = {
    "alg none": lambda: forged({"alg": "none", "kid": "rsa"}),
    "alg None": lambda: forged({"alg": "None", "kid": "rsa"}),
    "alg a list": lambda: forged({"alg": ["RS256"], "kid": "rsa"}),
    "no alg": lambda: forged({"kid": "rsa"}),
    "no signature": lambda: forged({"alg": "RS256", "kid": "rsa"}),
    "a shared secret": mixed_up,
    "an algorithm that is not allowed": lambda: token(algorithm="RS512"),
    "another key": lambda: token("rsa-other", headers={"kid": "rsa"}),
    "the key of another algorithm": lambda: token("ec", headers={"kid": "rsa"}),
    "no kid": lambda: token(headers={"kid": None}),
    "a kid of nobody": lambda: token(headers={"kid": "rsa2"}),
    "a kid that is a path": lambda: token(headers={"kid": "../../../../dev/null"}),
    "a kid that is a query": lambda: token(headers={"kid": "' union select 'a"}),
    "a kid that is an address": lambda: token(headers={"kid": "http://127.0.0.1:9/jwks"}),
    "a kid that is a number": lambda: forged({"alg": "RS256", "kid": 7}),
    "a key of its own": lambda: token("rsa-other", headers={"kid": "rsa", "jwk": public_jwk("rsa-other")}),
    "an address of its own": lambda: token("rsa-other", headers={"kid": "rsa", "jku": "http://127.0.0.1:9/jwks"}),
    "something critical": lambda: token(headers={"crit": ["exp"]}),
    "changed claims": lambda: forged({"alg": "RS256", "kid": "rsa"}, token(scope="mf.write"), token().split(".")[2]),
    "cut": lambda: token()[:-5],
    "two parts": lambda: token().rpartition(".")[0],
    "four parts": lambda: token() + ".x",
    "no base64": lambda: "é.é.é",
    "no JSON": lambda: f"{part(b'{')}.{part(b'{')}.x",
    "no object": lambda: f"{part([])}.{part(7)}.x",
    "deep": lambda: f"{part(b'[' * 3000)}.{part(b'[' * 3000)}.x",
    "a field twice": lambda: part(b'{"alg":"RS256","alg":"none"}') + "." + token().split(".", 1)[1],
    "too long": lambda: token(more="a" * 9000),
    "empty": lambda: "",
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_tokens_are_refused_and_not_repeated(tokens: IssuerTokens, kind: str) -> None:
    text = FORGED[kind]()
    with pytest.raises(AccessRefused) as refused:
        tokens.caller(text)
    assert refused.value.problem == "unauthorized"
    assert not any(piece in str(refused.value) for piece in text.split(".") if len(piece) > 8)


def test_a_caller_ends_with_the_token(tokens: IssuerTokens) -> None:
    ends = int(time.time()) + 200
    assert tokens.caller(token(exp=ends)).ends == ends


def test_no_token_has_another_address_asked(served: IssuerServer, tokens: IssuerTokens) -> None:
    for kind in FORGED:
        with pytest.raises(AccessRefused):
            tokens.caller(FORGED[kind]())
    assert set(served.asked) == {"/jwks?v=1"}


# The key set


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_set_is_asked_for_seldom_and_its_keys_stay_good_for_a_while() -> None:
    clock = Clock()
    with issuing() as served:
        keys = IssuerKeys(f"{served.url}/jwks", clock)
        assert keys.find("rsa", "RS256") is not None and len(served.asked) == 1
        for name in range(100):  # names of nobody do not have the issuer asked each time
            assert keys.find(f"kid-{name}", "RS256") is None
        assert len(served.asked) == 1
        served.keys = [public_jwk("rsa-other")]
        clock.now += PAUSE_SECONDS
        assert keys.find("rsa-other", "RS256") is not None and keys.find("rsa", "RS256") is None
        assert len(served.asked) == 2
        served.answer = 500, {}, b"{}"
        clock.now += STALE_SECONDS - 1
        assert keys.find("rsa-other", "RS256") is not None  # the issuer is away for less than an hour
        clock.now += PAUSE_SECONDS + 1
        with pytest.raises(ServiceUnreachable, match="does not give its keys"):
            keys.find("rsa-other", "RS256")
        served.answer = None
        clock.now += PAUSE_SECONDS
        assert keys.find("rsa-other", "RS256") is not None


@pytest.mark.parametrize(
    "answer",
    [
        (302, {"Location": "http://127.0.0.1:9/jwks"}, b""),
        (307, {"Location": "/elsewhere"}, b""),
        (404, {}, b"{}"),
        (200, {}, b"{"),
        (200, {}, b'{"keys": [' + b" " * LARGEST_BYTES + b"]}"),
        (200, {"Content-Length": "1000000000"}, b"{"),
    ],
    ids=["another host", "another path", "status", "no JSON", "too large", "cut"],
)
def test_a_key_set_that_is_not_taken(answer: tuple[int, dict[str, str], bytes]) -> None:
    with issuing() as served:
        served.answer = answer
        with pytest.raises(ServiceUnreachable):
            IssuerKeys(f"{served.url}/jwks").find("rsa", "RS256")
        assert served.asked == ["/jwks"]


def test_keys_that_do_not_verify() -> None:
    secret = {"kty": "oct", "kid": "secret", "k": part(b"s" * 32)}
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private_key("rsa"))) | {"kid": "private"}
    others = [public_jwk("rsa", f"key-{at}") for at in range(MOST_KEYS)]
    wrong = [secret, private, {**public_jwk("rsa", "enc"), "use": "enc"}, {"kty": "RSA", "kid": ["a"]}, 7]
    assert keys_in(json.dumps({"keys": wrong}).encode()) == {}
    assert len(keys_in(json.dumps({"keys": [*others, public_jwk("rsa", "late")]}).encode())) == MOST_KEYS
    for document in (b"[]", b"7", b'{"keys": 7}', b"{}"):
        assert keys_in(document) == {}
    with issuing() as served:
        served.keys = [
            public_jwk("rsa-short"),
            {**public_jwk("rsa", "other"), "alg": "RS384"},
            {"kty": "EC", "kid": "e"},
        ]
        keys = IssuerKeys(f"{served.url}/jwks")
        assert keys.find("rsa-short", "RS256") is None and keys.find("other", "RS256") is None
        assert keys.find("e", "ES256") is None and keys.find("other", "RS384") is not None
