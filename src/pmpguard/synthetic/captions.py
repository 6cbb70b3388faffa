"""Five sentences about a scene, and the same sentences with one thing wrong.

A caption is built from pieces. A piece that claims something (a number, a colour, a thing, a relation) knows
what it claims, so the claim can be checked against any scene's truth and can be replaced by a false one of
the same number of words. Sentences never name directions: flips and quarter turns leave them true.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass

from pmpguard.errors import ConfigError
from pmpguard.synthetic.classes import CLASSES, GROUNDS
from pmpguard.synthetic.kinds import COLOURS, KINDS, MANY
from pmpguard.synthetic.templates import (
    ARRANGEMENTS,
    FEW,
    NOT_WITH_ITSELF,
    NUMBERS,
    PLENTY,
    RELATIONS,
    SOME,
    TEMPLATES,
)
from pmpguard.synthetic.truth import Group, Scene

CAPTIONS = 5
# objects can be wrong in every caption, relations in few: the weights even the kinds of error out
ERROR_WEIGHTS = {"object": 1, "colour": 2, "count": 3, "relation": 6}
# which of a group's true relations a stated one is right about
COVERS = {
    "beside": ("beside", "around", "one side", "both sides"),
    "around": ("around",),
    "in": ("in",),
    "over": ("over",),
    "one side": ("one side",),
    "both sides": ("both sides",),
}


@dataclass(frozen=True)
class Claim:
    """One statement: the kind of thing it is about, the attribute, and what it says.

    `attribute` is "object", "count", "colour", "size", "shape", "arrangement", "relation", "ground" or
    "label". A count allows `lowest` to `highest`; a relation is to the main thing, of kind `target`.
    """

    about: str
    attribute: str
    value: str = ""
    lowest: int = 0
    highest: int = 0
    target: str = ""

    def holds(self, scene: Scene) -> bool:
        """Whether the statement is true of a scene."""
        if self.attribute in ("label", "ground"):
            return bool(getattr(scene, self.attribute) == self.value)
        group = next((group for group in scene.groups if group.kind == self.about), None)
        if group is None:
            return False
        if self.attribute == "object":
            return True
        if self.attribute == "count":
            return self.lowest <= group.count <= self.highest
        if self.attribute == "relation":
            return group.relation in COVERS[self.value] and scene.main.kind == self.target
        return bool(getattr(group, self.attribute) == self.value)


def _count_claim(about: str, lowest: int, highest: int) -> Claim:
    return Claim(about, "count", lowest=lowest, highest=highest)


@dataclass(frozen=True)
class Piece:
    """Consecutive words of a caption and what they claim, if anything."""

    words: tuple[str, ...]
    claim: Claim | None = None


@dataclass(frozen=True)
class Caption:
    pieces: tuple[Piece, ...]

    @property
    def words(self) -> tuple[str, ...]:
        words = [word for piece in self.pieces for word in piece.words]
        for position, word in enumerate(words[:-1]):
            if word == "a" and words[position + 1][0] in "aeiou":
                words[position] = "an"
        return tuple(words)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(piece.claim for piece in self.pieces if piece.claim is not None)

    def holds(self, scene: Scene) -> bool:
        """Whether everything the caption says is true of a scene."""
        return all(claim.holds(scene) for claim in self.claims)


@dataclass(frozen=True)
class WrongCaption:
    """A caption with one false statement: `kind` is "count", "colour", "object" or "relation".

    `wrong_words` are the positions, in `text.split()`, of the words that differ from the true caption.
    """

    text: str
    kind: str
    wrong_words: tuple[int, ...]


def describe_scene(scene: Scene) -> tuple[str, ...]:
    """Five true captions, in varied wording and detail.

    >>> from pmpguard.synthetic.layout import draw_scene
    >>> len(set(describe_scene(draw_scene(0, 0))))
    5
    """
    return tuple(caption.text for caption in write_captions(scene))


def write_captions(scene: Scene) -> tuple[Caption, ...]:
    """The five captions with their claims."""
    rng = random.Random(f"scene captions {scene.seed} {scene.index}")
    written: dict[str, Caption] = {}
    styles = ["full", "count", "relation", "ground", "short"]
    rng.shuffle(styles)
    for style in styles:
        for _ in range(20):
            caption = _write(rng, scene, style)
            if caption is not None and caption.text not in written:
                written[caption.text] = caption
                break
    while len(written) < CAPTIONS:
        caption = _write(rng, scene, "count")
        if caption is not None:
            written.setdefault(caption.text, caption)
    return tuple(written.values())


def _write(rng: random.Random, scene: Scene, style: str) -> Caption | None:
    """One caption of a style; None where the drawn groups cannot fill the drawn template."""
    template = rng.choice(TEMPLATES[style])
    others = list(scene.groups[1:])
    rng.shuffle(others)
    if "{rel}" in template or "{pro}" in template:
        others.sort(key=lambda group: not group.relation)
        if not others[0].relation:
            return None
    if "{H}" in template and len(others) < 2:
        return None
    names_itself = scene.main.kind in CLASSES[scene.label].names
    if "{C}" in template and names_itself and any(words in template for words in NOT_WITH_ITSELF):
        return None
    if "{S}" in template and KINDS[scene.main.kind].form == "cover":  # its ground cannot be seen
        return None
    first, second = others[0], others[-1]
    if "{arr}" in template and not first.arrangement:
        return None
    pieces: list[Piece] = []
    for token in template.split():
        pieces.extend(_fill(rng, scene, token, first, second, names_itself))
    return Caption((*pieces, Piece((".",))))


def _fill(
    rng: random.Random, scene: Scene, token: str, first: Group, second: Group, names_itself: bool
) -> Iterator[Piece]:
    main = scene.main
    if token == "{M}" or (token == "{C}" and names_itself):
        yield from _noun_phrase(rng, main)
    elif token == "{G}":
        yield from _noun_phrase(rng, first)
    elif token == "{H}":
        yield from _noun_phrase(rng, second)
    elif token == "{C}":
        yield _class_piece(scene.label, rng.choice(CLASSES[scene.label].names))
    elif token == "{S}":
        yield Piece(_split(rng.choice(GROUNDS[scene.ground].phrases)), Claim("", "ground", scene.ground))
    elif token == "{arr}":
        claim = Claim(first.kind, "arrangement", first.arrangement)
        yield from (Piece(("in", "a")), Piece((rng.choice(ARRANGEMENTS[first.arrangement]),), claim))
    elif token in ("{rel}", "{pro}"):
        yield _relation(rng, first, main)
        if token == "{pro}":
            yield Piece(("it" if main.count == 1 else "them",))
        elif rng.random() < 0.45:
            yield from _noun_phrase(rng, main)
        else:
            yield from (Piece(("the",)), _noun(rng, main))
    elif token in ("{is}", "{there}"):
        verb = "is" if first.count == 1 else "are"
        yield Piece((verb,) if token == "{is}" else ("there", verb))
    elif token == "{verb}":
        yield from [Piece((KINDS[first.kind].verb,))] if KINDS[first.kind].verb else []
    else:
        yield Piece((token,))


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _class_piece(label: str, name: str) -> Piece:
    return Piece(("a", *_split(name)), Claim("", "label", label))


def _noun(rng: random.Random, group: Group) -> Piece:
    nouns = KINDS[group.kind].nouns
    noun = nouns[0] if rng.random() < 0.7 else rng.choice(nouns)
    return Piece(_split(noun[group.count > 1]), Claim(group.kind, "object", group.kind))


def _noun_phrase(rng: random.Random, group: Group) -> Iterator[Piece]:
    """Number, size, shape, colour and noun; adjectives come and go."""
    yield _number(rng, group)
    for attribute, chance in (("size", 0.25), ("shape", 0.35), ("colour", 0.7)):
        value = getattr(group, attribute)
        if value and rng.random() < chance:
            yield Piece((value,), Claim(group.kind, attribute, value))
    yield _noun(rng, group)


def _number(rng: random.Random, group: Group) -> Piece:
    count = group.count
    if group.kind == "sea":
        return Piece(("the",))
    if count == 1:
        return Piece((rng.choice(("a", "a", "a", "one")),), _count_claim(group.kind, 1, 1))
    if count >= MANY:
        return Piece(_split(rng.choice(PLENTY)), _count_claim(group.kind, MANY, 999))
    if rng.random() < 0.75:
        return Piece((NUMBERS[count],), _count_claim(group.kind, count, count))
    if count == 2:
        return Piece(_split(rng.choice(FEW)), _count_claim(group.kind, 2, 2))
    return Piece(_split(rng.choice(SOME)), _count_claim(group.kind, 3, MANY - 1))


def _relation(rng: random.Random, group: Group, main: Group) -> Piece:
    name = group.relation
    if name in ("one side", "both sides", "around") and rng.random() < 0.25:
        name = "beside"
    return Piece(
        _split(rng.choice(_phrases(name, main))), Claim(group.kind, "relation", name, target=main.kind)
    )


def _phrases(relation: str, main: Group) -> tuple[str, ...]:
    if relation == "in":
        return ("among", "between") if main.kind == "house" else (KINDS[main.kind].inside,)
    return RELATIONS[relation]


def wrong_description(scene: Scene, which: int, seed: int = 0) -> WrongCaption:
    """Caption number `which` of a scene with one statement made false.

    The kind of error is drawn first, among those the caption's statements allow; `seed` gives another draw.
    """
    captions = write_captions(scene)
    if not 0 <= which < len(captions):
        raise ConfigError(f"caption number is {which}", fix=f"a scene has captions 0 to {len(captions) - 1}")
    rng = random.Random(f"scene error {scene.seed} {scene.index} {which} {seed}")
    right = captions[which]
    by_kind: dict[str, list[Caption]] = {}
    for position, piece in enumerate(right.pieces):
        for kind, replacement in _other_pieces(scene, piece):
            if replacement.claim is None or replacement.claim.holds(scene):
                continue
            pieces = (*right.pieces[:position], replacement, *right.pieces[position + 1 :])
            wrong = dataclasses.replace(right, pieces=pieces)
            start = sum(len(earlier.words) for earlier in right.pieces[:position])
            if _differs_only_in(right, wrong, start, len(piece.words)):
                by_kind.setdefault(kind, []).append(wrong)
    kinds = sorted(by_kind)
    kind = rng.choices(kinds, [ERROR_WEIGHTS[kind] for kind in kinds])[0]
    wrong = rng.choice(by_kind[kind])
    return WrongCaption(wrong.text, kind, _different_words(right, wrong))


def _different_words(right: Caption, wrong: Caption) -> tuple[int, ...]:
    return tuple(i for i, (a, b) in enumerate(zip(right.words, wrong.words, strict=True)) if a != b)


def _differs_only_in(right: Caption, wrong: Caption, start: int, length: int) -> bool:
    """False where the change would also turn an "a" into an "an"."""
    if len(right.words) != len(wrong.words):
        return False
    return all(start <= position < start + length for position in _different_words(right, wrong))


def _other_pieces(scene: Scene, piece: Piece) -> Iterator[tuple[str, Piece]]:
    """(kind of error, replacement) for what else a piece could say, true or false."""
    claim = piece.claim
    if claim is None:
        return
    if claim.attribute == "count" and len(piece.words) == 1 and claim.highest > 1:
        for number, word in NUMBERS.items():
            if number > 1:
                yield "count", Piece((word,), _count_claim(claim.about, number, number))
        yield "count", Piece(("many",), _count_claim(claim.about, MANY, 999))
    elif claim.attribute == "colour":
        for colour in KINDS[claim.about].colours if len(set(KINDS[claim.about].colours)) > 1 else COLOURS:
            yield "colour", Piece((colour,), Claim(claim.about, "colour", colour))
    elif claim.attribute == "arrangement":
        for arrangement, words in ARRANGEMENTS.items():
            yield from (
                ("relation", Piece((w,), Claim(claim.about, "arrangement", arrangement))) for w in words
            )
    elif claim.attribute == "relation":
        for name in ("in", *RELATIONS):
            for phrase in _phrases(name, scene.main):
                yield (
                    "relation",
                    Piece(_split(phrase), Claim(claim.about, "relation", name, target=scene.main.kind)),
                )
    elif claim.attribute == "object":
        plural = next(g for g in scene.groups if g.kind == claim.about).count > 1
        absent = [
            (name, kind.form, noun)
            for name, kind in KINDS.items()
            if kind.family not in scene.families
            if len(noun := _split(kind.nouns[0][plural])) == len(piece.words)
        ]
        alike = [entry for entry in absent if entry[1] == KINDS[claim.about].form]
        for name, _, noun in alike or absent:
            yield "object", Piece(noun, Claim(name, "object", name))
    elif claim.attribute == "label":
        for label, other in CLASSES.items():
            if scene.families.isdisjoint(KINDS[kind].family for kind in (*other.mains, *other.always)):
                yield from (("object", _class_piece(label, name)) for name in other.names)
