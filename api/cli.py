"""The command line: `factorize COMMAND`, also `python -m api.cli COMMAND`.

Results go to stdout, everything else to stderr; exit codes are in `api/exits.py`. The commands are in `api/commands/`.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: by default those of the process.
    """
    try:
        # Imported here, so that Ctrl-C during the imports ends as quietly as later.
        from api.commands.app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
