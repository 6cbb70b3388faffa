"""Who may ask: host names, tokens, and how many wrong ones."""

from __future__ import annotations

import asyncio

import pytest
from helpers.app_clients import client_of, refused
from helpers.fake_searcher import FakeSearcher
from helpers.running_apart import run_apart

from pmpguard.serving import access

pytest.importorskip("httpx", reason="the test client needs httpx")


def test_a_token_is_asked_for_everywhere_but_for_the_page_and_health(monkeypatch):
    monkeypatch.setattr(access, "GUESS_SECONDS", 0.001)
    with client_of(FakeSearcher(), token="s3cret") as client:
        for path in ("/search?text=a", "/images/scene/000", "/explain?id=a&text=b", "/info", "/metrics"):
            response = client.get(path)
            refused(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
            for wrong in ("Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer ", "Bearer é"):
                refused(client.get(path, headers={"Authorization": wrong.encode("latin-1")}), 401)
        refused(client.get("/openapi.json"), 401)
        refused(client.post("/search", content=b"x" * 17_000_000), 401)
        assert client.get("/").status_code == client.get("/healthz").status_code == 200
        assert client.get("/info", headers={"Authorization": "bearer s3cret"}).status_code == 200


def test_other_host_names_are_refused():
    with client_of(FakeSearcher(), hosts=frozenset({"127.0.0.1", "localhost"})) as client:
        for host in ("evil.example", "127.0.0.1.evil.example:80", "", "localhost:80:80"):
            refused(client.get("/info", headers={"Host": host}), 421)
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1"):
            assert client.get("/info", headers={"Host": host}).status_code == 200


def test_pages_of_other_sites_are_refused_and_links_are_not():
    with client_of(FakeSearcher()) as client:
        for site in ("cross-site", "same-site"):
            for method, path in (("GET", "/search?text=a"), ("POST", "/search"), ("GET", "/")):
                headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
                refused(client.request(method, path, headers=headers), 403)
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
            assert client.get("/", headers=headers).status_code == 200
        for site in ("same-origin", "none"):
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
            assert client.get("/search?text=a", headers=headers).status_code == 200


async def status_of(app, token: str, address: str) -> int:
    """The status of a GET with a token from an address."""
    statuses = []

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "path": "/info",
        "client": (address, 5),
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }
    await app(scope, None, send)
    return statuses[0]


def test_wrong_tokens_wait_only_so_many_at_a_time_and_lock_nobody_out(monkeypatch):
    monkeypatch.setattr(access, "GUESS_SECONDS", 0.3)

    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def work():
        app = access.require_token(page, "s3cret", is_open=lambda path: False, guesses=2)
        first = await status_of(app, "s3cret", "10.0.0.1")
        guesses = [asyncio.create_task(status_of(app, f"wrong{n}", "10.0.0.1")) for n in range(2)]
        await asyncio.sleep(0.05)
        meanwhile = [
            all(not guess.done() for guess in guesses),
            await status_of(app, "wrong", "10.0.0.1"),
            await status_of(app, "s3cret", "10.0.0.1"),  # of the same proxy
            await status_of(app, "s3cret", "10.0.0.2"),
        ]
        wrong = await asyncio.gather(*guesses)
        return first, meanwhile, wrong, await status_of(app, "s3cret", "10.0.0.1")

    assert run_apart(work()) == (200, [True, 429, 200, 200], [401, 401], 200)


def test_a_guess_whose_client_leaves_gives_its_place_back(monkeypatch):
    monkeypatch.setattr(access, "GUESS_SECONDS", 60.0)

    async def work():
        app = access.require_token(None, "s3cret", is_open=lambda path: False, guesses=1)
        guess = asyncio.create_task(status_of(app, "wrong", "::1"))
        await asyncio.sleep(0.01)
        guess.cancel()
        await asyncio.gather(guess, return_exceptions=True)
        again = asyncio.create_task(status_of(app, "wrong", "::1"))
        done, _ = await asyncio.wait([again], timeout=0.05)
        again.cancel()
        return done

    assert run_apart(work()) == set()  # it waits: it is not refused as one too many
