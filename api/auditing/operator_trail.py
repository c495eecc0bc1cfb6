"""The operator trail: what commands do to a store or its keys, as lines of the same audit log as the service's."""

from __future__ import annotations

import getpass
from typing import Any

from factorize.api.auditing.audit_log import AuditLog
from factorize.api.settings import audit_folder, load_settings


def audited(event: str, subject: str, *, store: str | None, **detail: Any) -> None:
    """Write down what a command has done.

    Args:
        event: `revocation`, `deletion`, `key created`, `key rotated` or `key revoked`.
        subject: digest of the result, or id of the key.
        store: URL of the store as the command was given it; the setting by default.
        detail: numbers and names; never a secret.

    Raises:
        StoreUnavailable: the line cannot be written.
    """
    log = AuditLog(audit_folder(load_settings(store=store)))
    log.add(event, actor=f"operator:{_user()}", subject=subject, detail=detail)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        return "unknown"
