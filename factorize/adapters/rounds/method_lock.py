"""A lock of methods: those of one object wait for each other, whichever threads call them."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Protocol, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., object])


class Locked(Protocol):
    """An object with a lock of its own."""

    _lock: RLock


def one_at_a_time(method: Method) -> Method:
    """Return a method that waits until no other thread is in such a method of the same object."""

    @wraps(method)
    def wait(self: Locked, *given: object, **named: object) -> object:
        with self._lock:
            return method(self, *given, **named)

    return cast(Method, wait)
