"""The papers' bounds as functions: questions like those of `factorize.predict`, whose kinds are answered here, too.

Every answer says whether its constants are exact, derived here or the paper's, and what it assumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import Field

from factorize import predict
from factorize.plain_data import read_union
from factorize.predict import Basis, Inverse, Prediction, Question
from papers.predictions import (
    accelerated_descent,
    coordinate,
    descent,
    federated,
    linear_rates,
    strongly_convex,
)

QUESTIONS: dict[str, type[Question]] = dict(predict.QUESTIONS)
"""The one list: kind to question."""
for _module in (accelerated_descent, coordinate, descent, federated, linear_rates, strongly_convex):
    for _one in vars(_module).values():
        if isinstance(_one, type) and _one.__module__ == _module.__name__ and "kind" in _one.__annotations__:
            QUESTIONS[get_args(_one.model_fields["kind"].annotation)[0]] = _one

AnyQuestion: Any = Annotated[reduce(or_, QUESTIONS.values()), Field(discriminator="kind")]


def ask(question: Question | Mapping[str, Any], inverse: Inverse | None = None) -> Prediction:
    """Answer a question; see `factorize.predict.ask`.

    Args:
        question: one of `QUESTIONS`, or its JSON form.
        inverse: the factorization that it is about, where it is about one.
    """
    asked = question if isinstance(question, Question) else read_union(question, AnyQuestion)
    return predict.ask(asked, inverse)


__all__ = ["QUESTIONS", "Basis", "Prediction", "Question", "ask"]
