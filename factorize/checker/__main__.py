"""`factorize-check RECEIPT FACTORS...`: the receipt of a run, proved from its factor files; or a page on it.

It needs numpy, safetensors and python-flint, and the extra `signing` for signatures. Exit codes: 0 everything is
proved, 2 usage, 4 something is false, 6 something was not looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from factorize.checker.receipt_text import page, text
from factorize.errors import EXTRAS, FactorizeError, InvalidParameter
from factorize.signatures import check_signature

FALSE, USAGE, NOT_LOOKED_AT = 4, 2, 6
SIGNATURE = "receipt.signature"
PAGES = {"card": "card.md", "nist": "nist.md", "registry": "registry.json"}


def main(arguments: list[str] | None = None) -> int:
    """Check a receipt, print what was found, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="factorize-check",
        description="Prove the receipt of a private training run from its factor files: sensitivity, noise, epsilon.",
    )
    parser.add_argument("receipt", type=Path, metavar="RECEIPT.json")
    parser.add_argument("factors", type=Path, nargs="+", metavar="FACTORS.safetensors")
    help_of_output = (
        "card: for a model card; nist: the questions of SP 800-226 (both Markdown); registry: a draft of an entry"
    )
    parser.add_argument("--output", choices=("text", "json", *PAGES), default="text", help=help_of_output)
    parser.add_argument(
        "--signature", type=Path, metavar="RECEIPT.sig", help="of the receipt, by OpenSSF Model Signing"
    )
    parser.add_argument("--public-key", type=Path, metavar="KEY.pem", help="with --signature: whose it is")
    options = parser.parse_args(arguments)
    try:
        from factorize.checker.receipt import check_receipt  # the main package brings python-flint with an extra alone

        signed = check_signature(options.receipt, options.signature, options.public_key)
        receipt = options.receipt.read_bytes()
        report = check_receipt(receipt, [path.read_bytes() for path in options.factors])
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return USAGE
    except ImportError as missing:
        package = str(missing.name).partition(".")[0]
        extra = {"signing": "[signing]", "solve": "[sampling]"}.get(EXTRAS.get(package, ""), "") * (package != "flint")
        what = f"this is tested with {package}, which is not installed"
        print(f"error: {what}; install factorize-check{extra}", file=sys.stderr)
        return NOT_LOOKED_AT
    except InvalidParameter as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except FactorizeError as error:
        print(f"NOT SUPPORTED  {error}", file=sys.stderr)
        return FALSE
    if signed is not None:
        report.stated = (*report.stated, SIGNATURE)
        report.prove(f"the receipt was signed: {signed}", of=SIGNATURE)
    if options.output == "json":
        document = {"verified": report.supported, "complete": not report.unseen, **report.document()}
        print(json.dumps(document, indent=2))
    elif options.output == "text" or not report.supported:
        print(text(report))
    else:
        print(page(PAGES[options.output], report, json.loads(receipt)), end="")
    if not report.supported:
        return FALSE
    return NOT_LOOKED_AT if report.unseen else 0


def run() -> None:
    """Run the command and exit."""
    sys.exit(main())


if __name__ == "__main__":
    run()
