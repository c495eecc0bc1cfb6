"""Options that are fields of models: the same names, types, defaults and meanings as over HTTP."""

from __future__ import annotations

from typing import Any

from factorize.api.commands.application import command_of
from factorize.api.questions.calibration_request import CalibrationRequest
from factorize.api.questions.training_job import FleetRequest, RecommendRequest


def options(command: str) -> dict[str, Any]:
    return {parameter.name: parameter for parameter in command_of(command).params}


def test_every_field_is_an_option_with_its_meaning() -> None:
    found = options("calibrate")
    assert set(CalibrationRequest.model_fields) - {"method"} < set(found)
    assert found["dataset_size"].opts == ["--dataset-size"] and found["clip_norm"].show_default == "1.0"
    assert found["spent_mu"].help.startswith("What independent runs on the same data have spent")
    assert found["delta"].help.startswith("The delta that goes with --epsilon; without one, delta")
    assert found["adjacency"].help.startswith("zero_out")


def test_fields_of_two_models_stand_once_and_lists_may_be_given_again() -> None:
    found = options("recommend")
    fields = {*RecommendRequest.model_fields, *FleetRequest.model_fields} - {"workload", "objective"}
    assert fields < set(found) and list(found)[1:3] == ["examples", "batch_size"]
    assert found["samplings"].opts == ["--sampling"] and found["samplings"].multiple
    assert found["memory"].show_default == "4"
