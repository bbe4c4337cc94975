"""Scores of clicks against their literal definitions, and the baselines.

scikit-learn is not among what the project installs: the definitions are written out here, and SciPy's Mann-Whitney statistic is
the AUC.
"""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import mannwhitneyu

from data.clicks import baselines, metrics
from data.task import DataError


def rows(n: int, ties: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores, of which many are equal or none are."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.3).astype(np.float32)
    scores = rng.normal(size=n) + labels
    return labels, np.round(scores) if ties else scores


def literal_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The share of pairs in the right order, ties one half."""
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [2, 3, 40, 500])
def test_auc_is_the_share_of_ordered_pairs(n, ties):
    """With ties and without, also after any rising function of the scores."""
    labels, scores = rows(n, ties)
    labels[:2] = 0, 1
    expected = literal_auc(labels, scores)
    assert_allclose(metrics.auc(labels, scores), expected, rtol=1e-12)
    assert_allclose(metrics.auc(labels, np.exp(scores)), expected, rtol=1e-12)
    both = np.count_nonzero(labels) * np.count_nonzero(labels == 0)
    assert_allclose(
        metrics.auc(labels, scores), mannwhitneyu(scores[labels == 1], scores[labels == 0]).statistic / both, rtol=1e-12
    )


def test_auc_of_all_equal_scores_is_a_half():
    """And of a perfect and of a reversed order 1 and 0."""
    labels = np.array([0, 1, 1, 0])
    assert metrics.auc(labels, np.zeros(4)) == 0.5
    assert metrics.auc(labels, labels) == 1.0 and metrics.auc(labels, -labels) == 0.0


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_alone_is_refused(label):
    """In one line, which says what all rows have."""
    labels = np.full(7, label)
    with pytest.raises(DataError, match=f"^all 7 rows have label {label}: an AUC compares rows of both$"):
        metrics.auc(labels, np.arange(7))
    with pytest.raises(DataError, match=f"^all 7 rows have label {label}: their entropy is 0"):
        metrics.normalized_entropy(labels, np.zeros(7))


def test_log_loss_is_the_mean_of_the_labels_own_probabilities():
    """By its definition, with weights too; large logits stay finite."""
    labels, logits = rows(50, ties=False)
    p = 1 / (1 + np.exp(-logits))
    losses = [-math.log(q if label else 1 - q) for q, label in zip(p, labels, strict=True)]
    assert_allclose(metrics.log_loss(labels, logits), np.mean(losses), rtol=1e-9)
    weights = np.where(labels > 0, 1.0, 0.25)
    assert_allclose(metrics.log_loss(labels, logits, weights), np.sum(weights * losses) / weights.sum(), rtol=1e-9)
    assert_allclose(metrics.log_loss(np.array([0.0, 1.0]), np.array([1000.0, 1000.0])), 500.0)
    assert_allclose(metrics.probabilities(np.array([-1000.0, 0.0, 1000.0])), [0, 0.5, 1], atol=1e-300)


def test_normalized_entropy_is_one_of_the_mean_label():
    """A model that knows only the mean has 1; one that knows more has less."""
    labels, logits = rows(400, ties=False)
    mean = labels.mean(dtype=np.float64)
    constant = np.full(400, math.log(mean / (1 - mean)))
    assert_allclose(metrics.normalized_entropy(labels, constant), 1.0, rtol=1e-9)
    assert metrics.normalized_entropy(labels, logits - 1.5) < 1


def literal_rankings(labels: np.ndarray, scores: np.ndarray, top: int) -> tuple[float, float]:
    """The mean of NDCG and hit over every order of the rows that the scores allow."""
    ndcgs, hits = [], []
    best = sum(1 / math.log2(place + 2) for place in range(min(top, int(labels.sum()))))
    for order in itertools.permutations(range(len(labels))):
        if any(scores[a] < scores[b] for a, b in itertools.pairwise(order)):
            continue
        gains = [labels[i] / math.log2(place + 2) for place, i in enumerate(order[:top])]
        ndcgs.append(sum(gains) / best)
        hits.append(any(labels[i] for i in order[:top]))
    return float(np.mean(ndcgs)), float(np.mean(hits))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("top", [1, 3, 10])
def test_rankings_are_means_over_the_orders_of_equal_scores(seed, top):
    """Five rows have two or three different scores: every order that these allow is as likely."""
    rng = np.random.default_rng(seed)
    labels, scores = rng.permutation([1.0, 1.0, 0.0, 0.0, 0.0] if seed % 2 else [1.0, 0.0, 0.0, 0.0, 0.0]), rng.integers(0, 3, 5)
    ndcg, hit_rate = literal_rankings(labels, scores, top)
    scored = metrics.rankings(labels, scores, np.zeros(5), top)
    assert_allclose([scored["ndcg"], scored["hit_rate"]], [ndcg, hit_rate], rtol=1e-9)


def test_groups_are_ranked_by_themselves():
    """In any order of the rows; groups of one label are left out, and without others there is no score."""
    labels = np.array([1, 0, 0, 1, 0, 0, 1, 1])
    scores = np.array([3, 1, 2, 1, 2, 3, 0, 1])
    groups = np.array([7, 7, 7, 4, 4, 4, 9, 9])
    expected = {"ndcg": (1 + 0.5) / 2, "hit_rate": 1.0}
    assert metrics.rankings(labels, scores, groups) == pytest.approx(expected)
    order = np.random.default_rng(0).permutation(8)
    assert metrics.rankings(labels[order], scores[order], groups[order]) == pytest.approx(expected)
    assert metrics.rankings(labels[6:], scores[6:], groups[6:]) == {}
    assert metrics.rankings(labels[:0], scores[:0], groups[:0]) == {}


def test_popularity_is_the_share_of_positive_rows_drawn_to_the_mean():
    """An item without rows has the mean itself."""
    items, labels = np.array([0] * 90 + [1] * 10), np.array([1.0] * 45 + [0.0] * 45 + [0.0] * 10)
    mean = 45.5 / 101
    shares = [(45 + 10 * mean) / 100, 10 * mean / 20, mean]
    assert_allclose(metrics.probabilities(baselines.popularity(items, labels, 3)), shares, rtol=1e-9)


def test_factors_find_what_popularity_cannot():
    """Two groups of users like the two groups of items the other way around: every item is equally liked."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 40, 8000), rng.integers(0, 30, 8000)
    labels = ((users % 2 == items % 2) ^ (rng.random(8000) < 0.1)).astype(np.float32)
    train, held = ((users[part], items[part], labels[part]) for part in (slice(0, 6000), slice(6000, None)))
    popular = baselines.popularity(train[1], train[2], 31)[held[1]]
    fitted = baselines.fitted(train, held, (41, 31))
    assert metrics.auc(held[2], popular) < 0.6
    assert metrics.auc(held[2], fitted(held[0], held[1])) > 0.85
    again = baselines.fitted(train, held, (41, 31))
    assert (again.users == fitted.users).all() and (again.items == fitted.items).all()
    # A user without training rows has the bias of the item alone; so has an item without any.
    lone = fitted(np.array([40, 40]), np.array([3, 30]))
    assert_allclose(lone, [fitted.mean + fitted.items[3, -1], fitted.mean])


def test_factors_have_the_gradient_of_the_loss():
    """A step without decay goes down along what differences of the loss say."""
    rng = np.random.default_rng(1)
    tables = [rng.normal(size=(3, 4)), rng.normal(size=(2, 4))]
    tables[0][:, 3] = tables[1][:, 2] = 1.0
    rows = [np.array([0, 1, 1, 2]), np.array([0, 1, 0, 1]), np.array([1.0, 0.0, 1.0, 1.0])]

    def loss(users: np.ndarray) -> float:
        logits = baselines.Factors(0.3, users, tables[1])(rows[0], rows[1])
        return 4 * metrics.log_loss(rows[2], logits)

    before = tables[0].copy()
    slope = np.zeros((3, 3))
    for at in itertools.product(range(3), range(3)):
        up, down = before.copy(), before.copy()
        up[at] += 1e-5
        down[at] -= 1e-5
        slope[at] = (loss(up) - loss(down)) / 2e-5
    squares = [np.full_like(table, 1e12) for table in tables]  # steps of Adagrad are then in proportion to the gradient
    baselines._step(tables, squares, rows, 0.3, baselines.Fit(factors=2, rate=1e6, decay=0.0))  # pyright: ignore[reportPrivateUsage]
    assert_allclose(before[:, :3] - tables[0][:, :3], slope, rtol=1e-4, atol=1e-7)
    assert (tables[0][:, 3] == 1).all() and (tables[1][:, 2] == 1).all()
