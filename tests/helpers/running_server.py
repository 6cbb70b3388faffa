"""A real server on a free port, in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from pmpguard.serving.config import DEFAULTS, ServerConfig
from pmpguard.serving.middleware import Application
from pmpguard.serving.run import make_server, open_listener


@contextlib.contextmanager
def running_server(app: Application, config: ServerConfig = DEFAULTS) -> Iterator[str]:
    """Yields the server's address; it is stopped in good order when the block ends."""
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    server = make_server(app, config, shutdown_seconds=2)
    with open_listener("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + 10
            while not server.started:
                assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive(), "the server did not stop"
