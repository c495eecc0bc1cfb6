"""Tokens of an issuer with a real key set on loopback: those that are taken, and every way to make one that is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from issuer_server import AUDIENCE, NAME, IssuerServer, issuing, private_key, public_jwk, token
from jwt.warnings import InsecureKeyLengthWarning

from factorize.api.access import gate
from factorize.api.access.caller import AccessRefused, Scope
from factorize.api.access.gate import IssuerTokens
from factorize.errors import ServiceUnreachable

HOUR = 3600


@pytest.fixture(scope="module")
def served() -> Iterator[IssuerServer]:
    with issuing() as served:
        yield served


@pytest.fixture(scope="module")
def tokens(served: IssuerServer) -> IssuerTokens:
    return IssuerTokens([served.issuer(leeway_seconds=300)])


def now() -> int:
    return int(time.time())


def test_a_token_is_a_caller_with_the_scopes_of_its_claims(tokens: IssuerTokens) -> None:
    ends = now() + 60
    ada = tokens.caller(token(exp=ends))
    assert ada.scopes == {Scope.READ} and ada.ends == ends
    assert ada.owner.startswith("oidc:") and "ada" not in ada.owner
    assert tokens.caller(token("ec", aud=["other", AUDIENCE], exp=ends)) == ada
    assert tokens.caller(token(sub="bob")).owner != ada.owner
    assert tokens.caller(token(scope=["mf.write", "mf.read", 5])).scopes == {Scope.READ, Scope.SUBMIT, Scope.UPLOAD}
    for nothing in ("admin", "read", "", None, 7, {"mf.read": True}):
        assert tokens.caller(token(scope=nothing)).scopes == frozenset()


def test_clocks_may_differ_by_the_leeway(tokens: IssuerTokens) -> None:
    owner = tokens.caller(token()).owner
    for claims in ({"exp": now() - 5, "iat": now() - 60}, {"iat": now() + 15}, {"nbf": now() + 15}):
        assert tokens.caller(token(**claims)).owner == owner
    for claims in ({"exp": now() - HOUR, "iat": now() - 2 * HOUR}, {"iat": now() + HOUR}, {"nbf": now() + HOUR}):
        with pytest.raises(AccessRefused, match="has expired or is not valid yet"):
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
def test_forged_tokens_are_refused_and_not_repeated(served: IssuerServer, tokens: IssuerTokens, kind: str) -> None:
    """And none of them has another address asked."""
    text = FORGED[kind]()
    with pytest.raises(AccessRefused) as refused:
        tokens.caller(text)
    assert refused.value.problem == "unauthorized"
    assert not any(piece in str(refused.value) for piece in text.split(".") if len(piece) > 8)
    assert set(served.asked) <= {"/jwks?v=1"}


# The key set


def refused(tokens: IssuerTokens, text: str) -> bool:
    try:
        tokens.caller(text)
    except AccessRefused:
        return True
    return False


def test_a_key_set_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    for module in ("jwks_client", "jwk_set_cache", "api_jwk"):  # event loops of other tests go by the real clock
        monkeypatch.setattr(f"jwt.{module}.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with issuing() as served:
        tokens = IssuerTokens([served.issuer()])
        assert not refused(tokens, token())
        for name in range(100):  # names of nobody do not have the issuer asked each time
            assert refused(tokens, token(headers={"kid": f"kid-{name}"}))
        assert len(served.asked) == 1
        served.keys = [public_jwk("rsa-other")]
        assert refused(tokens, token("rsa-other"))
        clock[0] += 31.0
        assert not refused(tokens, token("rsa-other")) and len(served.asked) == 2
        assert refused(tokens, token()), "the issuer has taken its key back"
        served.answer = 500, {}, b"{}"
        clock[0] += gate.ISSUER_SECONDS - 1
        assert not refused(tokens, token("rsa-other")), "the issuer is away for less than ten minutes"
        clock[0] += 2
        with pytest.raises(ServiceUnreachable, match="cannot be asked for its keys"):
            tokens.caller(token("rsa-other"))
        served.answer = None
        assert not refused(tokens, token("rsa-other"))


@pytest.mark.parametrize(
    "answer",
    [
        (302, {"Location": "http://127.0.0.1:9/jwks"}, b""),
        (307, {"Location": "/elsewhere"}, b""),
        (404, {}, b"{}"),
        (200, {}, b"{"),
        (200, {}, b"{}"),
        (200, {}, b"[]"),
        (200, {"Content-Length": "1000000000"}, b"{"),
    ],
    ids=["another host", "another path", "status", "no JSON", "no keys", "no key set", "cut"],
)
def test_a_key_set_that_is_not_taken(answer: tuple[int, dict[str, str], bytes]) -> None:
    with issuing() as served:
        served.answer = answer
        with pytest.raises((ServiceUnreachable, AccessRefused)):
            IssuerTokens([served.issuer()]).caller(token())
        assert served.asked == ["/jwks?v=1"]


def test_an_issuer_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "WAIT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, issuing() as served:
        silent_at = served.issuer(jwks_url=f"http://127.0.0.1:{silent.getsockname()[1]}/jwks")
        with pytest.raises(ServiceUnreachable):
            IssuerTokens([silent_at]).caller(token())


def test_keys_that_do_not_verify() -> None:
    with issuing() as served:
        served.keys = [
            {"kty": "oct", "kid": "rsa", "k": part(b"s" * 32)},
            {**public_jwk("rsa", "enc"), "use": "enc"},
            public_jwk("rsa-short"),
            {"kty": "EC", "kid": "e"},
            {"kty": "RSA", "kid": ["a"]},
            public_jwk("ec"),
        ]
        tokens = IssuerTokens([served.issuer(algorithms=["RS256", "RS512", "ES256"])])
        with pytest.warns(InsecureKeyLengthWarning):
            weak = token("rsa-short")
        for text in (token(), token(headers={"kid": "enc"}), weak, token("ec", headers={"kid": "e"})):
            assert refused(tokens, text)
        assert not refused(tokens, token("ec"))
        served.keys = [public_jwk("rsa")]  # one key, without `alg`, for every algorithm that the settings name
        tokens = IssuerTokens([served.issuer(algorithms=["RS256", "RS512"])])
        assert not refused(tokens, token(algorithm="RS512")) and not refused(tokens, token())
