"""`factorize-check RECEIPT FACTORS...`: the receipt of a run, proved from its factor files; or a page on it.

Further receipts are proved like the first, and compared with it. It needs numpy, safetensors and python-flint,
and the extra `signing` for signatures. Exit codes: 0 everything is proved, 2 usage, 4 something is false, 6 something
was not looked at, 7 a run has not ended, 130 interrupted.
"""

import argparse
import io
import json
import os
import signal
import sys
from pathlib import Path

from factorize.checker.receipt_text import EXIT_FALSE, EXIT_NOT_LOOKED_AT, EXIT_OPEN, page, text, verdict
from factorize.checker.report import Report
from factorize.checker.strategy import read_factor_file
from factorize.encoding import in_one_line, read_json
from factorize.errors import EXTRAS, FactorizeError, InvalidParameter, TooLarge
from factorize.format.container import read_whole
from factorize.format.signatures import check_signature

USAGE, INTERRUPTED = 2, 130
SIGNATURE = "receipt.signature"
PAGES = {"card": "card.md", "nist": "nist.md", "registry": "registry.json"}


def main(arguments: list[str] | None = None) -> int:
    """Check receipts, print the findings, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="factorize-check",
        description="Prove the receipt of a private training run from its factor files: sensitivity, noise, epsilon.",
    )
    parser.add_argument("receipt", type=_path, metavar="RECEIPT.json")
    help_of_files = "the factor files that the receipt names; further receipts are compared with it"
    parser.add_argument("files", type=_path, nargs="+", metavar="FACTORS.safetensors", help=help_of_files)
    help_of_output = (
        "card: for a model card; nist: the questions of SP 800-226 (both Markdown); registry: a draft of an entry"
    )
    parser.add_argument("--output", choices=("text", "json", *PAGES), default="text", help=help_of_output)
    parser.add_argument("--model", type=_path, metavar="FILE", help="the released weights, a file or a directory")
    parser.add_argument(
        "--signature", type=_path, metavar="RECEIPT.sig", help="the receipt's signature (OpenSSF Model Signing)"
    )
    parser.add_argument("--public-key", type=_path, metavar="KEY.pem", help="the signer's public key, with --signature")
    options = parser.parse_args(arguments)
    try:
        reports, receipt = _check(options)
    except OSError as error:
        print(f"error: {in_one_line(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return USAGE
    except ImportError as missing:
        package = str(missing.name).partition(".")[0]
        extra = {"signing": "[signing]", "solve": "[sampling]"}.get(EXTRAS.get(package, ""), "") * (package != "flint")
        what = f"this check needs {package}, which is not installed"
        print(f"error: {what}; install factorize-check{extra}", file=sys.stderr)
        return EXIT_NOT_LOOKED_AT
    except (TooLarge, MemoryError) as limit:
        print(f"NOT ALL SEEN  {in_one_line(str(limit) or 'this machine has too little memory')}", file=sys.stderr)
        return EXIT_NOT_LOOKED_AT
    except InvalidParameter as error:
        print(f"error: {in_one_line(str(error))}", file=sys.stderr)
        return USAGE
    except FactorizeError as error:
        print(f"NOT SUPPORTED  {in_one_line(str(error))}", file=sys.stderr)
        return EXIT_FALSE
    found = [report for _, report in reports]
    if options.output == "json":
        documents = [{"file": name, **_document(report)} for name, report in reports]
        print(json.dumps(documents if len(documents) > 1 else documents[0], indent=2))
    elif options.output == "text" or verdict(found[0])[1] not in (0, EXIT_OPEN):
        for name, report in reports:
            print(f"{in_one_line(name)}: " * (len(reports) > 1) + text(report))
    else:
        print(page(PAGES[options.output], found[0], json.loads(receipt)), end="")
    return max((verdict(report)[1] for report in found), key=[0, EXIT_OPEN, EXIT_NOT_LOOKED_AT, EXIT_FALSE].index)


def _path(text: str) -> Path:
    """Return a path whose `~` is expanded: a shell leaves that of `--model=~/file` to the command."""
    return Path(os.path.expanduser(text))


def _check(options: argparse.Namespace) -> tuple[list[tuple[str, Report]], bytes]:
    """Return names and reports of all receipts and of their comparison, and the first receipt's text."""
    # Without its extras, the main package does not bring python-flint.
    from factorize.checker.receipt import check_receipt, compare_receipts

    held = [(str(path), read_whole(path)) for path in options.files]
    # A factor file begins with a length in 8 bytes, which always have a zero byte; JSON never does.
    factors = [data for _, data in held if b"\0" in data[:8]]
    receipts = [(str(options.receipt), read_whole(options.receipt))]
    receipts += [(name, data) for name, data in held if b"\0" not in data[:8]]
    if len(receipts) == 1:
        signed = check_signature(options.receipt, options.signature, options.public_key)
        report = check_receipt(receipts[0][1], factors, model=options.model)
        if signed is not None:
            signed.check_bytes(receipts[0][1])
            report.stated = (*report.stated, SIGNATURE)
            report.prove(f"the receipt was signed: {signed}", of=SIGNATURE)
        return [(str(options.receipt), report)], receipts[0][1]
    if options.signature or options.model or options.output in PAGES:
        raise InvalidParameter("--signature, --model and pages work with one receipt; leave out the others")
    by_digest = {read_factor_file(data).manifest["digest"]: data for data in factors}
    reports = [
        (name, check_receipt(data, [file for digest, file in by_digest.items() if digest.encode() in data]))
        for name, data in receipts
    ]
    if all(report.supported for _, report in reports):
        reports.append(("together", compare_receipts([read_json(data) for _, data in receipts])))
    return reports, receipts[0][1]


def _document(report: Report) -> dict[str, object]:
    verified = verdict(report)[0] == "verified"
    return {"verified": verified, "open": report.open, "complete": not report.unseen, **report.document()}


def run() -> None:
    """Run the command and exit."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads the report may leave: `| head`
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A name may be none in the terminal's encoding.
    try:
        code = main()
        print(end="", flush=True)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        print(f"error: the report cannot be written to standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # What is left would fail again at the end.
        code = USAGE
    sys.exit(code)


if __name__ == "__main__":
    run()
