"""From models to verdicts: encode what each model may judge, weigh the evidence, look at words, propose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.audit.proposals import ProposedCaptions, propose_for_rows
from pmpguard.audit.row_list import AuditRows
from pmpguard.audit.rows import AuditRow, Proposal, WordVerdict
from pmpguard.audit.word_evidence import ImageWords, WordList, WordSpan, spelling_vectors, word_spans
from pmpguard.audit.word_verdicts import JudgedWords, judge_words
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.nearest import full
from pmpguard.detection.evidence.neighbours import NeighbourGraph
from pmpguard.detection.evidence.regression import BLOCK_ROWS, regression_sums
from pmpguard.detection.evidence.similarity import Measure, ScoreStatistics, similarity_measure
from pmpguard.detection.judge import Verdicts, judge_pairs
from pmpguard.detection.measures import PairEvidence, measured_evidence
from pmpguard.detection.null_pairs import Evidence, NullPairs, sample_null_pairs
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.stable_random import StableRandom
from pmpguard.training import kept_vectors
from pmpguard.training.encode import Split
from pmpguard.training.loader import ImageInputs

Rows = npt.NDArray[np.int64]
WORDS = "words"
RANKED_ONLY = (
    "proposals: read their probabilities as a ranking; scene classes of images would calibrate them, and are "
    "not known here"
)
SHOWN = ("pair_id", "image", "caption", "split", "label")
REFERENCES = 32  # captions and images that standardise


@dataclass(frozen=True)
class JudgedPart:
    """Some pairs as one set of embeddings sees them; `words` are None where it has no words."""

    rows: Rows  # (N,) of the judged table
    captions: Tensor  # (C, d) unit, each distinct caption; of large sets in float16
    images: Tensor  # (I, d) unit, each distinct image, in the space of the captions; likewise
    text_of: Tensor  # (N,)
    image_of: Tensor  # (N,)
    texts: list[str]  # the distinct captions
    text_numbers: Rows  # (C,) their numbers in the judged table, and so in other parts of it
    image_numbers: Rows  # (I,)
    evidence: PairEvidence
    null: NullPairs
    similar_texts: NeighbourGraph | None = None  # by their numbers in the judged table
    spans: list[tuple[WordSpan, ...]] | None = None  # of each distinct caption
    words: WordList | None = None  # of all pairs
    image_words: ImageWords | None = None
    grid: tuple[int, int] = (0, 0)
    meaning: Tensor | None = None  # (C,) how far from the mean image that of each caption is expected
    left_out: tuple[str, ...] = ()  # evidence that was not used, and why


def judged_part(table: PairTable, detector: NoiseDetector) -> JudgedPart:
    """A whole table as a detector judged it; captions are shown where its regression expects their images."""
    text_of, image_of = (
        torch.from_numpy(codes).to(detector.vectors[0].device)
        for codes in (table.caption_codes, table.image_codes)
    )
    texts, images = detector.vectors  # in float16 where there are many, and so is what is made of them
    sums = regression_sums(texts, images, text_of, image_of, detector.clean_probability)
    to_images = sums.to_images()
    expected = texts.new_empty(len(texts), to_images.shape[1])  # (C, l) unit
    meaning = torch.empty(len(texts), device=texts.device)
    for start in range(0, len(texts), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        found = full(texts[part]) @ to_images
        expected[part], meaning[part] = normalize(found, dim=1).to(expected), found.norm(dim=1)
    return JudgedPart(
        np.arange(len(table)), expected, images, text_of, image_of, distinct_captions(table),
        np.arange(len(texts)), np.arange(len(images)), detector.collected, detector.null,
        detector.similar_texts, meaning=meaning, left_out=tuple(detector.left_out),
    )  # fmt: skip


@torch.no_grad()
def judged_by_model(
    retriever: Retriever,
    table: PairTable,
    rows: Rows,
    pixels: ImageInputs,
    before: NoiseDetector | None = None,
    *,
    seed: int = 0,
    outside: Mapping[str, Measure] | None = None,
) -> JudgedPart:
    """Encode the pairs `rows` of `table` and measure the evidence.

    `pixels` are those of the rows, or features kept of a frozen backbone. `before` is what was known of the
    whole table before training; without it, the model's own embeddings are judged like any others, with
    `outside` as further evidence on the table.
    """
    device = retriever.device
    part = table.take(rows)
    texts = distinct_captions(part)
    captions, images = Split.open(part, pixels, retriever).encode(retriever, most=kept_vectors.MAX_BYTES)
    text_of, image_of = (torch.from_numpy(x).to(device) for x in (part.caption_codes, part.image_codes))
    labels, numbers = image_label_codes(part), numbers_in(table, part, rows)
    more: dict[str, Measure] = {} if before is not None else _of_part(outside or {}, numbers, rows)
    if "awareness" in retriever.config.ranking:
        more[WORDS] = word_region_measure(captions, images, seed)
    if before is None:
        detector = NoiseDetector(bootstrap=0, seed=seed).fit(
            captions.pooled, images.pooled, text_of, image_of, more=more, image_labels=labels
        )
        evidence, null, left_out = detector.collected, detector.null, detector.left_out
        similar = detector.similar_texts if (numbers[0] == np.arange(len(texts))).all() else None
    else:
        more["similarity"] = similarity_measure(captions.pooled, images.pooled)
        null = sample_null_pairs(text_of, image_of, seed, labels)
        evidence = measured_evidence(
            {**more, **_of_part(before.collected.measures, numbers, rows)}, text_of, image_of, null
        )
        similar, left_out = before.similar_texts, before.left_out
    spans = [word_spans(retriever.tokenizer, text, retriever.config.max_tokens) for text in texts]
    words = WordList.of(part.captions, [spans[code] for code in part.caption_codes])
    vectors = spelling_vectors(retriever, words.spellings)
    return JudgedPart(
        rows, full(captions.pooled), full(images.pooled), text_of, image_of, texts, *numbers, evidence, null,
        similar, spans, words, ImageWords.of(vectors, images.fragments.half(), seed),
        (retriever.image_encoder.grid, retriever.image_encoder.grid),
        left_out=tuple(told for told in left_out if told.split(":")[0] not in evidence.evidence),
    )  # fmt: skip


def _of_part(measures: Mapping[str, Measure], numbers: tuple[Rows, Rows], rows: Rows) -> dict[str, Measure]:
    """Measures of a whole table for a part with numbers of its own."""
    texts, images, places = (torch.from_numpy(each) for each in (*numbers, rows))

    def of(measure: Measure) -> Measure:
        def asked(some: Tensor, others: Tensor, left_out: Tensor) -> Tensor:
            return measure(
                texts.to(some.device)[some], images.to(some.device)[others], places.to(some.device)[left_out]
            )

        return asked

    return {name: of(measure) for name, measure in measures.items()}


def numbers_in(table: PairTable, part: PairTable, rows: Rows) -> tuple[Rows, Rows]:
    """Which numbers the captions (C,) and the images (I,) of a part, some rows, have in the whole table."""
    codes = ((part.caption_codes, table.caption_codes), (part.image_codes, table.image_codes))
    captions, images = (whole[rows[np.unique(own, return_index=True)[1]]] for own, whole in codes)
    return captions, images


def word_region_measure(
    captions: Encoded, images: Encoded, seed: int = 0, references: int = REFERENCES
) -> Measure:
    """How well a caption's words are found among a image's regions: the mean of their largest cosines.

    That is what decides both branches of awareness attention, at a fraction of the cost of S. Standardised by
    what the caption gets on some reference images and the image from some reference captions.
    """
    draws = StableRandom("reference pairs", seed)
    some_captions, some_images = (
        items[torch.from_numpy(np.sort(draws.choice(len(items), references))).to(items.mask.device)]
        for items in (captions, images)
    )
    by_caption = [mean_largest_cosines(part, some_images) for part in _split(captions)]
    by_image = [mean_largest_cosines(some_captions, part).T for part in _split(images)]
    (caption_mean, caption_std), (image_mean, image_std) = (
        (values.mean(1), values.std(1, correction=0).clamp(min=1e-3))
        for values in (torch.cat(by_caption), torch.cat(by_image))  # (C, R), (I, R)
    )
    statistics = ScoreStatistics(caption_mean, caption_std, image_mean, image_std)

    def measure(caption_numbers: Tensor, image_numbers: Tensor, _: Tensor) -> Tensor:
        parts = []
        for some in zip(torch.split(caption_numbers, 256), torch.split(image_numbers, 256), strict=True):
            mask = captions.mask[some[0]]  # (P, m)
            regions = images.fragments[some[1]].float().transpose(1, 2)  # (P, d, n)
            best = torch.bmm(captions.fragments[some[0]].float(), regions).amax(-1)  # (P, m)
            parts.append((best * mask).sum(1) / mask.sum(1).clamp(min=1))
        return statistics.standardise(torch.cat(parts), caption_numbers, image_numbers)

    return measure


def mean_largest_cosines(captions: Encoded, images: Encoded) -> Tensor:
    """(T, I): for every caption and image the mean over words of the largest cosine with a region."""
    words, count = captions.mask.shape[1], len(images)
    sides = captions.fragments.flatten(0, 1).float(), images.fragments.flatten(0, 1).float()
    flat = sides[0] @ sides[1].T  # (T * m, I * n)
    best = flat.view(len(captions), words, count, -1).amax(-1)  # (T, m, I)
    weights = captions.mask / captions.mask.sum(1, keepdim=True).clamp(min=1)  # (T, m)
    return torch.einsum("tmi,tm->ti", best, weights)


def _split(items: Encoded, size: int = 256) -> list[Encoded]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def distinct_captions(table: PairTable) -> list[str]:
    """Each caption once, in order of its code."""
    captions = table.captions
    return [captions[row] for row in np.unique(table.caption_codes, return_index=True)[1]]


def judge_together(parts: Sequence[JudgedPart], *, bootstrap: int = 100, seed: int = 0) -> Verdicts:
    """One set of verdicts on the pairs of all parts; what one says of a caption counts in all."""
    device = parts[0].text_of.device
    names = [name for name in parts[0].evidence.evidence if all(name in p.evidence.evidence for p in parts)]
    first_rows = np.cumsum([0, *(len(part.rows) for part in parts)])
    numbered = [
        tuple(torch.from_numpy(each).to(device) for each in (part.text_numbers, part.image_numbers))
        for part in parts
    ]
    evidence = {
        name: Evidence(
            torch.cat([part.evidence.evidence[name].observed for part in parts]),
            torch.cat([part.evidence.evidence[name].null for part in parts]),
        )
        for name in names
    }
    text_of = torch.cat([texts[part.text_of] for (texts, _), part in zip(numbered, parts, strict=True)])
    image_of = torch.cat([images[part.image_of] for (_, images), part in zip(numbered, parts, strict=True)])
    null = NullPairs(
        torch.cat([texts[part.null.texts] for (texts, _), part in zip(numbered, parts, strict=True)]),
        torch.cat([images[part.null.images] for (_, images), part in zip(numbered, parts, strict=True)]),
        torch.cat([part.null.rows + int(start) for part, start in zip(parts, first_rows, strict=False)]),
    )
    similar = parts[0].similar_texts if len({id(part.similar_texts) for part in parts}) == 1 else None
    return judge_pairs(
        evidence, text_of, image_of, null, similar_texts=similar, bootstrap=bootstrap, seed=seed
    )


def judge_parts(
    table: PairTable,
    parts: Sequence[JudgedPart],
    *,
    proposals: int,
    heat_maps: int,
    bootstrap: int,
    seed: int,
) -> tuple[AuditRows, Verdicts]:
    """The verdicts on every row of the parts, in order of suspicion.

    Words are told for pairs judged wrong and for pairs with a wrong word, with their places in the image
    for the `heat_maps` most suspicious ones.
    """
    verdicts = judge_together(parts, bootstrap=bootstrap, seed=seed)
    flags, ranks = verdicts.flag, verdicts.rank
    ends = np.cumsum([len(part.rows) for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    sources = _best_sources(table.caption_codes[rows], rows, verdicts.p_match)
    judged_words: list[JudgedWords | None] = []
    offers: list[dict[int, tuple[Proposal, ...]]] = []
    ranked_only = False
    for part, end in zip(parts, ends, strict=True):
        here = slice(int(end) - len(part.rows), int(end))
        words = judge_words(part, verdicts.p_match[here])
        judged_words.append(words)
        flagged = np.flatnonzero(flags[here])
        proposed = _proposed(part, flagged, verdicts, verdicts.p_match[here], proposals, table)
        offers.append(_offers(part, flagged, proposed, words, sources, table))
        ranked_only |= bool(proposals) and len(flagged) > 0 and not proposed.calibrated
    if ranked_only:
        verdicts = replace(verdicts, warnings=(*verdicts.warnings, RANKED_ONLY))
    order = np.argsort(ranks, kind="stable")  # place -> number among all judged pairs

    def make(place: int) -> AuditRow:
        number = int(order[place])
        own = int(np.searchsorted(ends, number, "right"))
        part, words = parts[own], judged_words[own]
        within = number - int(ends[own]) + len(part.rows)
        ranked, wrong = int(ranks[number]), bool(flags[number])
        told = () if words is None else words.verdicts(within, with_regions=ranked <= heat_maps)
        parts_of_row = zip(verdicts.names, verdicts.evidence[number], strict=True)
        shown = {name: table.arrow[name][int(rows[number])].as_py() for name in SHOWN}
        return AuditRow(
            **{**shown, "label": shown["label"] or ""},
            p_match=float(verdicts.p_match[number]),
            flag=wrong,
            rank=ranked,
            evidence={name: round(float(value), 4) for name, value in parts_of_row},
            words=told if wrong or any(word.wrong for word in told) else (),
            grid=part.grid,
            proposals=offers[own].get(within, ()),
        )

    return AuditRows(rows[order], make, verdicts.names), verdicts


def _best_sources(captions: Rows, rows: Rows, p_match: npt.NDArray[np.float64]) -> Rows:
    """(C,) for each caption code the row, of those that carry it, that most probably does so rightly."""
    best = np.full(int(captions.max(initial=-1)) + 1, -1, np.int64)
    order = np.argsort(p_match, kind="stable")
    best[captions[order]] = rows[order]  # the last one stays
    return best


def _proposed(
    part: JudgedPart,
    flagged: Rows,
    verdicts: Verdicts,
    p_match: npt.NDArray[np.float64],
    count: int,
    table: PairTable,
) -> ProposedCaptions:
    """Captions for the flagged places of a part, whose pairs have these p_match (N,)."""
    return propose_for_rows(
        part.captions, part.images, part.text_of, part.image_of, part.evidence, verdicts,
        flagged if count else flagged[:0], count,
        p_match=p_match, image_labels=image_label_codes(table)[part.image_numbers],
    )  # fmt: skip


def _offers(
    part: JudgedPart,
    flagged: Rows,
    proposed: ProposedCaptions,
    words: JudgedWords | None,
    sources: Rows,
    table: PairTable,
) -> dict[int, tuple[Proposal, ...]]:
    """By place in the part; the words of the first proposal are judged, too."""
    found = {}
    image_of = part.image_of.cpu().numpy()
    for place, captions, chances in zip(
        flagged.tolist(), proposed.captions.tolist(), proposed.p_match.tolist(), strict=False
    ):  # no captions where none are asked for
        listed: list[Proposal] = []
        for caption, chance in zip(captions, chances, strict=True):
            if caption < 0:
                continue
            text = part.texts[caption]
            told: tuple[WordVerdict, ...] = ()
            if not listed and words is not None and part.spans is not None:
                told = words.of_proposal(text, part.spans[caption], int(image_of[place]))
            source = int(sources[part.text_numbers[caption]])
            listed.append(Proposal(text, chance, table.arrow["pair_id"][source].as_py(), told))
        found[place] = tuple(listed)
    return found


def unknown_words(retriever: Retriever, texts: Sequence[str], sample: int = 2000) -> float:
    """The share of tokens that the model's tokenizer does not know, in at most `sample` captions."""
    rules = retriever.tokenizer.rules
    unknown = getattr(rules.model, "unk_token", None)
    number = rules.token_to_id(unknown) if unknown else None
    pieces = [piece for text in texts[:sample] for piece in rules.encode(text, add_special_tokens=False).ids]
    return sum(piece == number for piece in pieces) / max(len(pieces), 1) if number is not None else 0.0
