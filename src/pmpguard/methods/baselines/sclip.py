"""S-CLIP: distrusted images are unpaired; they learn from captions and keywords of images like them.

Reference: Mo, Kim, Lee and Shin, "S-CLIP: Semi-supervised Vision-Language Learning using Few Specialist
Captions", NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.detection.detector import NoiseDetector
from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.optimal_transport import partial_plan
from pmpguard.methods.method import EncodedBatch, EpochPlan, JudgingMethod, TrainingView, pooled_cosines
from pmpguard.models.retriever import Retriever

_MASKED = -1e4


@dataclass(frozen=True)
class SclipSettings:
    """Weights are published; how keywords are chosen is ours.

    Args:
        threshold: pairs with less clean probability are unpaired.
        iterations: of Sinkhorn's updates.
        caption_weight: of the captions of images like an unpaired one.
        keyword_weight: of their keywords.
        keywords: how many words at most, the commonest first.
        commonest: share of the captions above which a word tells nothing.
        rarest: share below which it is left out.
    """

    threshold: float = 0.5
    iterations: int = 10
    caption_weight: float = 0.5
    keyword_weight: float = 0.5
    keywords: int = 128
    commonest: float = 0.2
    rarest: float = 0.005


class Sclip(JudgingMethod):
    """InfoNCE on trusted pairs; unpaired images get mixtures of trusted captions and a choice of keywords.

    In a batch, an optimal transport plan from unpaired to trusted images says whose captions an unpaired
    image may have: its soft target. The keywords of the captions of the image it goes to most are candidates,
    of which it learns those it takes for the likeliest (partial labels).

    Differs from the original:
      * Nobody says which pairs are right: those that training-free detection trusts are labelled, the others
        unpaired. The original has few pairs and many images without a caption.
      * Keywords are words of the training captions that are neither rare nor common, not names of classes.
      * Trusted and unpaired images share batches, because the loop deals them, and an image with several
        captions is unpaired when none of those in the batch is trusted.
      * Candidates are weighed by a softmax, where the original divides similarities by their sum.
    """

    name = "sclip"
    Settings = SclipSettings

    keyword_ids: Tensor  # (K,) tokens, -1 where there are fewer
    has_keyword: Tensor  # (N, K) bool
    frame: Tensor  # (K, L)
    settings: SclipSettings

    def __init__(self, retriever: Retriever, settings: SclipSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.register_buffer("keyword_ids", torch.full((settings.keywords,), -1, dtype=torch.int64))
        self.register_buffer("has_keyword", torch.zeros(pairs, settings.keywords, dtype=torch.bool))
        frame = torch.tensor(retriever.tokenizer.rules.encode("a").ids)  # a word between special tokens
        self.register_buffer("frame", frame.repeat(settings.keywords, 1), persistent=False)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, temperature = self.settings, self.temperature
        logits = pooled_cosines(batch) / temperature  # (T, I)
        trusted = (self.p_match[batch.rows] > settings.threshold).to(logits.dtype)  # (T,)
        paired = torch.zeros_like(logits[0]).index_add(0, batch.image_of, trusted).clamp(max=1)  # (I,)
        plan = image_plan(batch.images.pooled.detach(), paired, temperature.detach(), settings.iterations)
        unpaired = (1 - paired)[batch.image_of]  # (T,)
        captions = caption_terms(logits, plan, trusted, batch.image_of)  # (I,)
        labelled = trusted[:, None] * paired[None]  # (T, I): distrusted captions are nobody's negatives
        targets = batch.weighted_targets(trusted) * labelled
        among = logits.masked_fill(labelled == 0, _MASKED)
        terms = {
            "labelled": trusted * infonce_terms(among, targets, batch.image_of),
            "captions": settings.caption_weight * unpaired * captions[batch.image_of],
        }
        if settings.keyword_weight > 0 and settings.keywords > 0:
            words = self._keyword_vectors()  # (K, d)
            owned = torch.zeros(len(paired), len(words), device=logits.device)
            has = self.has_keyword[batch.rows].to(logits.dtype) * trusted[:, None]  # (T, K)
            owned = owned.index_add(0, batch.image_of, has).clamp(max=1)  # (I, K)
            candidates = owned[plan.argmax(1)]  # (I, K)
            keywords = keyword_terms(batch.images.pooled @ words.T / temperature, candidates,
                                     self.keyword_ids >= 0)  # fmt: skip
            terms["keywords"] = settings.keyword_weight * unpaired * keywords[batch.image_of]
        return terms

    def _keyword_vectors(self) -> Tensor:
        """(K, d): each keyword as a caption of one word."""
        ids = self.frame.clone()  # (K, L)
        ids[:, self.retriever.tokenizer.prefix] = self.keyword_ids.clamp(min=0)
        return self.retriever.forward_texts(ids, torch.ones_like(ids, dtype=torch.bool)).pooled

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        if view.epoch > 0:
            return EpochPlan()
        detector = NoiseDetector(bootstrap=0, seed=view.seed).fit(
            *view.tokens(), view.caption_of, view.image_of, common_space=False
        )
        if detector.verdicts.informative:
            self.p_match.copy_(torch.from_numpy(detector.p_match))
        if view.token_ids is not None:
            self._find_keywords(*view.token_ids(), view.caption_of)
        return EpochPlan(log={"estimated_mismatch_rate": detector.noise_rate})

    def _find_keywords(self, ids: Tensor, mask: Tensor, caption_of: Tensor) -> None:
        """Keep the keywords of the captions (C, L), of which row r has `caption_of[r]` (N,)."""
        settings, rules = self.settings, self.retriever.tokenizer.rules
        counts = token_shares(ids, mask)  # (V,)
        usual = ((counts >= settings.rarest) & (counts <= settings.commonest)).nonzero()[:, 0]
        by_share = usual[counts[usual].argsort(descending=True, stable=True)].tolist()
        words = [token for token in by_share if is_word(rules.id_to_token(token) or "")]
        chosen = torch.tensor(words[: settings.keywords], dtype=torch.int64, device=ids.device)
        self.keyword_ids.fill_(-1)
        self.keyword_ids[: len(chosen)] = chosen
        for place, token in enumerate(chosen.tolist()):
            self.has_keyword[:, place] = ((ids == token) & mask).any(1)[caption_of]


def token_shares(ids: Tensor, mask: Tensor) -> Tensor:
    """(V,): the share of the captions (C, L) that hold each token."""
    rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
    size = int(ids.max()) + 1
    distinct = torch.unique(rows[mask] * size + ids[mask]) % size
    return torch.bincount(distinct, minlength=size).float() / max(len(ids), 1)


def is_word(token: str) -> bool:
    """Whether a token is a whole word of at least three letters, in WordPiece, byte-level BPE or plain.

    >>> [is_word(token) for token in ("river", "##er", "river</w>", "a", "[CLS]", "12")]
    [True, False, True, False, False, False]
    """
    word = token.removesuffix("</w>").lstrip("Ġ▁")
    return len(word) >= 3 and word.isalpha()


def image_plan(images: Tensor, paired: Tensor, temperature: Tensor, iterations: int) -> Tensor:
    """(I, I): for each unpaired image (row) the paired ones (columns) it goes to, in shares that sum to 1.

    images (I, d) unit, paired (I,) 0 or 1. Rows of paired images hold nothing, and so do all where none is
    paired or none is not.
    """
    unpaired = 1 - paired
    leaves, enters = (each / each.sum().clamp(min=1) for each in (unpaired, paired))
    cost = (1 - images @ images.T) / temperature
    plan = partial_plan(cost, leaves, enters, mass=1.0, strength=1.0, iterations=iterations)
    plan = plan * unpaired[:, None] * paired[None]
    total = plan.sum(1, keepdim=True)
    return torch.where(total > 0, plan / total.clamp(min=1e-30), 0.0)


def caption_terms(logits: Tensor, plan: Tensor, trusted: Tensor, image_of: Tensor) -> Tensor:
    """(I,): cross-entropy of each unpaired image over the trusted captions with what the plan gives it.

    logits (T, I), plan (I, I), trusted (T,) 0 or 1. An image's share is divided among its trusted captions.
    """
    carried = torch.zeros_like(plan[0]).index_add(0, image_of, trusted).clamp(min=1)  # (I,)
    targets = plan[:, image_of] * (trusted / carried[image_of])[None]  # (I, T)
    allowed = logits.T.masked_fill(trusted[None] == 0, _MASKED)
    return -(targets * allowed.log_softmax(1)).sum(1)


def keyword_terms(logits: Tensor, candidates: Tensor, known: Tensor) -> Tensor:
    """(I,): cross-entropy over keywords (I, K) with the model's own softmax among the candidates (I, K).

    `known` (K,) bool says which keywords there are. An image without candidates has no term.
    """
    chosen = logits.detach().masked_fill(candidates == 0, _MASKED).softmax(1)
    targets = chosen * (candidates.sum(1, keepdim=True) > 0)
    return -(targets * logits.masked_fill(~known[None], _MASKED).log_softmax(1)).sum(1)
