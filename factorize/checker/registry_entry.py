"""The entry of a receipt in the Differential Privacy Deployments Registry: what it knows, and what it does not.

Reference:
    Nanayakkara, Ghazi and Vadhan 2025 (arXiv 2509.13509); the schema of opendp/deployments-registry-data of 15 July
    2026, tier 3. JSON is YAML, the form of the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorize.checker.receipt_text import answers
from factorize.checker.report import Report

UNKNOWN = "FILL IN: the receipt does not say"


def entry(report: Report, receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft of the entry, with `UNKNOWN` where the registry asks for what no receipt holds.

    Args:
        report: on the receipt; nothing in it is false.
        receipt: as it was read.
    """
    told, calibration = answers(receipt), receipt["calibration"]
    users = receipt["unit"] == "user"
    basic = dict.fromkeys(("name", "description", "intended_use", "data_product_region"), UNKNOWN)
    deployment = {
        "basic": {
            **basic,
            "data_curators": [UNKNOWN],
            "data_product_type": "Machine learning model",
            "publication_date": "1900-01-01",  # what the registry's own template has for one that is to be filled in
        },
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": UNKNOWN,
            "unprotected_quantities": "The number of examples, the clip norm, the divisor, the number of steps and the "
            "factorization are public. " + UNKNOWN,
        },
        "privacy_loss": {
            "privacy_unit": "User" if users else "Example",
            "privacy_unit_details": told["Neighbouring data sets"],
            "privacy_parameters": {"epsilon": receipt["epsilon"], "delta": receipt["delta"]},
            "privacy_parameters_details": f"{told['Without sampling']} without sampling. {told['Order of the data']}.",
        },
        "deployment_model": {
            "model_name": "Central",
            "actors": told["Trust model"],
            "release_type": "One release",
            "release_type_details": "One run; the guarantee covers the model after every step.",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Optimizer, schedules and everything that is computed from the noisy sums.",
            "composition": "All steps of the run are accounted for together. Other runs on these data: "
            f"{told['Other runs on these data']}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": UNKNOWN,
            "mechanisms": f"{told['Mechanism']}. Sensitivity {told['Sensitivity of C']}. Randomness: "
            f"{told['Randomness']}. Factorization {told['Factors']}.",
            "justification": f"Proved from the receipt {told['Receipt']} and its factor files: "
            f"{'; '.join(report.checked)}. On the job's word, or unknown: {'; '.join(report.not_checked)}.",
        },
        "administrative": {
            "notes": f"Adjacency {calibration['adjacency']}; noise multiplier {calibration['noise_multiplier']!r}.",
            "registry_authors": [UNKNOWN],
        },
    }
    slug = f"receipt_{receipt['digest'][:12]}"
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}
