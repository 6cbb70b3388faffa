"""A Hugging Face Hub on this machine: the few endpoints that pushing and fetching a model use."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml


class Hub:
    """Repositories as commits, each a dict of files; large files come by Git LFS."""

    def __init__(self):
        self.repositories: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.private: set[str] = set()
        self.url = ""

    def files(self, name, revision="main"):
        commits = self.repositories[name]
        return commits[-1] if revision == "main" else next(c for c in commits if c[0] == revision)

    def commit(self, name, files):
        digest = hashlib.sha1(repr((name, len(self.repositories[name]), sorted(files))).encode()).hexdigest()
        self.repositories[name].append((digest, files))
        return digest


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *parts):
        pass

    def do_GET(self):
        self.answer("GET")

    def do_HEAD(self):
        self.answer("HEAD")

    def do_POST(self):
        self.answer("POST")

    def do_PUT(self):
        self.answer("PUT")

    def answer(self, verb):
        length = int(self.headers.get("Content-Length") or 0)
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        self.body = self.read_chunks() if chunked else self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((verb, path))
        for wanted, pattern, reply in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and verb in wanted:
                return reply(self, *found.groups())
        return self.send(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})

    def read_chunks(self):
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def send(self, status, content=None, headers=None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def told_who(self):
        return self.headers.get("Authorization") == "Bearer hf_stand_in"

    def known(self, name):
        return name in self.hub.repositories and (name not in self.hub.private or self.told_who())


def create(handler):
    if not handler.told_who():
        return handler.send(401, {"error": "who are you?"})
    given = json.loads(handler.body)
    name = f"{given['organization']}/{given['name']}"
    if name in handler.hub.repositories:
        return handler.send(409, {"error": "there already", "url": f"{handler.hub.url}/{name}"})
    handler.hub.repositories[name] = []
    handler.hub.commit(name, {})
    if given.get("visibility") == "private" or given.get("private"):
        handler.hub.private.add(name)
    return handler.send(200, {"url": f"{handler.hub.url}/{name}", "name": name})


def validate(handler):
    text = json.loads(handler.body)["content"]
    header = yaml.safe_load(text.split("---\n")[1])
    errors = [] if "library_name" in header else [{"message": "no library"}]
    return handler.send(200, {"errors": errors, "warnings": []})


def preupload(handler, name, revision):
    if name not in handler.hub.repositories:
        return handler.send(404, {"error": "no repository"}, {"X-Error-Code": "RepoNotFound"})
    files = [
        {
            "path": file["path"],
            "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
            "shouldIgnore": False,
        }
        for file in json.loads(handler.body)["files"]
    ]
    return handler.send(200, {"files": files})


def batch(handler, name):
    objects = []
    for wanted in json.loads(handler.body)["objects"]:
        href = f"{handler.hub.url}/objects/{wanted['oid']}"
        objects.append({**wanted, "actions": {"upload": {"href": href, "header": {}}}})
    return handler.send(200, {"transfer": "basic", "objects": objects})


def put_object(handler, oid):
    assert hashlib.sha256(handler.body).hexdigest() == oid
    handler.hub.objects[oid] = handler.body
    return handler.send(200, {})


def commit(handler, name, revision):
    files = dict(handler.hub.files(name)[1])
    for line in handler.body.splitlines():
        operation = json.loads(line)
        value = operation["value"]
        if operation["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            files[value["path"]] = handler.hub.objects[value["oid"]]
        elif operation["key"] == "deletedFile":
            del files[value["path"]]
    digest = handler.hub.commit(name, files)
    url = f"{handler.hub.url}/{name}/commit/{digest}"
    return handler.send(200, {"commitUrl": url, "commitOid": digest, "success": True})


def information(handler, name, revision="main"):
    if not handler.known(name):
        return handler.send(404, {"error": "no repository"}, {"X-Error-Code": "RepoNotFound"})
    digest, files = handler.hub.files(name, revision)
    siblings = [{"rfilename": path} for path in files]
    return handler.send(200, {"id": name, "modelId": name, "sha": digest, "siblings": siblings, "tags": []})


def tree(handler, name, revision):
    files = handler.hub.files(name, revision)[1]
    listed = [
        {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for path, data in files.items()
    ]
    return handler.send(200, listed)


def resolve(handler, name, revision, path):
    if not handler.known(name):
        return handler.send(404, {"error": "no repository"}, {"X-Error-Code": "RepoNotFound"})
    digest, files = handler.hub.files(name, revision)
    if path not in files:
        return handler.send(404, {"error": "no file"}, {"X-Error-Code": "EntryNotFound"})
    data = files[path]
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    return handler.send(200, data, {"X-Repo-Commit": digest, "ETag": etag})


NAME = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("POST", "/api/repos/create", create),
    ("POST", "/api/validate-yaml", validate),
    ("POST", f"/api/models/{NAME}/preupload/(.+)", preupload),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", batch),
    ("PUT", "/objects/(.+)", put_object),
    ("POST", f"/api/models/{NAME}/commit/(.+)", commit),
    ("GET", f"/api/models/{NAME}", information),
    ("GET", f"/api/models/{NAME}/revision/(.+)", information),
    ("GET", f"/api/models/{NAME}/tree/(.+)", tree),
    ("GET HEAD", f"/{NAME}/resolve/([^/]+)/(.+)", resolve),
]


@contextmanager
def running_hub():
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
