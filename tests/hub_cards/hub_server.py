"""A Hub on loopback: the part of the Hub's protocol that huggingface_hub speaks when it uploads, lists and downloads.

Repositories are in memory, and files are sent with their commit. Only the token "writer" may write and read in private.
"""

import base64
import hashlib
import json
import os
import re
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PATH = re.compile(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(revision|tree|preupload|commit|resolve)/([^/]+)(?:/(.+))?)?")


class Refused(Exception):
    """Its arguments: status, and the Hub's code of the error."""


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer(ThreadingHTTPServer):
    """The running server. `requests` has the path of each, and the bytes of its body; clients' caches are in `home`."""

    daemon_threads = True

    def __init__(self, home: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.home, self.endpoint = home, f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[tuple[str, int]] = []
        self.private: set[str] = set()
        # repository -> id of a commit -> title, and content by path; the last one is main
        self.commits: dict[str, dict[str, tuple[str, dict[str, bytes]]]] = {}
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def environment(self) -> dict[str, str]:
        """The environment of a fresh process that talks to this Hub: an empty cache, none of the user's settings."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_"))}
        keep |= {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.home / secrets.token_hex(4)), "HF_TOKEN": "writer"}
        return keep | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def create(self, name: str, private: bool = False) -> None:
        """A repository with what the Hub puts into a new one."""
        self.commits[name], self.private = {}, self.private - {name} | ({name} if private else set())
        self.commit(name, "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})

    def commit(self, name: str, title: str, files: dict[str, bytes]) -> str:
        oid = secrets.token_hex(20)  # of no other test: clients keep files by it
        self.commits[name][oid] = title, files
        return oid

    def edit(self, name: str, files: dict[str, bytes | str]) -> None:
        """A commit that somebody makes on the Hub's pages."""
        contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        self.commit(name, "Edit on the Hub", self.files(name) | contents)

    def head(self, name: str) -> str:
        return next(reversed(self.commits[name]))

    def files(self, name: str) -> dict[str, bytes]:
        return dict(self.commits[name][self.head(name)][1])

    def titles(self, name: str) -> list[str]:
        """The titles of all commits of a repository, oldest first."""
        return [title for title, _ in self.commits[name].values()]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        pass

    def answer(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.requests.append((path, len(body)))
        self.sent = {}  # further headers
        try:
            status, content = 200, self.content(path, body)
        except Refused as refused:
            status, content, self.sent = refused.args[0], b"", {"X-Error-Code": refused.args[1]}
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (self.sent | {"Content-Length": len(content)}).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = answer

    def content(self, path: str, body: bytes):
        """The bytes of a file, or a value for JSON."""
        hub, may = self.server, self.headers.get("authorization") == "Bearer writer"
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization')}/{asked['name']}"
            if not may:
                raise Refused(403, "")
            if name not in hub.commits:  # the Hub's 409 otherwise has the same meaning with exist_ok
                hub.create(name, asked.get("visibility") == "private" or asked.get("private", False))
            return {"url": f"{hub.endpoint}/{name}"}
        found = PATH.fullmatch(path)
        name, what, revision, file = found.groups() if found else ("", None, None, None)
        if name not in hub.commits or (name in hub.private and not may):
            raise Refused(404 if may else 401, "RepoNotFound")
        head = hub.head(name)
        oid = head if revision in (None, "main") else revision
        if oid not in hub.commits[name]:
            raise Refused(404, "RevisionNotFound")
        files = hub.commits[name][oid][1]
        if what in (None, "revision"):
            siblings = [{"rfilename": path} for path in files]
            return {"id": name, "sha": oid, "private": name in hub.private, "siblings": siblings}
        if what == "tree" and not file:
            tree = [{"path": path, "size": len(text), "oid": git_name(text)} for path, text in files.items()]
            return [{"type": "file", **entry} for entry in tree]
        if what == "resolve" and file in files:
            self.sent = {"X-Repo-Commit": oid, "ETag": f'"{git_name(files[file])}"'}
            return files[file]
        if what not in ("preupload", "commit"):
            raise Refused(404, "EntryNotFound")
        if not may:
            raise Refused(403, "")
        if what == "preupload":
            asked = [of["path"] for of in json.loads(body)["files"]]
            known = {path: {"oid": git_name(files[path])} for path in asked if path in files}
            own = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": path, **own, **known.get(path, {})} for path in asked]}
        (header, *operations), tree = map(json.loads, body.splitlines()), dict(files)
        if header["value"].get("parentCommit") not in (None, head):
            raise Refused(412, "")
        for key, value in (of.values() for of in operations):
            if key == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            else:
                del tree[value["path"]]
        oid = hub.commit(name, header["value"]["summary"], tree)
        return {"success": True, "commitOid": oid, "commitUrl": f"{hub.endpoint}/{name}/commit/{oid}"}
