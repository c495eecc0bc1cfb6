"""Kernels: functions that are compiled on their first call. numba, which is heavy, is imported then and not before.

Modules of kernels are imported at the top of others like any module. Where numba is absent, as in a training image, a
kernel is the function as it is written.
"""

import threading
from collections.abc import Callable
from functools import cached_property, update_wrapper
from importlib.util import find_spec
from typing import Any, TypeVar, cast

Value = TypeVar("Value", int, bool)

HAS_COMPILER = find_spec("numba") is not None
_LOCK = threading.RLock()
"""Two threads that import numba at once wait for each other for ever."""


class Kernel:
    """A function whose compiled form is made when it is called, or when a kernel that calls it is compiled.

    Args:
        function: of Python.
        compiled: from the function to what numba calls.
    """

    def __init__(self, function: Callable[..., object], compiled: Callable[[Callable[..., object]], object]) -> None:
        update_wrapper(self, function)
        self._function, self._compiled = function, compiled

    @cached_property
    def dispatcher(self) -> Any:
        """What numba made of the function."""
        with _LOCK:
            return self._compiled(self._function) if HAS_COMPILER else self._function

    def __call__(self, *arguments: object) -> object:
        """Return what the function returns."""
        return self.dispatcher(*arguments)

    @cached_property
    def _numba_type_(self) -> object:
        """The compiler's type, which it asks for in kernels that call this one."""
        from numba.core.registry import cpu_target

        made = self.dispatcher
        for context in (cpu_target.typing_context, cpu_target.target_context):
            context.refresh()  # to find what was registered meanwhile
        return cpu_target.typing_context.resolve_value_type(made)

    def __getattr__(self, name: str) -> object:
        """Return what the compiler asks of a dispatcher: options, the function of Python."""
        if name.startswith("__") or "_compiled" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


def kernel(**options: object) -> Any:
    """Return a decorator: compile a function on its first call, with numba's options, and keep it on disk."""

    def compiled(function: Callable[..., object]) -> object:
        from factorize.numbers.kernel_compiler import compile_late

        return compile_late(function, **options)

    return lambda function: Kernel(function, compiled)


def part(**options: object) -> Any:
    """Return a decorator: compile a function that kernels alone call; Python cannot call it."""
    return kernel(no_cpython_wrapper=True, **options)


def _plain(_function: object) -> object:
    from factorize.numbers import kernel_compiler

    return kernel_compiler.plain


def _same(value: Value) -> Value:
    return value


plain = cast(Callable[[Value], Value], Kernel(_same, _plain))
"""The same number, of which the compiler's types do not know that it is a constant."""
