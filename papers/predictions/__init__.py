"""The papers' bounds as functions: questions like those of `factorize.predict`, whose kinds are answered here, too.

Every answer says whether its constants are exact, derived here, the paper's or missing, and what it assumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from factorize import predict
from factorize.plain_data import read_union
from factorize.predict import Basis, Inverse, Prediction, Question
from papers.predictions.accelerated_descent import AcceleratedRate, AcceleratedRisk, IndependentGradientRisk
from papers.predictions.clip_norm import ClipNorm
from papers.predictions.coordinate import SketchedDescent, SketchedRate
from papers.predictions.descent import (
    AntiCorrelatedDescent,
    ChessDescent,
    ConvexDescent,
    DescentLowerBound,
    IndependentDescent,
    NonconvexDescent,
    RegretProxy,
)
from papers.predictions.federated import FactorizedFederatedRisk, FederatedRisk
from papers.predictions.linear_rates import DpFtrlRate, LinearRegressionFinite
from papers.predictions.strongly_convex import StronglyConvex

_OWN: tuple[type[Question], ...] = (
    AcceleratedRate,
    AcceleratedRisk,
    AntiCorrelatedDescent,
    ChessDescent,
    ClipNorm,
    ConvexDescent,
    DescentLowerBound,
    DpFtrlRate,
    FactorizedFederatedRisk,
    FederatedRisk,
    IndependentDescent,
    IndependentGradientRisk,
    LinearRegressionFinite,
    NonconvexDescent,
    RegretProxy,
    SketchedDescent,
    SketchedRate,
    StronglyConvex,
)

QUESTIONS: dict[str, type[Question]] = {
    **predict.QUESTIONS,
    **{get_args(one.model_fields["kind"].annotation)[0]: one for one in _OWN},
}
"""The one list: kind to question."""

AnyQuestion: Any = Annotated[reduce(or_, QUESTIONS.values()), Field(discriminator="kind")]
ADAPTER: TypeAdapter[Question] = TypeAdapter(AnyQuestion)


def ask(question: Question | Mapping[str, Any], inverse: Inverse | None = None) -> Prediction:
    """Answer a question; see `factorize.predict.ask`.

    Args:
        question: one of `QUESTIONS`, or its JSON form.
        inverse: the factorization that it is about, where it is about one.
    """
    asked = question if isinstance(question, Question) else read_union(ADAPTER, question, AnyQuestion)
    return predict.ask(asked, inverse)


__all__ = ["QUESTIONS", "Basis", "Prediction", "Question", "ask"]
