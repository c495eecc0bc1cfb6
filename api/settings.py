"""The service's settings: defaults, one TOML file, `FACTORIZE_*` variables, and what the caller gives; later wins."""

import os
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from factorize.client.connection import is_loopback
from factorize.errors import InvalidParameter
from factorize.format.container import local_path
from factorize.plain_data import describe_violation
from factorize.storage.medium.location import LEDGER_FILE, directory_of, in_bucket

CONFIG_VARIABLE = "FACTORIZE_CONFIG"
CONFIG_FILE = "factorize.toml"
PREFIX = "FACTORIZE_"
OTHER_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in ("CACHE", "CONFIG", "KEY", "KEY_FILE", "METRICS_KEY", "MIRROR", "MIRROR_KEY", "SERVICE")
)
"""Variables that are no settings: those of clients, of the file, and of the composed Prometheus."""
DAY = 86_400.0
PATH_PREFIX = "(?:/[A-Za-z0-9._~-]+)*"
"""Paths that a proxy may put before those of the service."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures that a token of an issuer may have; those with a shared secret, and none at all, are not among them."""
Bytes = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Text = Annotated[str, Field(min_length=1, max_length=2048)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class NoOwnStore(InvalidParameter):
    """Nobody named a store, and the user's own folder for results cannot be used."""


def default_store() -> str:
    """Return the folder for results: `factorize` in the user's data folder (XDG_DATA_HOME, ~/.local/share).

    Raises:
        NoOwnStore: the account has no home folder.
    """
    home, named = Path(os.path.expanduser("~")), os.environ.get("XDG_DATA_HOME", "")
    has_own = os.path.isabs(named)  # XDG has programs ignore a relative path.
    if not (has_own or home.is_absolute()):
        raise NoOwnStore(
            "this account has no home folder for results; name a store with --store or FACTORIZE_STORE", field="store"
        )
    return str((Path(named) if has_own else home / ".local" / "share") / "factorize")


class Issuer(BaseModel):
    """An OpenID Connect issuer whose tokens are taken beside keys.

    Attributes:
        issuer: what a token's `iss` has to be.
        audience: what its `aud` has to hold.
        jwks_url: address of the issuer's public keys, https:// or on loopback.
        algorithms: signatures that are taken.
        scopes_claim: claim that holds words: a text with spaces, or a list of texts.
        scopes: the scopes that each such word gives; words that are not here give none.
        leeway_seconds: seconds that the clocks of issuer and service may be apart.
        longest_seconds: the most seconds from a token's `iat` to its `exp`; one that is good for longer is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Text
    audience: Text
    jwks_url: Text
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    scopes_claim: Annotated[str, Field(min_length=1, max_length=256)] = "scope"
    scopes: dict[str, tuple[Literal["read", "submit", "upload", "monitor", "admin"], ...]]
    leeway_seconds: Annotated[int, Field(ge=0, le=300)] = 30
    longest_seconds: Annotated[int, Field(ge=1)] = 86_400

    @field_validator("jwks_url")
    @classmethod
    def _not_in_the_clear(cls, url: str) -> str:
        parts = urlsplit(url)
        plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if (parts.scheme == "https" or plain) and parts.hostname and not parts.username and not parts.fragment:
            return url
        raise ValueError(
            f"jwks_url {url[:80]!r} must be https://HOST/... without a user, so that nobody can change keys"
        )


class Settings(BaseSettings):
    """The settings of a service: where things are, and how much of them there may be."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    store: str = Field(default_factory=default_store)
    """URL or path of the store; by default `factorize` in the user's data folder."""
    database: str | None = None
    """SQLAlchemy URL of the job ledger; by default an SQLite file in the store's directory."""
    audit_requests: bool = False
    """Write every answered request into the audit log, reads too; else changes and refusals alone."""
    scheduler: str | None = None
    """Address of a dask scheduler; by default solves run in workers on this machine."""
    tls_ca: str | None = None
    """Certificate of the authority by which scheduler, workers and services know each other (PEM)."""
    tls_cert: str | None = None
    """This process's own certificate."""
    tls_key: str | None = None
    """Its private key."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """Port to listen on; 0 takes a free one."""
    root_path: Annotated[str, Field(max_length=200, pattern=f"^{PATH_PREFIX}$")] = ""
    """Path below which a proxy shows the service, `/factorize` say; a trusted proxy may say it in X-Forwarded-Prefix
    instead. The proxy may pass it on in addresses or cut it off."""
    require_keys: bool | None = None
    """Ask every caller for a key (docs/security.md); by default where other machines reach the service."""
    key_routes: bool = True
    """Where keys are asked for, callers with the scope admin look after keys over HTTP and on the page; if false,
    `factorize keys` alone does, on the machine of the service."""
    https_certificate: str | None = None
    """PEM file of the service's own certificate, with which it speaks HTTPS."""
    https_key: str | None = None
    """PEM file of its private key."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks of the proxies that requests come through. The service answers them and its own machine,
    and asks for keys."""
    issuers: tuple[Issuer, ...] = ()
    """Who else says who a caller is (OpenID Connect), each an `Issuer`; callers are asked for keys then."""
    open_jobs: Count | None = None
    """Quota of each caller whose key has none: jobs queued or running."""
    core_seconds_per_day: Count | None = None
    """Quota of each such caller: processor seconds in one day (UTC)."""
    kept_bytes: Count | None = None
    """Quota of each such caller: bytes of results and of new uploads."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides the loopback ones, that a request's Host may carry."""
    capacity_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory for all running solves, in units of 2^20 bytes; by default 80 % of the machine's."""
    processors: Annotated[int, Field(ge=1)] | None = None
    """Threads for all running solves; by default all."""
    max_solve_seconds: Seconds = DAY
    """Largest wall limit; a spec whose estimate is above it is refused."""
    max_upload_bytes: Bytes = 64 << 20
    """Largest matrix upload."""
    cache_bytes: Bytes = 512 << 20
    """Memory for verified pieces of files, as much again for factorizations whose rows are read, and half as much for
    blocks of their rows; an eighth for manifests."""
    downloads: Literal["stream", "redirect"] = "stream"
    """`stream` sends files through this service; `redirect` answers with an address at which the bucket gives them out,
    so that they do not pass through it."""
    log_format: Literal["text", "json"] = "text"
    """`json` writes the log to stderr, one JSON object a line, with the requests; `text` writes warnings."""

    @field_validator("allowed_hosts")
    @classmethod
    def _lower_case(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower() for name in names)

    @model_validator(mode="after")
    def _protect(self) -> Self:
        if (self.https_certificate is None) != (self.https_key is None):
            raise ValueError("https_certificate and https_key come together; name both files, or neither")
        for file in (self.https_certificate, self.https_key):
            if file is not None and not Path(file).is_file():
                raise ValueError(f"there is no file {file}; https_certificate and https_key name PEM files")
        if len({issuer.issuer for issuer in self.issuers}) < len(self.issuers):
            raise ValueError("issuers contains an issuer twice; name each once")
        if not is_loopback(self.host):
            self._check_remote()
        return self

    def _check_remote(self) -> None:
        if self.https_certificate is None and not self.trusted_proxies:
            raise ValueError(
                f"host {self.host} can be reached by other machines, and keys would be sent to it in the clear. Give "
                "--tls-certificate and --tls-key (https_certificate, https_key), or name the proxy in front of it in "
                "trusted_proxies; or use 127.0.0.1"
            )
        if self.require_keys is False:
            raise ValueError(
                f"host {self.host} can be reached by other machines, which need keys; leave require_keys out, or use "
                "127.0.0.1"
            )

    @cached_property
    def asks_for_keys(self) -> bool:
        """Return whether every caller needs a key: where it is said so, and where other machines reach the service."""
        if self.require_keys is not None:
            return self.require_keys
        return not is_loopback(self.host) or bool(self.trusted_proxies) or bool(self.issuers)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *_given: Any, **sources: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources by rank: what the caller gives wins over the environment, and that over the file."""
        file = TomlConfigSettingsSource(settings_cls, toml_file=config_file())
        return sources["init_settings"], sources["env_settings"], file


def ledger_url(settings: Settings) -> str | Path:
    """Return the URL of the job ledger that is set, or the path of an SQLite file in the store's directory.

    Raises:
        InvalidParameter: none is set, and the store is in a bucket, where no ledger can be.
    """
    if settings.database is not None:
        return settings.database
    if in_bucket(settings.store):
        raise InvalidParameter(
            "a bucket cannot hold the job ledger; name one with --database (FACTORIZE_DATABASE): "
            "sqlite:////path/jobs.sqlite, or postgresql+psycopg://... for several services",
            field="database",
        )
    return directory_of(settings.store) / LEDGER_FILE


def audit_url(settings: Settings) -> str | Path:
    """Return the URL of the ledger that commands write to: that of the service, else one in the user's data folder."""
    if settings.database is None and in_bucket(settings.store):
        return Path(default_store()) / LEDGER_FILE
    return ledger_url(settings)


def config_file() -> Path | None:
    """Return the TOML file to read: the one that `FACTORIZE_CONFIG` names, or `factorize.toml` in this folder.

    Raises:
        InvalidParameter: `FACTORIZE_CONFIG` names a file that does not exist.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    path = local_path(named or CONFIG_FILE)
    if named and not path.is_file():
        raise InvalidParameter(f"{CONFIG_VARIABLE} names {named}, which is not a file", field=CONFIG_VARIABLE)
    return path if path.is_file() else None


def _refuse_unknown_variables() -> None:
    """Refuse a variable that nothing reads, which may be a misspelt one that asks for keys."""
    known = OTHER_VARIABLES | {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in sorted(name for name in map(str.upper, os.environ) if name.startswith(PREFIX) and name not in known):
        raise InvalidParameter(_tell_unknown(name, known, "unset it"), field=name)


def _tell_unknown(name: str, known: Iterable[str], remedy: str) -> str:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "docs/http.md lists the settings"
    return f"there is no setting {name}; {remedy} ({hint})"


def _describe(violation: ErrorDetails) -> str:
    name = ".".join(map(str, violation["loc"]))
    if violation["type"] == "extra_forbidden" and name.isidentifier():
        return _tell_unknown(name, Settings.model_fields, f"remove it from {config_file()}")
    text = describe_violation(violation)
    return f"setting {name}: {text}" if name else text


def load_settings(**fields: Any) -> Settings:
    """Return the settings in force.

    Args:
        **fields: those that win over file and environment; None stands for not given.

    Raises:
        InvalidParameter: a field or a variable is unknown or out of range, or the file is not TOML.
    """
    _refuse_unknown_variables()
    try:
        return Settings(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise InvalidParameter("; ".join(map(_describe, error.errors(include_url=False)))) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{config_file()} is not TOML: {error}", field=CONFIG_VARIABLE) from None
