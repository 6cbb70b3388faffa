"""The report of a training run: the pairs its method flagged, the captions it proposes, and the truth.

The verdicts and proposals are the method's own, as training left them; words are judged by the trained model.
The truth is known because the noise was injected: the report shows it beside the verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from pmpguard.audit.audit import duplicate_pairs
from pmpguard.audit.report_columns import PairTruth
from pmpguard.audit.rows import AuditRow, AuditSummary, Proposal
from pmpguard.audit.sprites import LoadThumbnail
from pmpguard.audit.word_evidence import ImageWords, WordList, WordSpan, spelling_vectors, word_spans
from pmpguard.audit.word_verdicts import JudgedWords, judge_words
from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.detection.judge import FLAGGED_BELOW
from pmpguard.errors import ConfigError
from pmpguard.experiments.run import ExperimentResult, PreparedDataset
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

BATCH = 128
HEAT_MAPS = 2000  # pairs, the most suspicious, that keep where each word is found


@dataclass(frozen=True)
class TrainingAudit:
    """The training pairs as the report shows them, and their images."""

    table: PairTable  # as trained on, with the mismatched captions
    rows: list[AuditRow]
    summary: AuditSummary
    truth: dict[str, PairTruth]
    load_thumbnail: LoadThumbnail


@dataclass(frozen=True)
class PairWords:
    """The words of the training pairs and how they lie to the images' regions."""

    words: WordList
    image_words: ImageWords
    image_of: Tensor  # (N,)
    spans: list[tuple[WordSpan, ...]]  # of each distinct caption
    grid: tuple[int, int]


def audit_training(
    result: ExperimentResult, data: PreparedDataset, heat_maps: int = HEAT_MAPS
) -> TrainingAudit:
    """What a method that detects has concluded about every training pair."""
    method = result.trained.method
    if method.p_match is None or result.detection is None:
        raise ConfigError("this method judges no pairs, there is nothing to report", fix="train pmpguard")
    table, images = result.corruption.table.split("train"), data.images["train"]
    p_match = method.p_match.double().cpu().numpy()  # (N,)
    retriever = result.trained.retriever.eval()
    captions = table.captions
    texts = [captions[row] for row in np.unique(table.caption_codes, return_index=True)[1]]
    pairs = pair_words(retriever, table, images, texts)
    words = judge_words(pairs, p_match)
    assert words is not None
    rank = np.empty(len(table), np.int64)
    rank[np.argsort(p_match, kind="stable")] = np.arange(1, len(table) + 1)
    source = surest_pairs(table, p_match)
    columns = {name: table.column(name) for name in ("pair_id", "image", "split", "label")}
    rows = []
    for row, p in enumerate(p_match.tolist()):
        flag = p < FLAGGED_BELOW
        verdicts = words.verdicts(row, with_regions=bool(rank[row] <= heat_maps))
        number = -1 if method.proposed_caption is None else int(method.proposed_caption[row])
        proposals: tuple[Proposal, ...] = ()
        if flag and number >= 0 and method.proposed_probability is not None:
            probability = float(method.proposed_probability[row])
            proposals = (proposal(texts, number, probability, source[number], pairs, words, row),)
        rows.append(
            AuditRow(
                pair_id=columns["pair_id"][row],
                image=columns["image"][row],
                caption=captions[row],
                split=columns["split"][row],
                label=columns["label"][row] or "",
                p_match=p,
                flag=flag,
                rank=int(rank[row]),
                words=verdicts if flag or any(word.wrong for word in verdicts) else (),
                grid=pairs.grid,
                proposals=proposals,
            )
        )
    summary = AuditSummary(
        pairs=len(table),
        images=len(table.first_rows),
        flagged=sum(row.flag for row in rows),
        mismatch_rate=result.detection.estimated_rate,
        mismatch_interval=None,
        duplicate_pairs=duplicate_pairs(table),
        duplicate_images=None,
        model=f"the model trained on these pairs with {result.row.method}",
        dataset=table.fingerprint,
    )
    return TrainingAudit(table, rows, summary, truth_of(result, data), thumbnails_of(table, images))


def pair_words(retriever: Retriever, table: PairTable, images: ImageSource, texts: list[str]) -> PairWords:
    """Encode the images and every spelling of the captions."""
    codes = np.arange(len(images))
    parts = images.batches([codes[start : start + BATCH] for start in range(0, len(codes), BATCH)])
    encoded = Encoded.cat([retriever.encode_images(pixels) for pixels in parts])
    spans = [word_spans(retriever.tokenizer, text, retriever.config.max_tokens) for text in texts]
    words = WordList.of(table.captions, [spans[code] for code in table.caption_codes])
    image_words = ImageWords.of(spelling_vectors(retriever, words.spellings), encoded.fragments)
    side = retriever.image_encoder.grid
    return PairWords(words, image_words, torch.from_numpy(table.image_codes), spans, (side, side))


def surest_pairs(table: PairTable, p_match: npt.NDArray[np.float64]) -> dict[int, str]:
    """For each caption number the pair, of those that carry it, that most probably does so rightly."""
    ids = table.column("pair_id")
    return {int(table.caption_codes[row]): ids[row] for row in np.argsort(p_match, kind="stable")}


def proposal(
    texts: list[str],
    number: int,
    probability: float,
    source: str,
    pairs: PairWords,
    words: JudgedWords,
    row: int,
) -> Proposal:
    """A caption proposed for a pair's image, with its words judged on it."""
    verdicts = words.of_proposal(texts[number], pairs.spans[number], int(pairs.image_of[row]))
    return Proposal(texts[number], probability, source, verdicts)


def truth_of(result: ExperimentResult, data: PreparedDataset) -> dict[str, PairTruth]:
    """By pair id the caption before the noise was injected, and whether it was mismatched."""
    clean = data.table.split("train")
    is_noisy = result.corruption.is_noisy[np.array(data.table.column("split")) == "train"]
    pairs = zip(clean.column("pair_id"), clean.captions, is_noisy.tolist(), strict=True)
    return {pair: PairTruth(caption, mismatched) for pair, caption, mismatched in pairs}


def thumbnails_of(table: PairTable, images: ImageSource) -> LoadThumbnail:
    """Images by the name in the `image` column, from the ones training has open."""
    code_of = dict(zip(table.column("image"), table.image_codes.tolist(), strict=True))

    def load(name: str) -> Image.Image:
        pixels = next(iter(images.batches([np.array([code_of[name]])])))[0]  # (3, s, s)
        return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())

    return load
