"""The kinds of things in the synthetic scenes, as a table.

Lengths are in unit coordinates: the image is the square from (0, 0) to (1, 1) at every pixel size.
Nothing here draws or writes sentences; `scene_layout` chooses from these tables, `scene_drawing` paints the
choice and `scene_captions` words it.
"""

from __future__ import annotations

from dataclasses import dataclass

COLOURS = ("red", "blue", "green", "white", "grey", "black", "brown", "yellow", "orange")
MANY = 7  # from this count on we say "many" instead of a number


@dataclass(frozen=True)
class Kind:
    """A kind of thing: what it is called, how big it is and which colours it comes in.

    `form` decides how it is placed: "item" (countable, stands anywhere), "linear" (crosses the image; reach
    is its half-width), "shore" (fills one side), "cover" (fills everything that nothing else occupies),
    "bridge", "pier" or "cross". `reach` is the radius of one item: one value, or (small, large). Kinds of one
    `family` look alike, so one is never offered as the wrong name of another. `verb` says what it does in a
    sentence, `inside` how to say that something is in or on it.
    """

    nouns: tuple[tuple[str, str], ...]
    family: str
    reach: tuple[float, ...]
    colours: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    form: str = "item"
    verb: str = ""
    inside: str = "on"


def _named(*singulars: str) -> tuple[tuple[str, str], ...]:
    return tuple((noun, noun + "s") for noun in singulars)


_ONE = (1,)
_VEHICLES = ("red", "white", "blue", "black", "yellow", "orange", "green")
_ROOFS = ("red", "white", "grey", "brown", "blue", "orange")
_BENDS = ("straight", "curved")

KINDS: dict[str, Kind] = {
    # vehicles
    "plane": Kind(
        (*_named("plane", "airplane"), ("aircraft", "aircraft")),
        "plane",
        (0.08, 0.125),
        ("white", "grey", "red", "blue", "yellow"),
        verb="parked",
    ),
    "boat": Kind(
        _named("boat"), "boat", (0.055, 0.09), ("white", "red", "yellow", "black", "orange"), verb="floating"
    ),
    "ship": Kind(
        _named("ship"), "boat", (0.14,), ("red", "black", "white", "orange", "brown"), counts=(1, 2, 3)
    ),
    "car": Kind(_named("car"), "vehicle", (0.05,), _VEHICLES, verb="parked"),
    "truck": Kind(_named("truck"), "vehicle", (0.075,), _VEHICLES, counts=(1, 2, 3, 4), verb="parked"),
    "bus": Kind(
        (("bus", "buses"),), "vehicle", (0.085,), ("red", "white", "blue", "yellow"), counts=(1, 2, 3, 4)
    ),
    "train": Kind(
        _named("train"), "train", (0.24,), ("red", "white", "blue", "yellow", "green"), counts=(1, 2)
    ),
    "container": Kind(
        _named("container"),
        "container",
        (0.06,),
        ("red", "blue", "yellow", "green", "orange", "white"),
        verb="stored",
    ),
    # buildings
    "house": Kind(_named("house"), "building", (0.06, 0.095), _ROOFS, verb="built"),
    "building": Kind(_named("building"), "building", (0.085, 0.13), _ROOFS, verb="built"),
    "factory": Kind(
        (("factory", "factories"), ("workshop", "workshops")),
        "building",
        (0.1, 0.15),
        ("white", "grey", "blue", "red", "brown"),
        counts=(1, 2, 3, 4),
    ),
    "terminal": Kind(
        _named("terminal"),
        "building",
        (0.19, 0.26),
        ("white", "grey", "blue", "brown"),
        ("long", "round"),
        _ONE,
    ),
    "school": Kind(
        _named("school building"),
        "building",
        (0.15, 0.22),
        ("red", "white", "brown", "blue", "grey"),
        ("square", "long"),
        _ONE,
    ),
    "church": Kind(
        (("church", "churches"),), "building", (0.13, 0.19), ("red", "white", "brown", "grey"), counts=_ONE
    ),
    "stadium": Kind(
        _named("stadium"), "stadium", (0.2, 0.28), ("white", "grey", "red", "blue"), ("round", "oval"), _ONE
    ),
    "storage tank": Kind(
        _named("storage tank", "oil tank"),
        "tank",
        (0.06, 0.1),
        ("white", "grey", "red", "blue", "green", "yellow", "brown"),
    ),
    "tent": Kind(
        _named("tent"), "tent", (0.055, 0.085), ("white", "red", "blue", "green", "yellow", "orange")
    ),
    "umbrella": Kind(_named("umbrella"), "umbrella", (0.048,), ("red", "blue", "green", "orange", "white")),
    "wind turbine": Kind(_named("wind turbine"), "turbine", (0.1, 0.15)),
    "solar panel": Kind(_named("solar panel"), "panel", (0.085, 0.13), ("blue", "black")),
    # sports and leisure
    "swimming pool": Kind(_named("swimming pool"), "water", (0.06, 0.095), ("blue",), counts=(1, 2, 3)),
    "tennis court": Kind(
        _named("tennis court"), "sport", (0.09,), ("green", "red", "blue", "orange"), verb="built"
    ),
    "football field": Kind(
        _named("football field", "soccer field"),
        "sport",
        (0.15,),
        ("green", "yellow", "brown"),
        counts=(1, 2),
    ),
    "playground": Kind(
        _named("playground", "running track"),
        "sport",
        (0.2, 0.28),
        ("red", "blue", "orange", "brown"),
        counts=_ONE,
    ),
    "bunker": Kind(_named("bunker", "sand bunker"), "bunker", (0.065, 0.1), ("white", "yellow")),
    # nature
    "tree": Kind(
        _named("tree"),
        "tree",
        (0.05, 0.08),
        ("green", "green", "yellow", "orange"),
        counts=(1, 2, 3, 4, 5, 6, 9, 11, 13),
        verb="planted",
    ),
    "rock": Kind(_named("rock", "stone"), "rock", (0.05, 0.085), ("grey", "black", "brown", "white")),
    "pond": Kind(
        _named("pond", "lake"),
        "water",
        (0.11, 0.2),
        ("blue", "green", "brown"),
        ("round", "long"),
        (1, 1, 1, 2),
    ),
    "field": Kind(
        _named("field", "crop field"),
        "field",
        (0.11, 0.16),
        ("green", "yellow", "brown", "orange"),
        ("rectangular", "round"),
    ),
    "island": Kind(
        _named("island"), "island", (0.14, 0.24), ("green", "yellow", "brown"), ("round", "long"), (1, 1, 2)
    ),
    "mountain": Kind(
        _named("mountain", "hill"),
        "mountain",
        (0.22, 0.32),
        ("brown", "grey", "green", "white"),
        counts=(1, 1, 2),
    ),
    # what crosses or fills the image
    "river": Kind(
        _named("river"), "water", (0.06, 0.11), ("blue", "green", "brown"), _BENDS, _ONE, form="linear"
    ),
    "road": Kind(
        _named("road"), "road", (0.035, 0.06), ("grey", "black", "brown"), _BENDS, _ONE, form="linear"
    ),
    "railway track": Kind(
        _named("railway track"), "railway", (0.03,), (), _BENDS, (1, 2, 3, 4), form="linear"
    ),
    "runway": Kind(_named("runway"), "road", (0.055,), ("grey", "black"), (), (1, 2), form="linear"),
    "bridge": Kind(
        _named("bridge"), "road", (0.04,), ("white", "grey", "red", "brown"), (), (1, 1, 2), form="bridge"
    ),
    "pier": Kind(
        _named("pier", "dock"), "pier", (0.03,), ("white", "grey", "brown"), (), (1, 2, 3, 4), form="pier"
    ),
    "crossroads": Kind(
        (("crossroads", "crossroads"),), "road", (0.06,), ("grey", "black"), (), _ONE, form="cross"
    ),
    "roundabout": Kind(_named("roundabout"), "road", (0.16, 0.22), ("green", "brown", "white"), (), _ONE),
    "car park": Kind(
        _named("car park", "parking lot"),
        "road",
        (0.22, 0.3),
        ("grey", "black", "brown"),
        (),
        _ONE,
        inside="in",
    ),
    "sea": Kind(
        (("sea", "sea"), ("ocean", "ocean")), "water", (0.5,), ("blue", "green"), (), _ONE, form="shore"
    ),
    "forest": Kind(
        _named("forest", "wood"),
        "tree",
        (0.5,),
        ("green", "yellow", "orange"),
        (),
        _ONE,
        form="cover",
        inside="in",
    ),
}
