"""The list of a service: a caller's jobs, and stored results that no job of it has made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from factorize.api.access.caller import ANYONE, Caller
from factorize.api.jobs.job import Job
from factorize.api.jobs.ledger import Ledger, read_cursor, write_cursor
from factorize.encoding import DIGEST
from factorize.format.labels import describe_spec
from factorize.storage.store import Store

_STORE_CURSOR = re.compile(f"store:({DIGEST})?")


class Listing:
    """Pages of what a ledger and a store hold.

    Args:
        store: with the results.
        ledger: with the jobs.
    """

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger

    def page(
        self, *, state: str | None, workload: str | None, cursor: str | None, limit: int, caller: Caller = ANYONE
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return one page and the cursor of the next: jobs, newest first, then stored results that no job has made.

        Raises:
            InvalidParameter: unknown state, a cursor that is not ours, or a limit out of range.
        """
        items: list[dict[str, Any]] = []
        if cursor is None or not _STORE_CURSOR.fullmatch(cursor):
            items, following = self._jobs(state, workload, cursor, limit, caller)
            if following is not None:
                return items, following
            cursor = "store:"
        if state not in (None, "done"):
            return items, None
        after = cursor.removeprefix("store:") or None
        for document in self._made_elsewhere(self._store.items(workload=workload, after=after)):
            if len(items) == limit:
                return items, f"store:{after or ''}"
            items.append(document)
            after = document["digest"]
        return items, None

    def newest(
        self, *, state: str | None, workload: str | None, cursor: str | None, limit: int, caller: Caller = ANYONE
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return one page of the same, jobs and other results among each other, the newest first.

        Raises:
            InvalidParameter: as `page`.
        """
        items, following = self._jobs(state, workload, cursor, limit, caller)
        if state in (None, "done"):
            before = None if cursor is None else read_cursor(cursor)
            items += _newest_of(self._made_elsewhere(self._store.newest(workload=workload)), before, limit)
        items.sort(key=_age, reverse=True)
        more = following is not None or len(items) > limit
        return items[:limit], write_cursor(*_age(items[limit - 1])) if more else None

    def _jobs(
        self, state: str | None, workload: str | None, cursor: str | None, limit: int, caller: Caller
    ) -> tuple[list[dict[str, Any]], str | None]:
        holder = None if caller.sees_all else caller.owner
        jobs, following = self._ledger.page(state=state, workload=workload, cursor=cursor, limit=limit, holder=holder)
        return [_entry_of_job(job) for job in jobs], following

    def _made_elsewhere(self, manifests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for manifest in manifests:
            spec_digest, digest = manifest["spec_digest"], manifest["digest"]
            if self._store.digest_of(spec_digest) == digest and self._ledger.get(spec_digest) is None:
                yield {
                    "spec_digest": spec_digest,
                    "state": "done",
                    "progress": None,
                    "error": None,
                    "submitted": manifest["created"],
                    "updated": manifest["created"],
                    "workload": manifest["spec"]["workload"]["kind"],
                    "digest": digest,
                    "summary": describe_spec(manifest["spec"]),
                }


def _entry_of_job(job: Job) -> dict[str, Any]:
    """Return a job's entry: its document, its spec in one line, its workload, the digest of its result."""
    summary = describe_spec(json.loads(job.spec))
    return {**job.document(), "workload": job.workload, "digest": job.digest, "summary": summary}


def _age(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return what entries are sorted by: when they were submitted, to the microsecond, and their spec."""
    time = datetime.fromisoformat(item["submitted"]).astimezone(UTC)
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z"), item["spec_digest"]


def _newest_of(items: Iterator[dict[str, Any]], before: tuple[str, str] | None, limit: int) -> Iterator[dict[str, Any]]:
    """Yield one more than `limit` of the items that are older than an age, and all that are as old as the last."""
    last, count = "", 0
    for item in items:
        age = _age(item)
        if count > limit and age[0] != last:
            return
        if before is None or age < before:
            last, count = age[0], count + 1
            yield item
