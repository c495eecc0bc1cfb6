"""A run of linear regression on Gaussian examples with a factorization's noise: exact second moments of every step.

docs/notes/frequency-domain.md derives it. Examples are new in every step, so that later noise correlates with the
iterates as if each batch's mean of x x^T were H. The noise adds the gain per step of the quadratic's moments v_t beyond
the contraction, and the moments themselves feel the fourth moment of x:

    m_{t+1} = (1 - x)^2 m_t + (x^2 m_t + eta x sum_i l_i m_{i,t}) / batch + v_{t+1} - (1 - x)^2 v_t,      x = eta l.
"""

from typing import Literal

import numpy as np

from factorize.plain_data import Count, NonNegative
from factorize.predict.prediction import NO_CLIPPING, Inverse, Prediction, require, rows_wanted
from factorize.predict.quadratic import ExactRun, shown_steps


class StochasticRegression(ExactRun):
    """The exact expected loss of SGD on fresh Gaussian examples, linear regression, with the noise of a factorization.

    The Hessian is the inputs' covariance H, and noise is added to the mean gradient of a batch; there is no momentum.

    Attributes:
        batch_size: examples whose mean gradient makes a step.
        label_noise: standard deviation of the labels around the best prediction.
    """

    kind: Literal["stochastic_regression"]
    batch_size: Count = 1
    label_noise: NonNegative = 0.0

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return E F(theta_n) - F(theta*), its parts, and the whole path, with the numbers for exact gradients."""
        source = rows_wanted(inverse, self.kind)
        self._settles()
        parts, averaged = self.losses(source)
        loss = parts.sum(axis=0)
        shown = shown_steps(len(loss))
        return Prediction(
            quantity="E F(theta_n) - F(theta*)",
            value=float(loss[-1]),
            terms={
                "initial": float(parts[0, -1]),
                "noise": float(parts[1, -1]),
                "label_noise": float(parts[2, -1]),
                "average_loss": float(loss.mean()),
                "exact_gradients": float(averaged[-1]),
            },
            assumptions=("inputs N(0, H), new examples in every step, independent label noise", NO_CLIPPING),
            source="docs/notes/frequency-domain.md",
            series={"step": shown.tolist(), "loss": loss[shown].tolist(), "exact_gradients": averaged[shown].tolist()},
        )

    def losses(self, inverse: Inverse) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss's parts from start, noise and labels, shape (3, n + 1), and the loss with exact gradients."""
        eta, eigenvalues = self.learning_rate, np.array(self.eigenvalues)
        signal, noise = self.moments(inverse, momentum=0.0)
        x = eta * eigenvalues
        kept = (1 - x) ** 2
        moments = np.stack([signal[0], noise[0], np.zeros_like(x)])
        labels = eta**2 * self.label_noise**2 * eigenvalues / self.batch_size
        losses = np.empty((3, len(signal)))
        losses[:, 0] = moments @ eigenvalues / 2
        for t in range(len(signal) - 1):
            spread = (x**2 * moments + eta * np.outer(moments @ eigenvalues, x)) / self.batch_size
            moments = kept * moments + spread
            moments[1] += noise[t + 1] - kept * noise[t]
            moments[2] += labels
            losses[:, t + 1] = moments @ eigenvalues / 2
        return losses, (signal + noise) @ eigenvalues / 2

    def _settles(self) -> None:
        """Refuse learning rates at which second moments grow without bound.

        Raises:
            ConditionNotMet: second moments grow without bound.
        """
        batch, x = self.batch_size, self.learning_rate * np.array(self.eigenvalues)
        if not x.any():
            return
        room = 2 - x * (1 + 1 / batch)
        spread = float((x / room).sum() / batch) if (room > 0).all() else np.inf
        total, largest = float(sum(self.eigenvalues)), max(self.eigenvalues)
        enough = 2 / (total / batch + largest * (1 + 1 / batch))
        require(
            spread < 1,
            f"learning_rate={self.learning_rate} makes second moments grow without bound at batch_size={batch}",
            f"use a learning_rate below {enough:.6g}, which always converges",
            field="/learning_rate",
        )
