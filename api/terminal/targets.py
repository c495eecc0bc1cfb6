"""Targets: files that commands and calls are asked to write, whole or not at all.

It needs no package of an extra, since calls of Python write files too.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from factorize.errors import InvalidParameter
from factorize.format import files
from factorize.format.container import local_path


def check_target(path: Path | None) -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold.

    Raises:
        InvalidParameter: it is a folder or a device, or there is no folder for it in which files can be made.
    """
    if path is None:
        return
    path = local_path(path)
    files.check_is_file(path)
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidParameter(f"{path} cannot be written: there is no folder {folder}; make it first", field="to")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidParameter(f"{path} cannot be written: you may not write to the folder {folder}", field="to")


def write_whole(path: Path) -> AbstractContextManager[Path]:
    """Give a name beside `path` to write to, and rename it when the block has ended well.

    Raises:
        InvalidParameter: see `check_target`.
    """
    check_target(path)
    return files.write_whole(path)
