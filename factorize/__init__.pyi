"""Types of the public names, whose modules are imported on first use (`__init__.py`)."""

from factorize.api.calls import certify as certify
from factorize.api.calls import compare as compare
from factorize.api.calls import recommend as recommend
from factorize.api.calls import solve as solve
from factorize.api.questions.documents import Advice as Advice
from factorize.api.questions.documents import ComparisonTable as ComparisonTable
from factorize.client.held_factors import load as load
from factorize.factors import Factors as Factors
from factorize.factors.certificate import Certificate as Certificate
from factorize.factors.factorization import Factorization as Factorization
from factorize.spec import Spec as Spec
from factorize.spec import parse_spec as parse_spec

__version__: str
__all__ = [
    "Advice",
    "Certificate",
    "ComparisonTable",
    "Factorization",
    "Factors",
    "Spec",
    "certify",
    "compare",
    "load",
    "parse_spec",
    "recommend",
    "solve",
]
