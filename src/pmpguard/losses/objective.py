"""The objective (eq. 16): per-pair terms times the pairs' weights, then the mean, then the weighted sum."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pmpguard.errors import ConfigError


def reduce_terms(
    terms: Mapping[str, Tensor], weights: Tensor | None, coefficients: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Total loss, and the mean of each term for the log.

    terms: name -> (T,) one number per pair; weights (T,), how much each pair is believed, or None for 1;
    coefficients: name -> its factor (lambda of eq. 16). The mean is over all T pairs, not over the sum of
    weights: a batch of disbelieved pairs gives a small loss, and lambda does not depend on the batch size.
    Weights carry no gradient. The log holds each term's weighted mean, without its factor, and "total".

    >>> total, log = reduce_terms({"a": torch.tensor([1.0, 3.0])}, torch.tensor([1.0, 0.0]), {"a": 2.0})
    >>> total, log["a"]
    (tensor(1.), tensor(0.5000))
    """
    if not terms:
        raise ConfigError("there is no loss term to reduce", fix="enable at least one loss")
    missing = sorted(set(terms) - set(coefficients))
    if missing:
        raise ConfigError(
            f"loss terms without a coefficient: {missing}", fix=f"known coefficients: {sorted(coefficients)}"
        )
    means = {}
    for name, term in terms.items():
        weighted = term if weights is None else term * weights.detach().to(term.dtype)
        means[name] = weighted.mean()
    total = torch.stack([coefficients[name] * mean for name, mean in means.items()]).sum()
    return total, {name: mean.detach() for name, mean in {**means, "total": total}.items()}
