"""From models to verdicts: encode what each model may judge, weigh the evidence, look at words, propose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.audit.proposals import propose_for_rows
from pmpguard.audit.rows import AuditRow, Proposal, WordVerdict
from pmpguard.audit.word_evidence import ImageWords, WordList, WordSpan, spelling_vectors, word_spans
from pmpguard.audit.word_verdicts import JudgedWords, judge_words
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.neighbours import NeighbourGraph
from pmpguard.detection.evidence.regression import regression_sums
from pmpguard.detection.evidence.similarity import Measure, ScoreStatistics, similarity_measure
from pmpguard.detection.judge import Verdicts, judge_pairs
from pmpguard.detection.measures import PairEvidence, measured_evidence
from pmpguard.detection.null_pairs import Evidence, NullPairs, sample_null_pairs
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split
from pmpguard.training.loader import ImageInputs

Rows = npt.NDArray[np.int64]
WORDS = "words"
REFERENCES = 32  # captions and images that standardise


@dataclass(frozen=True)
class JudgedPart:
    """Some pairs as one set of embeddings sees them; `words` are None where it has no words."""

    rows: Rows  # (N,) of the judged table
    captions: Tensor  # (C, d) unit, each distinct caption
    images: Tensor  # (I, d) unit, each distinct image, in the space of the captions
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


def judged_part(table: PairTable, detector: NoiseDetector) -> JudgedPart:
    """A whole table as a detector judged it; captions are shown where its regression expects their images."""
    text_of, image_of = (
        torch.from_numpy(codes).to(detector.vectors[0].device)
        for codes in (table.caption_codes, table.image_codes)
    )
    texts, images = detector.vectors
    sums = regression_sums(texts, images, text_of, image_of, detector.clean_probability)
    expected = texts @ sums.to_images()  # (C, l)
    return JudgedPart(
        np.arange(len(table)), normalize(expected, dim=1), images, text_of, image_of,
        distinct_captions(table), np.arange(len(texts)), np.arange(len(images)), detector.collected,
        detector.null, detector.similar_texts, meaning=expected.norm(dim=1),
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
    captions, images = Split.open(part, pixels, retriever).encode(retriever)
    text_of, image_of = (torch.from_numpy(x).to(device) for x in (part.caption_codes, part.image_codes))
    labels, numbers = image_label_codes(part), numbers_in(table, part, rows)
    more: dict[str, Measure] = {} if before is not None else _of_part(outside or {}, numbers, rows)
    if "awareness" in retriever.config.ranking:
        more[WORDS] = word_region_measure(captions, images, seed)
    if before is None:
        detector = NoiseDetector(bootstrap=0, seed=seed).fit(
            captions.pooled, images.pooled, text_of, image_of, more=more, image_labels=labels
        )
        evidence, null = detector.collected, detector.null
        similar = detector.similar_texts if (numbers[0] == np.arange(len(texts))).all() else None
    else:
        more["similarity"] = similarity_measure(captions.pooled, images.pooled)
        null = sample_null_pairs(text_of, image_of, seed, labels)
        evidence = measured_evidence(
            {**more, **_of_part(before.collected.measures, numbers, rows)}, text_of, image_of, null
        )
        similar = before.similar_texts
    spans = [word_spans(retriever.tokenizer, text, retriever.config.max_tokens) for text in texts]
    words = WordList.of(part.captions, [spans[code] for code in part.caption_codes])
    vectors = spelling_vectors(retriever, words.spellings)
    return JudgedPart(
        rows, captions.pooled, images.pooled, text_of, image_of, texts, *numbers, evidence, null, similar,
        spans, words, ImageWords.of(vectors, images.fragments.half(), seed),
        (retriever.image_encoder.grid, retriever.image_encoder.grid),
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
    generator = np.random.default_rng([seed, 6])
    some_captions, some_images = (
        items[torch.from_numpy(np.sort(generator.permutation(len(items))[:references])).to(items.mask.device)]
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
            regions = images.fragments[some[1]].transpose(1, 2)  # (P, d, n)
            best = torch.bmm(captions.fragments[some[0]], regions).amax(-1)  # (P, m)
            parts.append((best * mask).sum(1) / mask.sum(1).clamp(min=1))
        return statistics.standardise(torch.cat(parts), caption_numbers, image_numbers)

    return measure


def mean_largest_cosines(captions: Encoded, images: Encoded) -> Tensor:
    """(T, I): for every caption and image the mean over words of the largest cosine with a region."""
    words, count = captions.mask.shape[1], len(images)
    flat = captions.fragments.flatten(0, 1) @ images.fragments.flatten(0, 1).T  # (T * m, I * n)
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
) -> tuple[list[AuditRow], Verdicts]:
    """The verdicts on every row of the parts, in order of suspicion.

    Words are told for pairs judged wrong and for pairs with a wrong word, with their places in the image
    for the `heat_maps` most suspicious ones.
    """
    verdicts = judge_together(parts, bootstrap=bootstrap, seed=seed)
    flags, ranks = verdicts.flag, verdicts.rank
    captions = table.captions
    columns = {name: table.column(name) for name in ("pair_id", "image", "split", "label")}
    ends = np.cumsum([len(part.rows) for part in parts])
    found = []
    judged_words: list[JudgedWords | None] = []
    for part, end in zip(parts, ends, strict=True):
        here = slice(int(end) - len(part.rows), int(end))
        judged_words.append(judge_words(part, verdicts.p_match[here]))
    sources = _best_sources(captions, np.concatenate([part.rows for part in parts]), verdicts.p_match)
    for part, words, end in zip(parts, judged_words, ends, strict=True):
        start = int(end) - len(part.rows)
        flagged = np.flatnonzero(flags[start:end])
        offers = _proposals(part, flagged, verdicts, proposals, words, sources, columns["pair_id"])
        for place, row in enumerate(part.rows.tolist()):
            ranked = int(ranks[start + place])
            told = () if words is None else words.verdicts(place, with_regions=ranked <= heat_maps)
            wrong = bool(flags[start + place])
            parts_of_row = zip(verdicts.names, verdicts.evidence[start + place], strict=True)
            found.append(
                AuditRow(
                    pair_id=columns["pair_id"][row],
                    image=columns["image"][row],
                    caption=captions[row],
                    split=columns["split"][row],
                    label=columns["label"][row] or "",
                    p_match=float(verdicts.p_match[start + place]),
                    flag=wrong,
                    rank=ranked,
                    evidence={name: round(float(value), 4) for name, value in parts_of_row},
                    words=told if wrong or any(word.wrong for word in told) else (),
                    grid=part.grid,
                    proposals=offers.get(place, ()),
                )
            )
    return sorted(found, key=lambda one: one.rank), verdicts


def _best_sources(captions: list[str], rows: Rows, p_match: npt.NDArray[np.float64]) -> dict[str, int]:
    """For each caption the row, of those that carry it, that most probably does so rightly."""
    return {captions[row]: int(row) for row in rows[np.argsort(p_match, kind="stable")]}


def _proposals(
    part: JudgedPart,
    flagged: Rows,
    verdicts: Verdicts,
    count: int,
    words: JudgedWords | None,
    sources: dict[str, int],
    ids: list[str],
) -> dict[int, tuple[Proposal, ...]]:
    """By place in the part; the words of the first proposal are judged, too."""
    if not count:
        return {}
    proposed = propose_for_rows(
        part.captions, part.images, part.text_of, part.image_of, part.evidence, verdicts,
        flagged, count,
    )  # fmt: skip
    found = {}
    image_of = part.image_of.cpu().numpy()
    for place, captions, chances in zip(
        flagged.tolist(), proposed.captions.tolist(), proposed.p_match.tolist(), strict=True
    ):
        listed: list[Proposal] = []
        for caption, chance in zip(captions, chances, strict=True):
            if caption < 0:
                continue
            text = part.texts[caption]
            told: tuple[WordVerdict, ...] = ()
            if not listed and words is not None and part.spans is not None:
                told = words.of_proposal(text, part.spans[caption], int(image_of[place]))
            listed.append(Proposal(text, chance, ids[sources[text]], told))
        found[place] = tuple(listed)
    return found


def unknown_words(retriever: Retriever, texts: Sequence[str], sample: int = 2000) -> float:
    """The share of tokens that the model's tokenizer does not know, in at most `sample` captions."""
    rules = retriever.tokenizer.rules
    unknown = getattr(rules.model, "unk_token", None)
    number = rules.token_to_id(unknown) if unknown else None
    pieces = [piece for text in texts[:sample] for piece in rules.encode(text, add_special_tokens=False).ids]
    return sum(piece == number for piece in pieces) / max(len(pieces), 1) if number is not None else 0.0
