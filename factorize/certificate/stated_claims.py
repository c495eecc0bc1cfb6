"""Stated claims: whether a certificate that somebody states says nothing better than one that was just computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from factorize.certificate.certificate import Certificate
from factorize.errors import CertificateError


def compare(claimed: Mapping[str, Any], fresh: Certificate) -> None:
    """Check that a claimed certificate says nothing better than a recomputed one, to relative 1e-9.

    Raises:
        CertificateError: naming the first number that does not hold, or what is missing or no number.
    """
    try:
        _compare(claimed, fresh)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CertificateError(f"not a certificate: {type(error).__name__}: {str(error)[:200]}") from None


def _compare(claimed: Mapping[str, Any], fresh: Certificate) -> None:
    recomputed = fresh.document()
    if float.fromhex(claimed["sensitivity"]["hex"]) != claimed["sensitivity"]["value"]:
        raise CertificateError("the sensitivity's value and its hex form are two different numbers")
    if claimed["sensitivity"]["value"] < recomputed["sensitivity"]["value"] * (1 - 1e-12):
        raise CertificateError(
            f"the claimed sensitivity {claimed['sensitivity']['value']!r} is below the recomputed "
            f"{recomputed['sensitivity']['value']!r}: noise scaled to it would be too small"
        )
    for name in ("kind", "rule", "participation"):
        if claimed["sensitivity"][name] != recomputed["sensitivity"][name]:
            raise CertificateError(f"the sensitivity's {name} is claimed as {claimed['sensitivity'][name]!r}")
    for name, value in recomputed["loss"].items():
        stated = claimed["loss"][name]
        if stated is None or value is None:
            if stated is not value:
                raise CertificateError(f"loss.{name} is claimed as {stated!r}; recomputed {value!r} (null: infinite)")
        elif abs(stated - value) > 1e-9 * abs(value):
            raise CertificateError(f"loss.{name} is claimed as {claimed['loss'][name]!r}; recomputed {value!r}")
    for name, words in (("lower_bound", "lower bound"), ("class_lower_bound", "lower bound within the class")):
        _compare_bounds(words, claimed[name], recomputed[name])
    _compare_gaps(claimed["relative_gap"], recomputed["relative_gap"])
    _compare_warnings(claimed["warnings"], recomputed["warnings"])
    if claimed["converged"] and not recomputed["converged"]:
        raise CertificateError("the claim says that the tolerance was met; the recomputation does not")


def _compare_bounds(words: str, claimed: Mapping[str, Any] | None, fresh: Mapping[str, Any] | None) -> None:
    if claimed is None:
        return
    if fresh is None or claimed["objective"] > fresh["objective"] * (1 + 1e-9):
        raise CertificateError(f"the {words} {claimed['objective']!r} is not supported by the stored evidence")


def _compare_gaps(claimed: float | None, fresh: float | None) -> None:
    """The gap is that of two numbers, each compared to relative 1e-9."""
    if claimed is not None and (fresh is None or claimed < fresh - 3e-9 * (1 + fresh)):
        raise CertificateError(f"the relative gap is claimed as {claimed!r}; recomputed {fresh!r}")


def _compare_warnings(claimed: Sequence[str], fresh: Sequence[str]) -> None:
    """Every warning has to be there; the numbers in them are those of another machine."""
    there = {_without_numbers(text) for text in claimed}
    missing = [text for text in fresh if _without_numbers(text) not in there]
    if missing:
        raise CertificateError(f"the certificate lacks the warning {missing[0]!r}")


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d.e+-]*", "#", text)
