import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.errors import DataError
from pmpguard.evaluation.classes import class_precision


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 15), st.integers(0, 99))
def test_precision_is_counted_one_by_one(classes, images, k, seed):
    drawn = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 5, (classes, images), generator=drawn).float()
    labels = [f"c{number}" for number in torch.randint(0, classes + 1, (images,), generator=drawn).tolist()]
    names = [f"c{number}" for number in range(classes)]
    found = class_precision(scores, labels, names, k).tolist()
    for row, name in enumerate(names):
        order = sorted(range(images), key=lambda place: (-scores[row, place].item(), place))[:k]
        assert found[row] == pytest.approx(sum(labels[place] == name for place in order) / len(order))


def test_scores_of_another_shape_are_refused():
    with pytest.raises(DataError, match=r"\(1, 2\)"):
        class_precision(torch.zeros(1, 2), ["a"], ["a"])
