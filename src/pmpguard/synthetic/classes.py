"""The grounds and scene classes of the synthetic scenes, as tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ground:
    """The surface under everything: how it is called, its two tones, and colours that would not stand out."""

    phrases: tuple[str, ...]
    light: tuple[int, int, int]
    dark: tuple[int, int, int]
    hides: tuple[str, ...]
    texture: str = "natural"


GROUNDS: dict[str, Ground] = {
    "grass": Ground(("green grass", "green lawn"), (122, 150, 84), (88, 120, 60), ("green",)),
    "dry grass": Ground(("dry grass", "dry meadow"), (176, 162, 108), (140, 130, 84), ("yellow",)),
    "soil": Ground(("bare soil", "bare land"), (160, 126, 92), (126, 96, 68), ("brown", "orange")),
    "red earth": Ground(("red earth", "red soil"), (178, 104, 70), (146, 78, 54), ("red", "brown", "orange")),
    "sand": Ground(
        ("yellow sand", "pale sand"), (228, 204, 152), (200, 174, 122), ("yellow", "white"), "dunes"
    ),
    "concrete": Ground(
        ("grey concrete", "grey pavement"), (176, 174, 168), (150, 149, 146), ("grey",), "paved"
    ),
    "asphalt": Ground(
        ("dark asphalt", "dark pavement"), (98, 99, 102), (76, 78, 82), ("black", "grey"), "paved"
    ),
    "snow": Ground(("white snow", "fresh snow"), (240, 243, 247), (206, 215, 228), ("white",), "dunes"),
    "blue water": Ground(("blue water",), (58, 116, 164), (30, 76, 124), ("blue",), "water"),
    "green water": Ground(("green water",), (62, 128, 116), (34, 92, 86), ("green", "blue"), "water"),
}

_OPEN = ("grass", "dry grass", "soil", "red earth", "sand", "snow")
_HARD = ("concrete", "asphalt", "soil")
_PARK = ("grass", "dry grass", "soil", "concrete", "snow")
_WATER = ("blue water", "green water")


@dataclass(frozen=True)
class SceneClass:
    """One class: its names, its grounds, what it is about and what else may stand there.

    `inside` kinds are placed in or on the main thing (boats on a river); `others` next to it. `always` kinds
    are never left out. `scenery` lists kinds that the drawing shows without the truth counting them.
    """

    names: tuple[str, ...]
    grounds: tuple[str, ...]
    mains: tuple[str, ...]
    others: tuple[str, ...]
    inside: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    scenery: tuple[str, ...] = ()


CLASSES: dict[str, SceneClass] = {
    "airport": SceneClass(
        ("airport",),
        ("concrete", "asphalt"),
        ("terminal",),
        ("plane", "truck", "bus", "tree", "storage tank"),
        always=("plane",),
    ),
    "beach": SceneClass(
        ("beach", "coast", "sandy beach area"),
        ("sand",),
        ("sea",),
        ("umbrella", "house", "tree", "rock", "tent"),
        ("boat",),
    ),
    "bridge": SceneClass(
        ("river crossing",),
        _PARK,
        ("river",),
        ("building", "house", "tree", "field", "tennis court"),
        ("bridge", "boat"),
        ("bridge",),
    ),
    "car park": SceneClass(
        ("car park", "parking lot"),
        _PARK,
        ("car park",),
        ("tree", "building", "house"),
        ("car", "bus", "truck"),
        ("car",),
    ),
    "church": SceneClass(("church",), _PARK, ("church",), ("tree", "house", "car", "road", "pond")),
    "container yard": SceneClass(
        ("container yard", "freight yard"),
        _HARD,
        ("container",),
        ("truck", "building", "railway track", "tree"),
    ),
    "crossroads": SceneClass(
        ("crossroads",), _PARK, ("crossroads",), ("house", "building", "tree", "tennis court"), ("car",)
    ),
    "dense residential": SceneClass(
        ("dense residential area", "crowded residential area"),
        _PARK,
        ("house",),
        ("swimming pool", "tree", "car", "tennis court", "church"),
        scenery=("road",),
    ),
    "desert": SceneClass(
        ("desert",),
        ("sand", "red earth"),
        ("rock", "tent", "pond", "tree"),
        ("rock", "tent", "tree", "truck", "road"),
    ),
    "farmland": SceneClass(
        ("farmland", "open farmland area"),
        ("grass", "dry grass", "soil", "red earth"),
        ("field",),
        ("house", "tree", "pond", "road", "truck", "river"),
    ),
    "forest": SceneClass(
        ("forest", "woodland", "dense forest area"),
        ("grass", "dry grass", "soil"),
        ("forest",),
        ("road", "river"),
        ("house", "pond", "tent", "rock", "field"),
    ),
    "golf course": SceneClass(
        ("golf course",),
        ("grass", "dry grass"),
        ("bunker",),
        ("pond", "tree", "house", "river", "car"),
        scenery=("field",),
    ),
    "harbour": SceneClass(
        ("harbour", "port"),
        _WATER,
        ("pier",),
        ("boat", "ship", "island", "rock"),
        always=("boat",),
        scenery=("road",),
    ),
    "industrial": SceneClass(
        ("industrial area", "industrial zone"),
        _HARD,
        ("factory",),
        ("storage tank", "truck", "container", "tree", "road"),
    ),
    "island": SceneClass(
        ("island",), _WATER, ("island",), ("boat", "ship", "rock"), ("house", "tree", "tent")
    ),
    "mountain": SceneClass(
        ("mountain area", "hilly area"),
        _OPEN,
        ("mountain",),
        ("house", "tree", "pond", "wind turbine", "road", "river"),
    ),
    "playground": SceneClass(
        ("sports ground",),
        _PARK,
        ("playground",),
        ("tennis court", "building", "tree", "car", "football field"),
    ),
    "pond": SceneClass(
        ("pond",), _OPEN, ("pond",), ("tree", "house", "car", "tent", "road", "field"), ("boat",)
    ),
    "railway": SceneClass(
        ("railway",),
        _PARK,
        ("railway track",),
        ("building", "house", "tree", "container", "storage tank"),
        ("train",),
    ),
    "river": SceneClass(
        ("river",),
        ("grass", "dry grass", "soil", "red earth", "sand"),
        ("river",),
        ("house", "tree", "field", "tent", "rock"),
        ("boat",),
    ),
    "roundabout": SceneClass(
        ("roundabout",), _PARK, ("roundabout",), ("house", "building", "tree"), ("car", "bus")
    ),
    "runway": SceneClass(
        ("runway",),
        ("grass", "dry grass", "soil", "sand", "snow"),
        ("runway",),
        ("plane", "building", "tree", "truck"),
        ("plane",),
    ),
    "school": SceneClass(
        ("school",),
        _PARK,
        ("school",),
        ("football field", "tennis court", "bus", "tree", "playground", "swimming pool"),
    ),
    "snowfield": SceneClass(
        ("snowfield",),
        ("snow",),
        ("house", "rock", "building", "pond"),
        ("tree", "rock", "road", "tent", "car"),
    ),
    "solar farm": SceneClass(
        ("solar farm", "solar station"),
        _OPEN,
        ("solar panel",),
        ("building", "tree", "truck", "road", "storage tank"),
    ),
    "sparse residential": SceneClass(
        ("sparse residential area", "quiet residential area"),
        ("grass", "dry grass", "soil", "red earth", "snow"),
        ("house",),
        ("tree", "swimming pool", "car", "road", "pond", "tennis court"),
    ),
    "stadium": SceneClass(
        ("sports centre",),
        _PARK,
        ("stadium",),
        ("tree", "building", "car", "tennis court", "football field", "bus"),
    ),
    "storage tanks": SceneClass(
        ("tank farm", "oil depot"),
        _PARK,
        ("storage tank",),
        ("building", "truck", "tree", "road", "railway track"),
    ),
    "tennis courts": SceneClass(
        ("tennis club",),
        _PARK,
        ("tennis court",),
        ("building", "tree", "car", "swimming pool", "football field"),
    ),
    "wind farm": SceneClass(
        ("wind farm",), _OPEN, ("wind turbine",), ("house", "tree", "field", "road", "pond")
    ),
}
