"""A port two processes can meet at while other tests run beside them."""

from __future__ import annotations

import os
import socket


def free_port() -> int:
    """Below the ports the system hands out by itself, so that no connection made elsewhere can take it."""
    first = 12_000 + os.getpid() * 16 % 16_000
    for port in range(first, first + 16):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {first} to {first + 15}")
