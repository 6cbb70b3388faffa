"""Losses over the captions and images of a batch: a function that gives one term per pair, a module over it.

A method combines the functions and reduces by itself. The modules take a matrix of scores (T, I) of any
model, captions first, with a weight for each pair: its clean probability.

=====================  ======================  =================================================
module                 function                what a pair pays for
=====================  ======================  =================================================
`InfoNCE`              `infonce_terms`         not being the most similar of its row and column
`AwarenessHinge`       `hinge_terms`           negatives within a margin of its own score
`Complementary`        `complementary_terms`   its negatives only; a wrong label attracts nothing
`Distillation`         `distillation_terms`    scoring the batch differently than a teacher does
=====================  ======================  =================================================
"""

from pmpguard.losses.complementary import Complementary, complementary_terms
from pmpguard.losses.distillation import Distillation, distillation_terms
from pmpguard.losses.hinge import AwarenessHinge, hinge_terms
from pmpguard.losses.infonce import InfoNCE, infonce_terms
from pmpguard.losses.pair_loss import PairLoss
from pmpguard.losses.positives import positive_targets

__all__ = [
    "AwarenessHinge",
    "Complementary",
    "Distillation",
    "InfoNCE",
    "PairLoss",
    "complementary_terms",
    "distillation_terms",
    "hinge_terms",
    "infonce_terms",
    "positive_targets",
]
