"""A made table in the form of covertype: ten numbers and two categories, seven classes, two of which are frequent.

scikit-learn makes the numbers; nothing is downloaded. The categories, of 4 and 40 levels like covertype's, are cut from
two more columns that depend on the class, and are one-hot: 54 inputs, and a constant. covertype itself goes through
`--npz`.
"""

from __future__ import annotations

import numpy as np

from papers.reproductions.user_data import UserData

NUMBERS, LEVELS = 10, (4, 40)
SHARES = (0.365, 0.488, 0.062, 0.005, 0.016, 0.030, 0.034)
"""The shares of the classes, as in covertype."""
TRAIN, TEST = 20_000, 5_000


def made_table() -> UserData:
    """Return the table, always the same; every example has a norm of at most sqrt(6)."""
    from sklearn.datasets import make_classification

    columns, labels = make_classification(
        n_samples=TRAIN + TEST,
        n_features=NUMBERS + len(LEVELS),
        n_informative=NUMBERS,
        n_redundant=len(LEVELS),
        n_classes=len(SHARES),
        n_clusters_per_class=2,
        weights=list(SHARES),
        class_sep=1.5,
        flip_y=0.02,
        random_state=0,
    )
    numbers = np.clip(columns[:, :NUMBERS] / 4, -1, 1) * np.sqrt(3 / NUMBERS)  # these bounds need no look at the data
    parts = [numbers, *(one_hot(columns[:, NUMBERS + i], levels) for i, levels in enumerate(LEVELS))]
    features = np.hstack([*parts, np.ones((len(labels), 1))]).astype(np.float32)
    labels = labels.astype(np.intp)
    return UserData(features[:TRAIN], labels[:TRAIN], features[TRAIN:], labels[TRAIN:])


def one_hot(values: np.ndarray, levels: int) -> np.ndarray:
    """Return which of equally wide levels each value is in; values beyond 8 are in the outermost."""
    level = np.clip(((values + 8) / 16 * levels).astype(int), 0, levels - 1)
    return np.eye(levels)[level]
