"""A Hub on loopback: the part of the Hub's protocol that huggingface_hub speaks when it uploads, lists and downloads.

Repositories are commits of whole trees, in memory. All files are sent with their commit, none by LFS or Xet.
"""

import base64
import hashlib
import json
import os
import re
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

# token -> user, role
TOKENS = {"writer": ("owner", "write"), "reader": ("owner", "read"), "stranger": ("stranger", "write")}


class Refused(Exception):
    def __init__(self, status: int, message: str, code: str = ""):
        self.status, self.message, self.code = status, message, code


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    """Branches, and commits: oid -> (title, path -> content), oldest first."""

    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, tuple[str, dict[str, bytes]]] = field(default_factory=dict)

    def commit(self, branch: str, title: str, files: dict[str, bytes]) -> str:
        oid = secrets.token_hex(20)  # of no other test: clients keep files by it
        self.commits[oid] = (title, files)
        self.branches[branch] = oid
        return oid

    def at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        oid = self.branches.get(revision, revision)
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid, self.commits[oid][1]


@dataclass
class Request:
    """One line of the log; `size` is the bytes of the body that arrived."""

    path: str
    size: int = 0


class HubServer:
    """The running server and its state; `requests` is its log. Clients have their caches under `home`."""

    def __init__(self, home: Path):
        self.home = home
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def environment(self) -> dict[str, str]:
        """The environment of a fresh process that talks to this Hub: an empty cache, none of the user's settings."""
        home = self.home / f"home-{len(list(self.home.glob('*')))}"
        home.mkdir(parents=True)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_"))}
        keep |= {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return keep | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": "writer"}

    def create(self, name: str, private: bool = False) -> None:
        """A repository with what the Hub puts into a new one."""
        repo = self.repos[name] = Repo(private)
        repo.commit("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})

    def edit(self, name: str, files: dict[str, bytes | str]) -> None:
        """A commit that somebody makes on the Hub's pages."""
        with self.lock:
            contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
            self.repos[name].commit("main", "Edit on the Hub", self.repos[name].at("main")[1] | contents)

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a repository: path -> content."""
        return dict(self.repos[name].at(revision)[1])

    def head(self, name: str, branch: str = "main") -> str:
        return self.repos[name].branches[branch]

    def titles(self, name: str) -> list[str]:
        """The titles of all commits of a repository, oldest first."""
        return [title for title, _ in self.repos[name].commits.values()]

    def may(self, token: str, namespace: str, write: bool) -> bool:
        user, role = TOKENS.get(token, ("", ""))
        return user == namespace and (not write or role == "write")

    def repo(self, name: str, token: str, write: bool = False) -> Repo:
        repo, namespace = self.repos.get(name), name.split("/")[0]
        if repo is None or (repo.private and not self.may(token, namespace, write=False)):
            raise Refused(404, "Repository not found", "RepoNotFound") if token else Refused(401, "Invalid username")
        if write and not self.may(token, namespace, write=True):
            raise Refused(403, "You don't have the rights to write into this repo")
        return repo


class Handler(BaseHTTPRequestHandler):
    """One connection. A route is a method and a pattern of the path; the first that fits takes the request."""

    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        pass

    def answer(self) -> None:
        path = urlsplit(self.path).path
        self.token = self.headers.get("authorization", "").removeprefix("Bearer ")
        request = Request(path)
        self.hub.requests.append(request)
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request.size = len(self.body)
        status, headers = 200, {}
        try:
            with self.hub.lock:
                content = self.route(path)
            if isinstance(content, tuple):
                status, headers, content = content
        except Refused as refused:
            status, content = refused.status, {"error": refused.message}
            headers = {"X-Error-Message": refused.message, "X-Error-Code": refused.code}
        if not isinstance(content, bytes):
            headers["Content-Type"], content = "application/json", json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = answer

    def route(self, path: str):
        """The reply: a value for JSON, the bytes of a file, or (status, headers, bytes)."""
        method = "GET" if self.command == "HEAD" else self.command
        name, revision = "(?P<name>[^/]+/[^/]+)", "(?P<revision>[^/]+)"
        api = f"/api/(?:model|dataset)s/{name}"
        routes = [
            ("GET", "/api/whoami-v2", lambda: {"type": "user", "name": TOKENS[self.token][0]}),
            ("POST", "/api/repos/create", self.create),
            ("POST", "/api/validate-yaml", lambda: {"errors": [], "warnings": []}),
            ("GET", f"{api}(/revision/{revision})?", self.info),
            ("GET", f"{api}/tree/{revision}", self.tree),
            ("POST", f"{api}/preupload/{revision}", self.preupload),
            ("POST", f"{api}/commit/{revision}", self.commit),
            ("GET", f"/{name}/resolve/{revision}/(?P<path>.+)", self.resolve),
        ]
        for allowed, pattern, action in routes:
            if method == allowed and (found := re.fullmatch(pattern, path)):
                return action(**{key: unquote(value) for key, value in found.groupdict().items() if value is not None})
        raise Refused(404, f"{self.command} {path} is not spoken here")

    def create(self):
        asked = json.loads(self.body)
        namespace = asked.get("organization") or TOKENS[self.token][0]
        name = f"{namespace}/{asked['name']}"
        if not self.hub.may(self.token, namespace, write=True):
            raise Refused(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
        if name in self.hub.repos:
            return 409, {}, json.dumps({"url": f"{self.hub.endpoint}/{name}"}).encode()
        self.hub.create(name, private=asked.get("visibility") == "private" or asked.get("private", False))
        return {"url": f"{self.hub.endpoint}/{name}"}

    def info(self, name: str, revision: str = "main"):
        repo = self.hub.repo(name, self.token)
        oid, files = repo.at(revision)
        card = re.match(rb"---\n(.*?)\n---\n", files["README.md"], re.S) if "README.md" in files else None
        data = yaml.safe_load(card[1]) if card else {}
        siblings = [{"rfilename": path} for path in files]
        return {"id": name, "sha": oid, "private": repo.private, "cardData": data, "siblings": siblings}

    def tree(self, name: str, revision: str):
        files = self.hub.repo(name, self.token).at(revision)[1].items()
        return [{"type": "file", "path": path, "size": len(text), "oid": git_name(text)} for path, text in files]

    def preupload(self, name: str, revision: str):
        _, files = self.hub.repo(name, self.token, write=True).at(revision)
        answers = []
        for asked in json.loads(self.body)["files"]:
            answers.append({"path": asked["path"], "uploadMode": "regular", "shouldIgnore": False})
            if asked["path"] in files:
                answers[-1]["oid"] = git_name(files[asked["path"]])
        return {"files": answers}

    def commit(self, name: str, revision: str):
        repo = self.hub.repo(name, self.token, write=True)
        head, tree = repo.at(revision)
        tree, title = dict(tree), ""
        for item in map(json.loads, self.body.splitlines()):
            value = item["value"]
            if item["key"] == "header":
                title = value["summary"]
                if value.get("parentCommit") not in (None, head):
                    raise Refused(412, "A commit has happened since. Please refresh and try again.")
            elif item["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "deletedFile":
                del tree[value["path"]]
        oid = repo.commit(revision, title, tree)
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{oid}"}

    def resolve(self, name: str, revision: str, path: str):
        oid, files = self.hub.repo(name, self.token).at(revision)
        if path not in files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        return 200, {"X-Repo-Commit": oid, "ETag": f'"{git_name(files[path])}"'}, files[path]
