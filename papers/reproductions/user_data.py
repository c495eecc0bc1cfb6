"""User data: any features and labels in an .npz file, flattened for a linear model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from papers.reproductions.images import Images, SingleSoftmax


class UserData(Images):
    """Data of any number of classes."""

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    def model(self) -> SingleSoftmax:
        """Return logistic regression on the training data."""
        return SingleSoftmax(self.train, self.train_labels, self.classes)

    def judge(self) -> SingleSoftmax:
        """Return the same on the test data."""
        return SingleSoftmax(self.test, self.test_labels, self.classes)


def load_npz(file: Path) -> UserData:
    """Read `x_train`, `y_train`, `x_test` and `y_test` of an .npz file; labels are whole numbers from 0.

    Raises:
        SystemExit: an array is missing, or they do not fit each other.
    """
    with np.load(file, allow_pickle=False) as held:
        wanted = ("x_train", "y_train", "x_test", "y_test")
        missing = [name for name in wanted if name not in held]
        if missing:
            raise SystemExit(f"{file} has no {', '.join(missing)}; give x_train, y_train, x_test and y_test")
        x, y, x_test, y_test = (held[name] for name in wanted)
    whole = all(labels.ndim == 1 and labels.dtype.kind in "iu" and (labels >= 0).all() for labels in (y, y_test))
    if not whole or len(x) != len(y) or len(x_test) != len(y_test) or x.shape[1:] != x_test.shape[1:]:
        raise SystemExit(f"{file}: x needs a row for each label, and labels are whole numbers from 0")
    flat = [rows.reshape(len(rows), -1).astype(np.float32) for rows in (x, x_test)]
    return UserData(flat[0], y.astype(np.intp), flat[1], y_test.astype(np.intp))
