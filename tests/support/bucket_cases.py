"""Requests to a bucket that are counted, fail, lose their answer or kill the process at the k-th."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from factorize.errors import StoreUnavailable
from factorize.storage.medium.bucket import Bucket
from factorize.storage.store import Store

REQUESTS = ("create", "upload", "write", "status", "get", "read", "list", "copy", "remove")


class WatchedBucket(Bucket):
    """Calls `watch(request, count, done)` before and after each request; counts from 0."""

    def __init__(self, store: Any, watch: Callable[[str, int, bool], None] | None = None) -> None:
        super().__init__(store)
        self.calls: list[str] = []
        self.watch = watch or (lambda name, count, done: None)


def _watched(name: str) -> Callable[..., Any]:
    def call(self: WatchedBucket, *arguments: Any) -> Any:
        count = len(self.calls)
        self.calls.append(name)
        self.watch(name, count, False)
        try:
            answer = getattr(Bucket, name)(self, *arguments)
            return iter(list(answer)) if name == "list" else answer
        finally:  # an answer that nothing is there is one too
            self.watch(name, count, True)

    return call


for _name in REQUESTS:
    setattr(WatchedBucket, _name, _watched(_name))


def failing(at: int, done: bool) -> Callable[[str, int, bool], None]:
    """Fail at one request: before it is carried out, or after, so that only its answer is lost."""

    def watch(name: str, count: int, after: bool) -> None:
        if count == at and after == done:
            raise StoreUnavailable("the bucket does not answer: the wire was cut; try again")

    return watch


def killing(at: int, done: bool) -> Callable[[str, int, bool], None]:
    """Kill this process, as `kill -9` does, before one request or right after it."""

    def watch(name: str, count: int, after: bool) -> None:
        if count == at and after == done:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def store_on(bucket: Bucket, url: str = "s3://bucket") -> Store:
    """Return the store on a bucket, created if it is not there."""
    store = Store(bucket, url)
    store.check_format(create=True)
    return store
