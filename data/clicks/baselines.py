"""Scores without a network, for one to beat: each item's share of positive rows, and matrix factorisation.

N rows, U users, I items, K factors.
"""

import dataclasses

import numpy as np

from data.clicks import metrics

DRAWN = 10.0
"""Rows of the mean that an item's own are put together with, so that one row decides little."""


def popularity(items_N: np.ndarray, labels_N: np.ndarray, items: int) -> np.ndarray:
    """Returns the logit of each item's share of positive rows [I]; of the share of all rows where it has none."""
    mean = (labels_N.sum() + 0.5) / (len(labels_N) + 1)
    positive_I = np.bincount(items_N, weights=labels_N, minlength=items) + DRAWN * mean
    share_I = positive_I / (np.bincount(items_N, minlength=items) + DRAWN)
    return np.log(share_I) - np.log1p(-share_I)


@dataclasses.dataclass(frozen=True)
class Factors:
    """Logistic matrix factorisation: logit = mean + a_u + b_i + p_u . q_i.

    Attributes:
      mean: logit of the average row.
      users, items: float64 [U, K + 2] and [I, K + 2]; a user's row is (p_u, a_u, 1) and an item's (q_i, 1, b_i).
    """

    mean: float
    users: np.ndarray
    items: np.ndarray

    def __call__(self, users_N: np.ndarray, items_N: np.ndarray) -> np.ndarray:
        """Returns logits [N]; those of users or items without training rows have only the other's share."""
        return self.mean + np.einsum("nk,nk->n", self.users[users_N], self.items[items_N])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """How factors are fitted.

    Attributes:
      factors: K.
      epochs: over the training rows, at most; the state of the epoch with the least held-out log-loss is taken.
      batch: rows of a step.
      rate: of Adagrad's steps, of the sum of a batch's gradients.
      decay: of a row's factors and biases, each time that the row is trained on.
      seed: of the first factors, and of the order of rows.
    """

    factors: int = 16
    epochs: int = 20
    batch: int = 4096
    rate: float = 0.1
    decay: float = 0.02
    seed: int = 0


def fitted(
    train: tuple[np.ndarray, np.ndarray, np.ndarray],
    held: tuple[np.ndarray, np.ndarray, np.ndarray],
    sizes: tuple[int, int],
    fit: Fit | None = None,
) -> Factors:
    """Returns factors fitted by Adagrad to rows (users [N], items [N], labels [N]): a function of the arguments alone.

    Args:
      held: rows that say when to stop: once their log-loss has not become less for two epochs.
      sizes: U and I.
    """
    fit = fit or Fit()
    rng = np.random.default_rng(fit.seed)
    k = fit.factors
    tables = [rng.normal(0, 0.1, (size, k + 2)) for size in sizes]
    for table, own in zip(tables, (k, k + 1), strict=True):
        table[:, k:] = 1.0
        table[:, own] = 0.0  # the bias; the other column stays 1, for the other side's bias
    squares = [np.full_like(table, 1e-2) for table in tables]
    labels_N = train[2]
    mean = float((labels_N.sum() + 0.5) / (len(labels_N) + 1))
    base = float(np.log(mean) - np.log1p(-mean))
    for table, codes in zip(tables, train[:2], strict=True):  # nothing is known of those that training lacks
        unknown = np.bincount(codes, minlength=len(table)) == 0
        table[unknown, :k] = 0.0
    best, least, waited = Factors(base, *(table.copy() for table in tables)), np.inf, 0
    for _ in range(fit.epochs):
        order_N = rng.permutation(len(labels_N))
        for start in range(0, len(order_N), fit.batch):
            _step(tables, squares, [column[order_N[start : start + fit.batch]] for column in train], base, fit)
        model = Factors(base, *tables)
        loss = metrics.log_loss(held[2], model(*held[:2]))
        if loss < least:
            best, least, waited = Factors(base, *(table.copy() for table in tables)), loss, 0
        elif (waited := waited + 1) == 2:
            break
    return best


def _step(tables: list[np.ndarray], squares: list[np.ndarray], rows: list[np.ndarray], base: float, fit: Fit) -> None:
    """Changes the tables by one batch."""
    users_B, items_B, labels_B = rows
    p_BK, q_BK = tables[0][users_B], tables[1][items_B]
    errors_B = metrics.probabilities(base + np.einsum("bk,bk->b", p_BK, q_BK)) - labels_B
    k = fit.factors
    gradients = (errors_B[:, None] * q_BK + fit.decay * p_BK, errors_B[:, None] * p_BK + fit.decay * q_BK)
    for table, square, codes_B, gradient_BK, one in zip(tables, squares, (users_B, items_B), gradients, (k + 1, k), strict=True):
        gradient_BK[:, one] = 0.0
        changed, places_B = np.unique(codes_B, return_inverse=True)
        sums = np.zeros((len(changed), k + 2))
        np.add.at(sums, places_B, gradient_BK)
        square[changed] += sums**2
        table[changed] -= fit.rate * sums / np.sqrt(square[changed])
