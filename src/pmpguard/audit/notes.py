"""What the reader of an audit's numbers should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pmpguard.audit.judging import JudgedPart, distinct_captions, unknown_words
from pmpguard.data.pairs import PairTable
from pmpguard.detection.judge import CAPTION_AGREEMENT
from pmpguard.models.retriever import Retriever

MANY_UNKNOWN = 0.1
FEW_IMAGES, FEW_FROM_SCRATCH = 100, 1000  # to train judges on: on frozen pretrained encoders, and anew
ONE_CAPTION = (
    "every image has one caption: agreement among captions could not be counted. On 2,000 images of RSICD "
    "with one caption, 15 % of the pairs mismatched, a quick audit reaches AUROC 0.982; 85 % of its flags "
    "are right, and 83 % of the mismatched pairs are flagged"
)


def left_out_warnings(parts: Sequence[JudgedPart]) -> list[str]:
    """Evidence that was not used, each kind once; of one caption an image more is said elsewhere."""
    told = dict.fromkeys(reason for part in parts for reason in part.left_out)
    return [f"not used: {reason}" for reason in told if not reason.startswith(CAPTION_AGREEMENT)]


def few_images_warnings(images: int, from_scratch: bool) -> list[str]:
    """Whether judges trained on the dataset had enough to learn from."""
    if images >= (FEW_FROM_SCRATCH if from_scratch else FEW_IMAGES):
        return []
    how = " from scratch" if from_scratch else ""
    return [
        f"the judges were trained{how} on this dataset's {images:,} images, which are few: expect right "
        "pairs among those judged wrong and too high a rate; a model trained on more (--model) judges better"
    ]


def language_warnings(retriever: Retriever, table: PairTable) -> list[str]:
    """Whether the judge can read the captions at all."""
    texts = distinct_captions(table)
    unknown = unknown_words(retriever, texts)
    letters = [letter for text in texts[:2000] for letter in text if letter.isalpha()]
    foreign = sum(not letter.isascii() for letter in letters) / max(len(letters), 1)
    notes = []
    if unknown > MANY_UNKNOWN:
        notes.append(f"{unknown:.0%} of the words are unknown to the judge's text encoder: trust it less")
    if foreign > 0.5 and retriever.config.text != "tiny":
        notes.append(
            f"most letters of the captions are not Latin, and {retriever.config.text} may not read them: "
            "use a multilingual model (--model), or --crossfit.encoders tiny, which learns the words anew"
        )
    return notes


def unjudged_warnings(unjudged: Mapping[str, int]) -> list[str]:
    """How many pairs were left out, by reason."""
    return [f"{count:,} pairs {why} were not judged" for why, count in unjudged.items() if count]
