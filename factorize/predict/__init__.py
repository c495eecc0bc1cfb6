"""Exact losses of training runs: a question is plain data, and its answer is one number with its basis.

    from factorize.predict import ask
    ask({"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}).value

The papers' bounds, with the papers' constants or none, are in `papers/predictions` of the repository.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field

from factorize.errors import extras_named
from factorize.numbers.scalars import refuse_infinite, within_doubles
from factorize.plain_data import read_union
from factorize.plain_data.fields import tag_of
from factorize.predict.linear_regression import GaussianRegression, LinearRegressionQuestion, MeanEstimation
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation
from factorize.predict.quadratic import QuadraticRun
from factorize.predict.stochastic_regression import StochasticRegression

QUESTIONS: dict[str, type[Question]] = {
    str(tag_of(kind)): kind
    for kind in (GaussianRegression, LinearRegressionQuestion, MeanEstimation, QuadraticRun, StochasticRegression)
}
"""The register of questions, by kind."""

AnyQuestion: Any = Annotated[reduce(or_, QUESTIONS.values()), Field(discriminator="kind")]


@extras_named("a prediction")
def ask(question: Question | Mapping[str, object], inverse: Inverse | None = None) -> Prediction:
    """Answer a question.

    Args:
        question: one of `QUESTIONS`, or its JSON form.
        inverse: the factorization, for a question about one.

    Raises:
        InvalidSpec: the document is no question.
        ConditionNotMet: a hypothesis fails, or the factorization is missing.
        InvalidParameter: a value is outside its range.
        TooLarge: a factorization with too many rows to read.
    """
    parsed = question if isinstance(question, Question) else read_union(question, AnyQuestion)
    with within_doubles("the answer"):
        prediction = parsed.answer(inverse)
        refuse_infinite("the answer", prediction.document())
    return prediction


__all__ = ["QUESTIONS", "AnyQuestion", "Basis", "Prediction", "Question", "Relation", "ask"]
