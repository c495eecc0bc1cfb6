"""The proving worker of a batch: checks one written file after the other as `api/proof.py` does, and solves nothing.

It is asked what that module is asked, and answers the same.
"""

from __future__ import annotations

from factorize.api.child_protocol import serve_each
from factorize.api.proof import check

if __name__ == "__main__":
    serve_each(check)
