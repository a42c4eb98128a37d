"""Scores of a classifier: the confusion matrix is the only state, and every score is a function of it.

C classes; rows of a confusion matrix are true classes, columns are predictions. Counts are computed with Python's
integers, since the squares of pooled counts would overflow int64 and lose digits in float64.
"""

import math

from torch import Tensor


def scores(confusion_CC: Tensor) -> dict[str, float]:
    """Accuracy, F1 (weighted and macro), balanced accuracy and the multiclass MCC; all are 0 without any image.

    The conventions are scikit-learn's: an undefined F1 is 0, the macro mean goes over classes that appear in truth or
    prediction, balanced accuracy over classes with support, and MCC is 0 when truth or prediction is constant.

    Args:
        confusion_CC: int64 counts; those of several sites may be summed before.

    Raises:
        ValueError: the matrix is not square.
    """
    support, predicted, hits = _margins(confusion_CC)
    images = sum(support)
    f1 = [2 * h / (s + p) if s + p else 0.0 for s, p, h in zip(support, predicted, hits, strict=True)]
    appearing = sum(s + p > 0 for s, p in zip(support, predicted, strict=True))
    recalls = [recall for recall in per_class_recall(confusion_CC) if recall is not None]
    return {
        "accuracy": _ratio(sum(hits), images),
        "f1_weighted": _ratio(sum(f * s for f, s in zip(f1, support, strict=True)), images),
        "f1_macro": _ratio(sum(f1), appearing),
        "balanced_accuracy": _ratio(sum(recalls), len(recalls)),
        "mcc": _matthews(support, predicted, sum(hits)),
    }


def per_class_recall(confusion_CC: Tensor) -> list[float | None]:
    """Share of each class's images that were recognised; None for a class without images.

    Raises:
        ValueError: the matrix is not square.
    """
    support, _, hits = _margins(confusion_CC)
    return [h / s if s else None for s, h in zip(support, hits, strict=True)]


def _margins(confusion_CC: Tensor) -> tuple[list[int], list[int], list[int]]:
    """Row sums, column sums and the diagonal."""
    if confusion_CC.ndim != 2 or confusion_CC.shape[0] != confusion_CC.shape[1]:
        raise ValueError(f"a confusion matrix must be square, got the shape {list(confusion_CC.shape)}")
    rows: list[list[int]] = confusion_CC.tolist()
    support = [sum(row) for row in rows]
    predicted = [sum(column) for column in zip(*rows, strict=True)]
    return support, predicted, [row[c] for c, row in enumerate(rows)]


def _matthews(support: list[int], predicted: list[int], hits: int) -> float:
    """R_K of Gorodkin (2004), the correlation of truth and prediction as indicator vectors."""
    images = sum(support)
    covariance = hits * images - sum(s * p for s, p in zip(support, predicted, strict=True))
    variance_true = images**2 - sum(s**2 for s in support)
    variance_predicted = images**2 - sum(p**2 for p in predicted)
    return _ratio(covariance, math.sqrt(variance_true * variance_predicted))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
