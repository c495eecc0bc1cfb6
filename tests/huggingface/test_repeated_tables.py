"""Tables of `datasets` whose rows come again."""

import pytest
from datasets import Dataset, concatenate_datasets

from factorize.adapters.data.mixed_data import digest_of
from factorize.adapters.data.repeated_data import refuse_repeats
from factorize.errors import InvalidParticipation

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_table_that_holds_another_one_twice_is_refused() -> None:
    rows = Dataset.from_dict({"text": [str(i) for i in range(7)]})
    for twice in (rows.repeat(2), concatenate_datasets([rows.select([0, 1, 2]), rows.shuffle(seed=1)])):
        with pytest.raises(InvalidParticipation, match="more than once"):
            refuse_repeats(twice)
    parts = concatenate_datasets([rows.select([0, 2, 4]), rows.select([1, 3, 5])])
    refuse_repeats(parts.shuffle(seed=1))
    assert len({digest_of(each) for each in parts}) == len(parts)
