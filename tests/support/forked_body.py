"""A module that the nursery can run: the lines that come as the store, with the stdin that a child has otherwise."""

from __future__ import annotations

import io
import json
import sys


def main() -> int:
    asked = json.loads(sys.stdin.readline())
    lines, asked["store"] = asked["store"], "file:///a store"
    sys.stdin = io.StringIO(json.dumps(asked))
    exec(compile(lines, "body", "exec"), {"__name__": "body"})
    return 0


if __name__ == "__main__":  # where the nursery was too busy to fork
    sys.exit(main())
