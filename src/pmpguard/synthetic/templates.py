"""The wording of captions: sentences with slots, and the words that fill them.

Slots: {M} the main thing, {G} and {H} other groups, {C} the scene class, {S} the ground, {rel} a relation
and the main thing ("beside a pond"), {pro} a relation and a pronoun ("beside it"), {arr} an arrangement
("in a row"), {is} and {there} agree with {G}, {verb} is what {G} does ("parked"), where it does anything.
"""

from __future__ import annotations

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
FEW = ("a pair of", "a couple of")
SOME = ("several", "some")
PLENTY = ("many", "many", "lots of", "plenty of")

ARRANGEMENTS = {"row": ("row", "line"), "cluster": ("cluster", "group"), "ring": ("ring", "circle")}
RELATIONS = {
    "beside": ("beside", "near", "by", "next to", "close to"),
    "around": ("around", "all around"),
    "over": ("over", "across"),
    "one side": ("on one side of",),
    "both sides": ("on both sides of",),
}
# where a class is named after its main thing, {C} is that thing and must not meet these
NOT_WITH_ITSELF = ("{M}", "{rel}", "{pro}", "in {C}")

TEMPLATES: dict[str, tuple[str, ...]] = {
    "full": (
        "{G} {is} {verb} {rel} on {S} , with {H}",
        "{C} on {S} with {G} {rel} and {H}",
        "{G} {rel} in {C} , and {H} can be seen",
        "{there} {G} {verb} {rel} and {H} on {S}",
        "this image shows {M} on {S} with {G} {pro} and {H}",
        "{M} on {S} with {G} {pro}",
        "{G} {is} {verb} {rel} on {S}",
        "{there} {G} {arr} {rel} on {S}",
        "on {S} we can see {M} and {G} {pro}",
        "{C} with {M} , {G} and {H} on {S}",
        "in {C} , {G} and {H} lie on {S}",
        "{M} , {G} and {H} lie on {S}",
    ),
    "count": (
        "{there} {G} in the image",
        "{G} {is} seen on {S}",
        "{G} and {H} can be seen",
        "{C} with {G}",
        "{C} with {G} and {H}",
        "{there} {G} and {H}",
        "we can see {G} and {M}",
        "{there} {G} {arr}",
        "{G} {is} {verb} in {C}",
        "{G} in {C}",
        "the image contains {M} and {G}",
        "we can see {M} here with {G}",
        "{M} and {G}",
        "{M} , {G} and {H}",
        "{G} {is} {verb} {arr} here",
    ),
    "relation": (
        "{G} {is} {rel}",
        "{G} {is} {verb} {rel}",
        "{G} {rel}",
        "{there} {G} {rel}",
        "{M} with {G} {pro}",
        "the image shows {M} with {G} {pro}",
        "{G} {is} {arr} {rel}",
        "in {C} , {G} {is} {rel}",
        "here {is} {G} {rel}",
        "{G} {is} located {rel}",
        "{M} can be seen with {G} {pro}",
    ),
    "ground": (
        "{C} on {S}",
        "{M} on {S}",
        "{C} surrounded by {S}",
        "{M} surrounded by {S}",
        "{C} with {S} and {G}",
        "a piece of {S} with {M}",
        "a piece of {S} with {G}",
        "{S} and {G} can be seen",
        "{S} around {M}",
        "{G} and {M} on {S}",
        "{G} on {S}",
    ),
    "short": (
        "{C}",
        "{M}",
        "this is {C}",
        "this is {C} with {M}",
        "a view of {C} from above",
        "an overhead view of {C}",
        "a satellite image of {C}",
        "{C} with {M}",
        "the image shows {M}",
        "{M} seen from the air",
        "{C} and the land around",
    ),
}
