"""Schedules: the learning rates that the specs' names stand for, for the optimizer of a training loop."""


def schedule_rates(schedule: dict[str, object], n: int) -> list[float]:
    """Return a named schedule (`{"kind": "cosine", "final": 0.1}`, see docs/spec.md) as its n relative rates.

    Raises:
        InvalidSpec: no schedule of that name, or parameters that do not fit n.
    """
    from factorize.spec import parse_spec

    spec = parse_spec({"workload": {"kind": "schedule", "n": n, "learning_rates": schedule}})
    return [float(rate) for rate in spec.document()["workload"]["learning_rates"]]
