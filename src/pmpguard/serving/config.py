"""Every bound of the server in one place."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20

# Bounds on what one request may ask; they stand in /openapi.json and are the same for every server.
MAX_TEXT_CHARACTERS = 1_000
MAX_NAME_CHARACTERS = 500  # of an id, a column's name or one of its values
MAX_HITS = 200
MAX_SHORTLIST = 2_000
MAX_FILTER_VALUES = 100
MAX_IMAGE_SIDE = 10_000  # that may be asked for; what is sent is smaller


@dataclass(frozen=True)
class ServerConfig:
    """What requests, connections and uploads may cost together."""

    connections: int = 512
    connections_per_address: int = 256
    idle_seconds: float = 15.0  # for a request's head to arrive, once connected or after the last response
    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0
    token_guesses: int = 8  # wrong tokens answered a second, per address
    upload_pixels: int = 50_000_000
    decode_seconds: float = 2.0  # of processor time, for one image
    wall_factor: float = 1.5  # times as long by the clock, on a busy machine
    uploads: int = 8  # images that have arrived and are not decoded yet
    waiting: int = 256  # queries, and as many images, waiting in line
    response_seconds: float = 30.0
    batch: int = 32
    gather_seconds: float = 0.003
    image_side: int = 1_600
    thumbnail_bytes: int = 64 * MIB


DEFAULTS = ServerConfig()
