"""An audit without any training: judged by what frozen pretrained encoders know of the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import normalize

from pmpguard.audit.crossfit import CrossfitConfig, has_weights, look_at_table, training_settings
from pmpguard.audit.judging import JudgedPart, distinct_captions
from pmpguard.data.images.sources import Pictures, open_pictures
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.detection.evidence.regression import learned_map
from pmpguard.detection.evidence.witnesses import centred
from pmpguard.detection.verdicts import AGREEMENT, agreement_measure, measured_evidence
from pmpguard.errors import ConfigError
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split
from pmpguard.training.loader import TokenTable
from pmpguard.training.loop import pick_device


def judged_quickly(
    table: PairTable,
    config: CrossfitConfig,
    copies: Sequence[Sequence[int]] = (),
    pictures: Pictures | None = None,
) -> tuple[JudgedPart, Retriever]:
    """All pairs of a table as the first look sees them, and the encoders that looked.

    `copies` are sets of image codes that show the same picture. No words are judged: encoders that were never
    trained together cannot find one in a picture.
    """
    if config.encoders == "tiny" or not has_weights():
        raise ConfigError(
            "a quick audit needs pretrained encoders",
            fix="install the extra 'weights' and leave --crossfit.encoders at auto, or audit without --quick",
        )
    settings = training_settings(table, config)
    device = pick_device(settings.device)
    retriever = Retriever.create(settings.model, table.captions).to(device).eval()
    if pictures is None:
        pictures = open_pictures(table, settings.model.image_size, device)
    # no tokens are kept but pooled ones: large sets would not fit
    whole = Split(table, pictures, TokenTable.of(table, retriever, device))
    looked = look_at_table(whole, retriever, settings, copies)
    caption_of, image_of = (torch.from_numpy(x).to(device) for x in (table.caption_codes, table.image_codes))
    agree = agreement_measure(centred(looked.captions), caption_of, image_of)
    measures = looked.measures if agree is None else {**looked.measures, AGREEMENT: agree}
    evidence = measured_evidence(measures, caption_of, image_of, image_label_codes(table), seed=config.seed)
    learned = learned_map(looked.captions, looked.images, caption_of, image_of, looked.trust)
    pictured = normalize(looked.captions @ learned, dim=1)  # (C, l)
    rows, numbers = np.arange(len(table)), np.arange(len(pictured))
    part = JudgedPart(
        rows, pictured, looked.images, caption_of, image_of, distinct_captions(table), numbers,
        replace(evidence, alike=looked.alike),
    )  # fmt: skip
    return part, retriever
