"""The programs that XLA has compiled for the tests, which their processes share in one folder."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache


def test_an_entry_that_another_process_is_writing_is_compiled_again(tmp_path: Path) -> None:
    """JAX writes entries in place, so a process may read a part of one; it warns then, and every warning is an error."""
    kept = jax.config.jax_compilation_cache_dir
    try:
        for torn in (False, True):
            jax.config.update("jax_compilation_cache_dir", str(tmp_path))
            compilation_cache.reset_cache()
            jax.clear_caches()
            entries = list(tmp_path.glob("*-cache"))
            assert bool(entries) is torn
            for entry in entries:
                entry.write_bytes(entry.read_bytes()[:50])
            assert np.asarray(jax.jit(lambda x: 3 * x + 1)(np.arange(4.0))).tolist() == [1, 4, 7, 10]
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)
        compilation_cache.reset_cache()
