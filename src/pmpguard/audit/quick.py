"""An audit without any training: judged by what frozen pretrained encoders know of the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import normalize

from pmpguard.audit.crossfit import CrossfitConfig, has_weights, look_at_table, training_settings
from pmpguard.audit.judging import JudgedPart, distinct_captions
from pmpguard.data.images.sources import ImageSource, open_images
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.detection.evidence.regression import fit_regression
from pmpguard.detection.evidence.witnesses import centred
from pmpguard.detection.training_free import TrainingFreeEvidence
from pmpguard.detection.verdicts import CAPTION_AGREEMENT, caption_agreement_measure, measured_evidence
from pmpguard.device import pick_device
from pmpguard.errors import ConfigError
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split


def judged_quickly(
    table: PairTable,
    config: CrossfitConfig,
    duplicates: Sequence[Sequence[int]] = (),
    images: ImageSource | None = None,
) -> tuple[JudgedPart, Retriever]:
    """All pairs of a table as the training-free detection sees them, and the encoders that looked.

    `duplicates` are sets of image codes that show the same image. No words are judged: encoders that were
    never trained together cannot find one in a image.
    """
    if config.encoders == "tiny" or not has_weights():
        raise ConfigError(
            "a quick audit needs pretrained encoders",
            fix="install the extra 'weights' and leave --crossfit.encoders at auto, or audit without --quick",
        )
    settings = training_settings(table, config)
    device = pick_device(settings.device)
    retriever = Retriever.create(settings.model, table.captions).to(device).eval()
    if images is None:
        images = open_images(table, settings.model.image_size, device)
    # no features are kept but pooled ones: those of large sets would not fit
    whole = Split.open(table, images, retriever, batch=settings.batch_size, precision=settings.precision)
    looked = look_at_table(whole, retriever, settings.seed, duplicates)
    return judged_without_model(table, looked, config.seed), retriever


@torch.no_grad()
def judged_without_model(table: PairTable, looked: TrainingFreeEvidence, seed: int) -> JudgedPart:
    """All pairs of a table by training-free evidence alone: captions and images need no common space.

    For proposals, captions are mapped to where their images would be, by regression.
    """
    device = looked.captions.device
    caption_of, image_of = (torch.from_numpy(x).to(device) for x in (table.caption_codes, table.image_codes))
    agree = caption_agreement_measure(centred(looked.captions), caption_of, image_of)
    measures = looked.measures if agree is None else {**looked.measures, CAPTION_AGREEMENT: agree}
    evidence = measured_evidence(measures, caption_of, image_of, image_label_codes(table), seed=seed)
    learned = fit_regression(looked.captions, looked.images, caption_of, image_of, looked.clean_probability)
    imaged = normalize(looked.captions @ learned, dim=1)  # (C, l)
    rows, numbers = np.arange(len(table)), np.arange(len(imaged))
    return JudgedPart(
        rows, imaged, looked.images, caption_of, image_of, distinct_captions(table), numbers,
        replace(evidence, alike=looked.alike),
    )  # fmt: skip
