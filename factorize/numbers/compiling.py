"""Kernels: functions that are compiled on their first call. The heavy import of numba waits for that call.

Other modules import kernels at the top like any module. Where numba is absent, as in a training image, a kernel is the
plain Python function.
"""

import threading
from collections.abc import Callable
from functools import cached_property, update_wrapper
from importlib.util import find_spec
from typing import Any, TypeVar, cast

Value = TypeVar("Value", int, bool)

HAS_COMPILER = find_spec("numba") is not None
_LOCK = threading.RLock()
"""The lock around the import of numba: two threads that import it at once wait for each other for ever."""


class Kernel:
    """A function that is compiled when it is first called, or when a kernel that calls it is compiled.

    Args:
        function: the Python function.
        compiled: returns numba's form of the function.
    """

    def __init__(self, function: Callable[..., object], compiled: Callable[[Callable[..., object]], object]) -> None:
        update_wrapper(self, function)
        self._function, self._compiled = function, compiled

    @cached_property
    def dispatcher(self) -> Any:
        """The dispatcher that numba made of the function."""
        with _LOCK:
            return self._compiled(self._function) if HAS_COMPILER else self._function

    def __call__(self, *arguments: object) -> object:
        """Call the function and return its result."""
        return self.dispatcher(*arguments)

    @cached_property
    def _numba_type_(self) -> object:
        """The type by which numba compiles kernels that call this one."""
        from numba.core.registry import cpu_target

        made = self.dispatcher
        for context in (cpu_target.typing_context, cpu_target.target_context):
            context.refresh()  # This finds functions registered meanwhile.
        return cpu_target.typing_context.resolve_value_type(made)

    def __getattr__(self, name: str) -> object:
        """Return an attribute that the compiler reads from a dispatcher: options, or the Python function."""
        if name.startswith("__") or "_compiled" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


def kernel(**options: object) -> Any:
    """Return a decorator that compiles a function on its first call, with numba's options, and keeps it on disk."""

    def compiled(function: Callable[..., object]) -> object:
        from factorize.numbers.kernel_compiler import compile_late

        return compile_late(function, **options)

    return lambda function: Kernel(function, compiled)


def part(**options: object) -> Any:
    """Return a decorator that compiles a function for kernels alone, which Python cannot call."""
    return kernel(no_cpython_wrapper=True, **options)


def _plain(_function: object) -> object:
    from factorize.numbers import kernel_compiler

    return kernel_compiler.plain


def _same(value: Value) -> Value:
    return value


plain = cast(Callable[[Value], Value], Kernel(_same, _plain))
"""The function that returns its number and hides from the compiler's types that it is a constant."""
