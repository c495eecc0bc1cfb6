"""Markdown with one sentence on each line: `python tests/support/sentences.py FILE ...` rewrites pages so.

A change of a sentence is then a change of one line. Tables, headings, code, formulas and HTML stay as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ITEM = re.compile(r"( *)([-*+]|\d+\.)( +)(?=\S)")
APART = re.compile(r" *(#|\||```|~~~|<|\$\$|\[[^\]]+\]: |!!! |\?\?\? |=== |:::|---$|> )")
"""The beginnings of lines that are no prose."""
END = re.compile(r"""[.!?][)"'*_”]*\s+(?=["'(*_“`\[$]*[A-Z0-9`\[$])""")
ABBREVIATIONS = frozenset("e.g. i.e. al. cf. vs. Fig. Eq. Sec. Thm. Prop. Dr. No. etc. resp.".split())
HELD = re.compile(r"(`+)[^`]+?\1|\$[^$]+\$|\]\([^)]*\)")
"""The parts that are never divided: code, formulas, and the targets of links."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; what stands in brackets is not divided."""
    hidden = HELD.sub(lambda found: found[0][0] + "x" * (len(found[0]) - 1), text)
    begin = 0
    for found in END.finditer(hidden):
        said = hidden[begin : found.end()].rstrip()
        word = said.split()[-1].lstrip("(*_\"'“")
        inside = sum(map(said.count, "([")) > sum(map(said.count, ")]"))  # together: an interval may be half open
        if inside or word in ABBREVIATIONS or re.fullmatch(r"(?:[A-Z]\.)+", word) or re.fullmatch(r"\d+\.", said):
            continue
        yield text[begin : found.end()].strip()
        begin = found.end()
    yield text[begin:].strip()


def _flush(held: list[str], lead: str) -> Iterator[str]:
    """Yield the lines of a paragraph, indented like its first one, after the mark of an item."""
    for place, one in enumerate(sentences(" ".join(held)) if held else ()):
        yield (lead if place == 0 else " " * len(lead)) + one


def rewritten(text: str) -> str:
    """Return a page with one sentence on each line."""
    lines: list[str] = []
    held: list[str] = []
    lead, fence, front = "", "", text.startswith("---\n")
    for at, line in enumerate(text.splitlines()):
        stripped = line.strip()
        if front or fence or not stripped or APART.match(line) or (line.startswith("    ") and not held):
            lines += [*_flush(held, lead), line]
            held, lead = [], ""
            if front and at and stripped == "---":
                front = False
            elif fence:
                fence = "" if stripped == fence else fence
            elif found := re.match(r"(```+|~~~+|\$\$)", stripped):
                fence = "" if stripped.endswith("$$") and len(stripped) > 2 else found[1]
            continue
        if item := ITEM.match(line):
            lines += _flush(held, lead)
            held, lead = [line[item.end() :].strip()], item[0]
        elif held:
            held.append(stripped)
        else:
            held, lead = [stripped], line[: len(line) - len(line.lstrip())]
        if line.endswith(("  ", "\\")):  # a hard break
            lines += _flush(held, lead)
            lines[-1] += "  " if line.endswith("  ") else ""
            held, lead = [], ""
    return "\n".join([*lines, *_flush(held, lead)]) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewritten(path.read_text()))
