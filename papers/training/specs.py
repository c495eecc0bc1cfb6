"""The specs of the published methods: plain data for `solvers.solve`, for a service, or for `factorize solve`."""

from __future__ import annotations

from typing import Any, Literal

from factorize.errors import InvalidParameter

Method = Literal["dp_sgd", "dp_mf", "dp_mf_plus", "dp_memf", "nu_dp_ftrl", "tree", "anti_pgd"]

_MECHANISMS: dict[str, dict[str, Any]] = {
    "dp_sgd": {"kind": "identity"},
    "dp_mf": {"kind": "dense"},
    "dp_mf_plus": {"kind": "dense"},
    "dp_memf": {"kind": "dense"},
    "nu_dp_ftrl": {"kind": "nu_toeplitz", "nu": "tune"},
    "tree": {"kind": "tree", "decoder": "honaker_online"},
    "anti_pgd": {"kind": "anti_pgd"},
}


def method_spec(
    method: Method,
    workload: dict[str, Any],
    *,
    epochs: int = 1,
    optimize_for: dict[str, Any] | None = None,
    tau: int | None = None,
    nu: float | None = None,
) -> dict[str, Any]:
    """Return the spec of a published method for a workload.

    Args:
        method: `dp_sgd` (C = I), `dp_mf` (K23; D22), `dp_mf_plus` (K23: objective lambda_tau), `dp_memf` (S24: several
            epochs), `nu_dp_ftrl` (C24), `tree` (DP-FTRL with online Honaker decoding), `anti_pgd` (C = S).
        workload: what is done with the gradients: `Sgd.workload(n)`, `ones(n)` or another one of docs/spec.md.
        epochs: passes over the data in a fixed order.
        optimize_for: the workload that C is optimised for, where it is another one: `ones(n)` beside a true workload
            is the "ones" of S24, section 5.1.
        tau: restarts of `dp_mf_plus`.
        nu: damping of `nu_dp_ftrl`; tuned for the workload where left out.

    Raises:
        InvalidParameter: an unknown method, or tau or nu with (or without) the method that needs it.
    """
    if method not in _MECHANISMS:
        message = f"method={str(method)[:20]!r} is not one of {', '.join(_MECHANISMS)}"
        raise InvalidParameter(message, field="method")
    if (tau is not None) != (method == "dp_mf_plus"):
        raise InvalidParameter(f"tau={tau} with method {method}: only dp_mf_plus uses tau, and needs it", field="tau")
    if nu is not None and method != "nu_dp_ftrl":
        raise InvalidParameter(f"nu={nu} belongs to nu_dp_ftrl, not to {method}", field="nu")
    mechanism = dict(_MECHANISMS[method]) | ({} if nu is None else {"nu": nu})
    spec: dict[str, Any] = {"workload": workload, "mechanism": mechanism}
    spec["participation"] = {"kind": "single"} if epochs == 1 else {"kind": "fixed_epochs", "epochs": epochs}
    spec["objective"] = {"kind": "mean"} if tau is None else {"kind": "lambda_tau", "tau": tau}
    return spec if optimize_for is None else {**spec, "optimize_for": optimize_for}


def ones(n: int) -> dict[str, Any]:
    """Return the workload of plain running sums: the all-ones lower-triangular matrix."""
    return {"kind": "prefix", "n": n}
