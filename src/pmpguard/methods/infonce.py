"""InfoNCE on pooled tokens: the plain control every table carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.method import EncodedBatch, Method, pooled_cosines


@dataclass(frozen=True)
class InfoNceSettings:
    """`form`: mean of row and column cross-entropy, or the joint form of eq. 6."""

    form: Literal["symmetric", "joint"] = "symmetric"


class InfoNce(Method):
    """Cross-entropy of each caption over the batch's images and of each image over its captions.

    Pairs that share an image or a caption string are positives of each other. Trusts every label.
    """

    name = "infonce"
    Settings = InfoNceSettings

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        logits = pooled_cosines(batch) / self.temperature  # (T, I)
        return {"infonce": infonce_terms(logits, batch.targets, batch.image_of, self.settings.form)}
