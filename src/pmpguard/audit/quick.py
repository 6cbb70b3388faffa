"""An audit without any training: judged by what frozen pretrained encoders know of the dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pmpguard.audit.crossfit import CrossfitConfig, has_weights, judge_training_free, training_settings
from pmpguard.audit.judging import JudgedPart, judged_part
from pmpguard.data.images.sources import ImageSource, StreamedImages, open_images
from pmpguard.data.pairs import PairTable
from pmpguard.detection.evidence.similarity import Measure
from pmpguard.device import pick_device
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.errors import ConfigError
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split
from pmpguard.training.encode_parts import pooled_features_in_parts


def judged_quickly(
    table: PairTable,
    config: CrossfitConfig,
    duplicates: Sequence[Sequence[int]] = (),
    images: ImageSource | None = None,
    more: Mapping[str, Measure] | None = None,
    engine: Engine = ALONE,
) -> tuple[JudgedPart, Retriever]:
    """All pairs of a table as training-free detection judges them, and the encoders that saw them.

    `duplicates` are sets of image codes that show the same image. No words are judged: encoders that were
    never trained together cannot find one in an image. `more` is further evidence on the table;
    the engine's workers share the encoding.
    """
    if config.encoders == "tiny" or not has_weights():
        raise ConfigError(
            "a quick audit needs pretrained encoders",
            fix="install the extra 'weights' and leave --crossfit.encoders at auto, or audit without --quick",
        )
    settings = training_settings(table, config)
    device, model = pick_device(settings.device), settings.model
    retriever = Retriever.create(model, table.captions).to(device).eval()
    if images is None and not engine.alone:
        images = StreamedImages(table, model.input_size, device, framing=model.framing)  # read by the workers
    elif images is None:
        images = open_images(table, model.input_size, device, framing=model.framing)
    # no features are kept but pooled ones: those of large sets would not fit
    whole = Split.open(table, images, retriever, batch=settings.batch_size, precision=settings.precision)
    if engine.alone:
        features = whole.pooled_features(retriever)
    else:
        features = pooled_features_in_parts(whole, retriever, engine, title="encoding")
    found = judge_training_free(table, features, settings.seed, duplicates, more)
    return judged_part(table, found), retriever
