"""The truth about a scene: groups of things, their places and relations. Captions are written from it."""

from __future__ import annotations

from dataclasses import dataclass

from pmpguard.synthetic.classes import CLASSES
from pmpguard.synthetic.kinds import KINDS

Spot = tuple[float, float, float]  # x, y, angle


@dataclass(frozen=True)
class Group:
    """Things of one kind that look alike.

    `relation` is to the scene's main group: "beside", "around", "in", "over", "one side", "both sides" or ""
    where none can be claimed. `arrangement` is "row", "cluster", "ring" or "" (scattered or too few).
    `spots` are the items' centres and angles; for a river, road, track or coast they are its centre line.
    """

    kind: str
    count: int
    colour: str
    size: str
    shape: str
    arrangement: str
    relation: str
    spots: tuple[Spot, ...]
    reach: float


@dataclass(frozen=True)
class Scene:
    """The truth about one image. `groups[0]` is what the scene is about."""

    seed: int
    index: int
    label: str
    ground: str
    groups: tuple[Group, ...]

    @property
    def main(self) -> Group:
        return self.groups[0]

    @property
    def families(self) -> frozenset[str]:
        """Families of everything visible, counted or mere scenery."""
        shown = [*(group.kind for group in self.groups), *CLASSES[self.label].scenery]
        return frozenset(KINDS[kind].family for kind in shown)
