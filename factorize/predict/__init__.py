"""The papers' bounds as functions: a question is plain data, its answer one number with what it rests on.

    from factorize.predict import ask
    ask({"kind": "independent_descent", "smoothness": 10, "learning_rate": 0.01, "sigma": 1.0,
         "initial_distance": 1, "steps": 1000}).value

Every answer says whether its constants are exact, derived here, the paper's or missing, and what it assumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from factorize.errors import extras_named
from factorize.numbers.scalars import refuse_infinite, within_doubles
from factorize.plain_data import read_union
from factorize.predict.accelerated_descent import AcceleratedRate, AcceleratedRisk, IndependentGradientRisk
from factorize.predict.clip_norm import ClipNorm
from factorize.predict.coordinate import SketchedDescent, SketchedRate
from factorize.predict.descent import (
    AntiCorrelatedDescent,
    ChessDescent,
    ConvexDescent,
    DescentLowerBound,
    IndependentDescent,
    NonconvexDescent,
    RegretProxy,
)
from factorize.predict.federated import FactorizedFederatedRisk, FederatedRisk
from factorize.predict.gaussian_regression import GaussianRegression
from factorize.predict.linear_regression import (
    DpFtrlRate,
    LinearRegressionFinite,
    LinearRegressionQuestion,
    MeanEstimation,
)
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation
from factorize.predict.quadratic import QuadraticRun
from factorize.predict.stochastic_regression import StochasticRegression
from factorize.predict.strongly_convex import StronglyConvex

QUESTIONS: dict[str, type[Question]] = {
    "accelerated_rate": AcceleratedRate,
    "accelerated_risk": AcceleratedRisk,
    "anti_correlated_descent": AntiCorrelatedDescent,
    "chess_descent": ChessDescent,
    "clip_norm": ClipNorm,
    "convex_descent": ConvexDescent,
    "descent_lower_bound": DescentLowerBound,
    "dp_ftrl_rate": DpFtrlRate,
    "factorized_federated_risk": FactorizedFederatedRisk,
    "federated_risk": FederatedRisk,
    "gaussian_regression": GaussianRegression,
    "independent_descent": IndependentDescent,
    "independent_gradient_risk": IndependentGradientRisk,
    "linear_regression": LinearRegressionQuestion,
    "linear_regression_finite": LinearRegressionFinite,
    "mean_estimation": MeanEstimation,
    "nonconvex_descent": NonconvexDescent,
    "quadratic": QuadraticRun,
    "regret_proxy": RegretProxy,
    "sketched_descent": SketchedDescent,
    "sketched_rate": SketchedRate,
    "stochastic_regression": StochasticRegression,
    "strongly_convex": StronglyConvex,
}
"""The one list: kind to question."""

AnyQuestion = Annotated[
    AcceleratedRate
    | AcceleratedRisk
    | AntiCorrelatedDescent
    | ChessDescent
    | ClipNorm
    | ConvexDescent
    | DescentLowerBound
    | DpFtrlRate
    | FactorizedFederatedRisk
    | FederatedRisk
    | GaussianRegression
    | IndependentDescent
    | IndependentGradientRisk
    | LinearRegressionQuestion
    | LinearRegressionFinite
    | MeanEstimation
    | NonconvexDescent
    | QuadraticRun
    | RegretProxy
    | SketchedDescent
    | SketchedRate
    | StochasticRegression
    | StronglyConvex,
    Field(discriminator="kind"),
]

ADAPTER: TypeAdapter[Question] = TypeAdapter(AnyQuestion)


def parse_question(document: Mapping[str, Any]) -> Question:
    """Read a question from plain data.

    Raises:
        InvalidSpec: it is none; one violation per problem, each with a pointer to its field.
    """
    return read_union(ADAPTER, document, AnyQuestion)


@extras_named("a prediction")
def ask(question: Question | Mapping[str, Any], inverse: Inverse | None = None) -> Prediction:
    """Answer a question.

    Args:
        question: one of `QUESTIONS`, or its JSON form.
        inverse: the factorization that it is about, where it is about one.

    Raises:
        InvalidSpec: not a question.
        ConditionNotMet: a hypothesis fails, or the factorization is missing.
        InvalidParameter: a value is outside its range.
        TooLarge: a factorization with too many rows to read.
    """
    asked = question if isinstance(question, Question) else parse_question(question)
    with within_doubles("the answer"):
        found = asked.answer(inverse)
        refuse_infinite("the answer", found.document())
    return found


__all__ = ["QUESTIONS", "AnyQuestion", "Basis", "Prediction", "Question", "Relation", "ask", "parse_question"]
