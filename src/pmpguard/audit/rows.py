"""What an audit says about each pair and about the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SURE_ENOUGH = 0.5  # p(match) of a proposal worth naming
ISSUE_TYPES = (  # beside mismatch
    "uninformative", "shifted", "duplicate_caption", "near_duplicate_image", "leak", "unreadable", "language",
)  # fmt: skip
BORNE_OUT = 0.65  # support of a word that its image bears out; below that it may be any word


@dataclass(frozen=True)
class WordVerdict:
    """One word of a caption: `start`/`stop` are its characters; `support` in [0, 1], low means unseen.

    `regions` are the word's cosines with the image's regions, row by row from the top left, of a grid
    `AuditRow.grid`; empty where the model has no regions.
    """

    start: int
    stop: int
    support: float
    wrong: bool
    regions: tuple[float, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """A caption that would suit the image better, and the pair it was taken from.

    `words` may tell how far the image bears its words out; empty where that was not asked.
    """

    caption: str
    p_match: float
    source_pair: str
    words: tuple[WordVerdict, ...] = ()


@dataclass(frozen=True)
class AuditRow:
    """One labelled pair. Rank 1 is the most suspicious pair of the dataset.

    `p_match` of a pair that could not be judged is NaN.
    """

    pair_id: str
    image: str
    caption: str
    split: str
    label: str  # scene class, "" when unknown
    p_match: float
    flag: bool  # judged wrong
    rank: int
    evidence: Mapping[str, float] = field(default_factory=dict)  # named parts, larger speaks for a match
    words: tuple[WordVerdict, ...] = ()
    grid: tuple[int, int] = (0, 0)
    proposals: tuple[Proposal, ...] = ()
    issue_scores: Mapping[str, float] = field(default_factory=dict)  # of ISSUE_TYPES, in [0, 1], low is bad
    issues: tuple[str, ...] = ()  # of ISSUE_TYPES, those the pair has
    issue_notes: str = ""
    shifted_from: str = ""  # the pair whose caption belongs to this image, in a run of shifted captions


@dataclass(frozen=True)
class AuditSummary:
    """The dataset as a whole. `mismatch_interval` is a 95 % interval of `mismatch_rate`.

    `duplicate_images` and `unreadable` are None where the images were not looked at.
    """

    pairs: int
    images: int
    flagged: int
    mismatch_rate: float
    mismatch_interval: tuple[float, float] | None
    duplicate_pairs: int
    duplicate_images: int | None
    unreadable: tuple[str, ...] | None = ()  # images that could not be read; their pairs are not judged
    warnings: tuple[str, ...] = ()  # what the reader of the numbers should know
    model: str = ""  # which model judged
    dataset: str = ""  # fingerprint of the pairs
    issues: dict[str, int | None] = field(default_factory=dict)  # pairs by ISSUE_TYPES; None: not looked for
    informative: bool = True  # whether the evidence tells matched pairs from mismatched ones at all
