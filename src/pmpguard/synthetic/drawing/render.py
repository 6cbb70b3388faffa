"""From truth to pixels: `render_scene` paints a scene at any size."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pmpguard.errors import ConfigError
from pmpguard.synthetic.classes import GROUNDS
from pmpguard.synthetic.drawing.canvas import Canvas, blob, noise, sensor_grain, shade
from pmpguard.synthetic.drawing.features import FEATURES, ROADS
from pmpguard.synthetic.drawing.items import FOLIAGE, PAINTERS, PALETTE
from pmpguard.synthetic.geometry import moved
from pmpguard.synthetic.layout import draw_scene
from pmpguard.synthetic.truth import Group, Scene

SMALLEST, LARGEST = 32, 512
_LAYERS = ("forest", "sea", "mountain", "island", "river", "field", "pond", "car park", "road", "bridge")


def render_scene(scene: Scene, size: int = 64) -> NDArray[np.uint8]:
    """(size, size, 3): the image of a scene; the same scene at every size.

    >>> render_scene(draw_scene(0, 0), 64).shape
    (64, 64, 3)
    """
    if not SMALLEST <= size <= LARGEST:
        raise ConfigError(f"scene size is {size} px", fix=f"choose {SMALLEST} to {LARGEST}")
    finer = 3 if size <= 96 else 2  # painted larger, then averaged: smooth edges
    canvas = Canvas(size * finer, random.Random(f"scene look {scene.seed} {scene.index}"))
    ground = GROUNDS[scene.ground]
    canvas.image.paste(canvas.ground(ground.dark, ground.light, ground.texture))
    _scenery(canvas, scene)
    for group in sorted(scene.groups, key=_layer):
        _paint(canvas, scene, group)
    return _photograph(canvas, size, finer)


def render_scenes(seed: int, indices: Sequence[int], size: int) -> tuple[list[Scene], NDArray[np.uint8]]:
    """Some scenes of a world with their images (len(indices), size, size, 3)."""
    scenes = [draw_scene(seed, index) for index in indices]
    return scenes, np.stack([render_scene(scene, size) for scene in scenes])


def _layer(group: Group) -> int:
    return _LAYERS.index(group.kind) if group.kind in _LAYERS else len(_LAYERS) + (group.kind in PAINTERS)


def _scenery(canvas: Canvas, scene: Scene) -> None:
    """What belongs to a class without being counted: fairways, streets between rows of houses."""
    rng = canvas.rng
    if scene.label == "golf course":
        for _ in range(3):
            x, y, angle = rng.random(), rng.random(), rng.uniform(0, math.tau)
            fairway = blob(rng, x, y, angle, rng.uniform(0.3, 0.5), rng.uniform(0.1, 0.16))
            canvas.textured([fairway], canvas.ground((116, 162, 78), (140, 182, 96)))
    if scene.label == "dense residential":
        x, y, angle = scene.main.spots[len(scene.main.spots) // 2]
        for row in range(-8, 9):
            across = row * 0.3 + 0.1
            start = moved(0.5, 0.5, angle, -1.0, across)
            end = moved(0.5, 0.5, angle, 1.0, across)
            canvas.line([start, end], ROADS["grey"], 0.045)
            canvas.dashes([start, end], (226, 226, 222), 0.006, 0.03)


def _paint(canvas: Canvas, scene: Scene, group: Group) -> None:
    if group.kind in FEATURES:
        FEATURES[group.kind](canvas, group)
        return
    if scene.main.kind == "forest" and group.kind != "tree":  # a clearing in the wood
        ground = GROUNDS[scene.ground]
        glades = [blob(canvas.rng, x, y, a, group.reach * 1.5, group.reach * 1.4) for x, y, a in group.spots]
        canvas.textured(glades, canvas.ground(ground.dark, ground.light))
    painter = PAINTERS[group.kind]
    colour = FOLIAGE[group.colour] if group.kind == "tree" else PALETTE[group.colour]
    for spot in group.spots:
        painter(canvas, spot, group.reach, shade(colour, canvas.rng.uniform(0.93, 1.07)))


def _photograph(canvas: Canvas, size: int, finer: int) -> NDArray[np.uint8]:
    """Average down, then what a camera adds: uneven light, a colour cast, haze and sensor noise."""
    rng = canvas.rng
    image = np.asarray(canvas.image.reduce(finer), np.float32)  # (size, size, 3)
    cast = np.array([rng.uniform(0.95, 1.05) for _ in range(3)], np.float32) * rng.uniform(0.9, 1.08)
    haze = rng.uniform(0.0, 0.08)
    x, y = int(rng.random() * size), int(rng.random() * size)
    window = (slice(y, y + size), slice(x, x + size))
    light = 1 + 0.03 * noise(size, "soft")[window][..., None]  # (size, size, 1)
    exposed = image * (light * (cast * (1 - haze))) + (190 * haze + 2.2 * sensor_grain(size)[window])
    developed: NDArray[np.uint8] = np.clip(exposed, 0, 255).astype(np.uint8)
    return developed
