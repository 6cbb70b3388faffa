"""`language`: captions that break off, have a misspelt word, or are written in another script than the rest.

Nothing is known of any language but what the captions themselves show. A rare word one letter off a frequent
one is misspelt, unless it is another form of it.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from pmpguard.audit.issue_types.found import Found, Numbers

BROKEN_OFF, MISSPELT = 0.2, 0.4  # scores
FREQUENT, TIMES_AS_FREQUENT, RARE = 10, 20, 3  # captions with a word
SHORTEST, SHORTEST_SUBSTITUTED = 4, 6  # letters of a misspelt word: short words have many neighbours
OTHER_SCRIPT = 0.7  # at least so many letters should be of the usual script
ENDINGS = ("s", "d", "r", "n", "y")  # that make another form of a word
# A caption that ends with one of these has lost the rest.
UNFINISHED = frozenset((
    "a", "an", "the", "of", "and", "or", "with", "in", "on", "at", "to", "from", "by", "near", "beside",
    "between", "around", "into", "onto", "over", "under", "behind", "is", "are", "its", "their", "this",
    "that", "these", "those", "which",
))  # fmt: skip
WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def language_issues(captions: Sequence[str], caption_of: Numbers) -> Found:
    """By the distinct captions (C,) and the number of each pair's (N,)."""
    words = [WORD.findall(caption.lower()) for caption in captions]
    spelt_for = misspellings(words)
    usual = _usual_script(captions)
    score, said = np.ones(len(captions)), {}
    for number, (caption, found) in enumerate(zip(captions, words, strict=True)):
        told = []
        if found and breaks_off(caption, found[-1]):
            score[number] = BROKEN_OFF
            told.append("breaks off")
        wrong = [word for word in dict.fromkeys(found) if word in spelt_for]
        if wrong:
            score[number] = min(score[number], MISSPELT / len(wrong))
            told += [f"misspelt: {word} ({spelt_for[word]})" for word in wrong]
        share = _share_in(caption, usual)
        if share < OTHER_SCRIPT:
            score[number] = min(score[number], share / 2)
            told.append("another script")
        if told:
            said[number] = ", ".join(told)
    notes = {row: said[number] for row, number in enumerate(caption_of.tolist()) if number in said}
    return Found.of(score[caption_of], notes)


def breaks_off(caption: str, last: str) -> bool:
    """Whether a caption, whose last word in lower case is `last`, ends before its sentence does.

    >>> breaks_off("a river beside the", "the"), breaks_off("a river", "river")
    (True, False)
    """
    text = caption.rstrip()
    if text.endswith((",", "-", "\u2026", "...")):
        return True
    return last in UNFINISHED and not text.endswith((".", "!", "?"))


def misspellings(captions: Iterable[Sequence[str]]) -> dict[str, str]:
    """Misspelt words of captions, given as words in lower case, and the words that were meant.

    >>> misspellings([["river"]] * 60 + [["rivr"], ["rivers"]])
    {'rivr': 'river'}
    """
    counts = Counter(word for words in captions for word in set(words))
    reached: dict[str, list[str]] = defaultdict(list)  # what is left of a frequent word without a letter
    for word, count in counts.items():
        if count >= FREQUENT and len(word) >= SHORTEST - 1:
            for part in {word, *_without_a_letter(word)}:
                reached[part].append(word)
    found = {}
    for word, count in counts.items():
        if count > RARE or len(word) < SHORTEST:
            continue
        near = {one for part in (word, *_without_a_letter(word)) for one in reached.get(part, ())}
        meant = [one for one in near if counts[one] >= TIMES_AS_FREQUENT * count and _is_slip(word, one)]
        if meant:
            found[word] = max(meant, key=lambda one: (counts[one], one))
    return found


def _without_a_letter(word: str) -> list[str]:
    return [word[:place] + word[place + 1 :] for place in range(len(word))]


def _is_slip(word: str, meant: str) -> bool:
    """Whether a letter is missing, doubled, swapped with the next or, in a long word, another one."""
    short, long = sorted((word, meant), key=len)
    if word == meant or len(long) - len(short) > 1:
        return False
    if len(short) < len(long):  # at an end it would be another word: bridge and ridge, river and rivers
        inside = short[0] == long[0] and short[-1] == long[-1]
        return len(long) > SHORTEST and inside and short in _without_a_letter(long)
    places = [place for place, (one, other) in enumerate(zip(word, meant, strict=True)) if one != other]
    if len(places) == 1:
        another_form = places[0] == len(word) - 1 and {word[-1], meant[-1]} <= set(ENDINGS)
        return len(word) >= SHORTEST_SUBSTITUTED and not another_form
    swapped = len(places) == 2 and places[1] == places[0] + 1
    return swapped and word[places[0]] == meant[places[1]] and word[places[1]] == meant[places[0]]


@cache
def script_of(letter: str) -> str:
    """The script of a letter.

    >>> script_of("a"), script_of("я")
    ('LATIN', 'CYRILLIC')
    """
    return unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0]


def _usual_script(captions: Sequence[str]) -> str:
    counts = Counter(itertools.chain.from_iterable(captions))
    scripts: Counter[str] = Counter()
    for letter, count in counts.items():
        if letter.isalpha():
            scripts[script_of(letter)] += count
    return scripts.most_common(1)[0][0] if scripts else ""


def _share_in(caption: str, script: str) -> float:
    letters = [letter for letter in caption if letter.isalpha()]
    return sum(script_of(letter) == script for letter in letters) / len(letters) if letters else 1.0
