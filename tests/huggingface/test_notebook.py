"""The notebook of a private LoRA, from the question to a proved receipt."""

from __future__ import annotations

import pytest
from notebooks import FOLDER, OF_HUGGING_FACE, run_cells

from factorize.training.released_weights import model_digest


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours, about one another
def test_it_ends_with_a_receipt_that_names_the_adapters() -> None:
    names = run_cells(FOLDER / f"{OF_HUGGING_FACE}.ipynb")
    assert names["status"] == 0 and names["refused"] == 4
    assert names["named"] == model_digest(names["weights"])
    assert names["epsilons"] == sorted(names["epsilons"]) and 0 < names["epsilons"][0] < names["epsilons"][-1] == 8.0
    assert names["loss"](names["new"]) < 2.7  # a guess has log 16, 2.77
