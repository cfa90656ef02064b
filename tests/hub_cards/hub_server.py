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


def facts_of(content: bytes) -> dict[str, int | str]:
    return {"size": len(content), "oid": git_name(content)}


class HubServer(ThreadingHTTPServer):
    """The running server. `requests` has the path of each, and the bytes of its body; clients' caches are in `home`."""

    daemon_threads = True

    def __init__(self, home: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.home = home
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[tuple[str, int]] = []
        self.private: set[str] = set()
        # repository -> id of a commit -> title, and content by path; the last one is main
        self.commits: dict[str, dict[str, tuple[str, dict[str, bytes]]]] = {}
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def environment(self) -> dict[str, str]:
        """The environment of a fresh process that talks to this Hub: an empty cache, none of the user's settings."""
        settings = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        cache = str(self.home / secrets.token_hex(4))
        environment |= {"HF_ENDPOINT": self.endpoint, "HF_HOME": cache, "HF_TOKEN": "writer"}
        return environment | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def create(self, name: str, private: bool = False) -> None:
        """A repository with what the Hub puts into a new one."""
        self.commits[name] = {}
        self.private.discard(name)
        if private:
            self.private.add(name)
        self.commit(name, "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})

    def commit(self, name: str, title: str, files: dict[str, bytes]) -> str:
        oid = secrets.token_hex(20)  # of no other test: clients keep files by it
        self.commits[name][oid] = title, files
        return oid

    def edit(self, name: str, files: dict[str, bytes | str]) -> None:
        """A commit that somebody makes on the Hub's pages."""
        contents = self.files(name)
        for path, text in files.items():
            contents[path] = text.encode() if isinstance(text, str) else text
        self.commit(name, "Edit on the Hub", contents)

    def head(self, name: str) -> str:
        return next(reversed(self.commits[name]))

    def files(self, name: str) -> dict[str, bytes]:
        _, files = self.commits[name][self.head(name)]
        return dict(files)

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
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.requests.append((path, len(body)))
        self.may_write = self.headers.get("authorization") == "Bearer writer"
        self.further_headers = {}
        status = 200
        try:
            content = self.content(path, body)
        except Refused as refused:
            status, code = refused.args
            content = b""
            self.further_headers = {"X-Error-Code": code}
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in self.further_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = answer

    def require_writer(self) -> None:
        if not self.may_write:
            raise Refused(403, "")

    def content(self, path: str, body: bytes) -> bytes | dict | list:
        """The bytes of a file, or a value for JSON."""
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        hub = self.server
        match = PATH.fullmatch(path)
        name, action, revision, file = match.groups() if match else ("", None, None, None)
        if name not in hub.commits or (name in hub.private and not self.may_write):
            raise Refused(404 if self.may_write else 401, "RepoNotFound")
        oid = hub.head(name) if revision in (None, "main") else revision
        if oid not in hub.commits[name]:
            raise Refused(404, "RevisionNotFound")
        _, files = hub.commits[name][oid]
        if action in (None, "revision"):
            siblings = [{"rfilename": path} for path in files]
            return {"id": name, "sha": oid, "private": name in hub.private, "siblings": siblings}
        if action == "tree" and not file:
            return [{"type": "file", "path": path, **facts_of(content)} for path, content in files.items()]
        if action == "resolve" and file in files:
            self.further_headers = {"X-Repo-Commit": oid, "ETag": f'"{git_name(files[file])}"'}
            return files[file]
        if action == "preupload":
            self.require_writer()
            return self.preupload(files, json.loads(body)["files"])
        if action == "commit":
            self.require_writer()
            return self.commit(name, files, [json.loads(line) for line in body.splitlines()])
        raise Refused(404, "EntryNotFound")

    def create(self, options: dict) -> dict:
        name = f"{options.get('organization')}/{options['name']}"
        self.require_writer()
        if name not in self.server.commits:  # the Hub's 409 otherwise has the same meaning with exist_ok
            private = options.get("visibility") == "private" or options.get("private", False)
            self.server.create(name, private)
        return {"url": f"{self.server.endpoint}/{name}"}

    def preupload(self, files: dict[str, bytes], entries: list[dict]) -> dict:
        """How each file is to be sent, and what the Hub has by its name."""
        answers = []
        for entry in entries:
            answer = {"path": entry["path"], "uploadMode": "regular", "shouldIgnore": False}
            if entry["path"] in files:
                answer["oid"] = git_name(files[entry["path"]])
            answers.append(answer)
        return {"files": answers}

    def commit(self, name: str, files: dict[str, bytes], lines: list[dict]) -> dict:
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, self.server.head(name)):
            raise Refused(412, "")
        contents = dict(files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                contents[value["path"]] = base64.b64decode(value["content"])
            else:
                del contents[value["path"]]
        oid = self.server.commit(name, header["summary"], contents)
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.server.endpoint}/{name}/commit/{oid}"}
