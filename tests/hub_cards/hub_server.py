"""A Hub on loopback: the part of the Hub's protocol that huggingface_hub speaks when it uploads, lists and downloads.

Repositories are kept in memory, as commits of whole trees. Large files go the LFS way: batch, PUT to a storage under
another host name (as the Hub's does; tokens do not go there), verify; downloads of them are redirected there. Xet is
not spoken: clients set HF_HUB_DISABLE_XET. Faults are put in by the test, and every request is in a log.
"""

import base64
import hashlib
import json
import os
import re
import socket
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

LFS_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.model", "*.onnx", "*.png", "*.zip")
# token -> user, role; what the user may in organizations
TOKENS = {"writer": ("owner", "write"), "reader": ("owner", "read"), "stranger": ("stranger", "write")}
ORGANIZATIONS = {"owner": {"team": "write", "library": "read"}, "stranger": {}}


class Refused(Exception):
    """A reply that is an error, in the Hub's form."""

    def __init__(self, status: int, message: str, code: str | None = None):
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Blob:
    """A file of a commit."""

    content: bytes
    is_lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """git's name of the file, or of the pointer that stands for a large one."""
        size = len(self.content)
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {size}\n".encode()
        stored = pointer if self.is_lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    def entry(self, path: str) -> dict:
        entry = {"type": "file", "path": path, "size": len(self.content), "oid": self.oid}
        lfs = {"oid": self.sha256, "size": len(self.content), "pointerSize": 134}
        return entry | ({"lfs": lfs} if self.is_lfs else {})


@dataclass
class Repo:
    """Branches, and commits: oid -> (title, path -> Blob), oldest first."""

    name: str
    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, tuple[str, dict[str, Blob]]] = field(default_factory=dict)

    def commit(self, branch: str, title: str, files: dict[str, Blob]) -> str:
        content = (self.name, len(self.commits), title, sorted((path, blob.oid) for path, blob in files.items()))
        oid = hashlib.sha1(repr(content).encode()).hexdigest()
        self.commits[oid] = (title, files)
        self.branches[branch] = oid
        return oid

    def at(self, revision: str) -> tuple[str, dict[str, Blob]]:
        oid = self.branches.get(revision, revision)
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid, self.commits[oid][1]


@dataclass
class Request:
    """One line of the log; `size` is the bytes of the body that arrived."""

    method: str
    path: str
    size: int = 0
    status: int | None = None


@dataclass
class Fault:
    """What goes wrong with requests of this method whose path the pattern is found in.

    what: a status to reply with; "drop": the line breaks; "hang": it breaks when the server is `stopped`
    times: so many go wrong
    """

    method: str
    pattern: str
    what: int | str
    times: int = 1


def is_large(path: str, sample: bytes) -> bool:
    return b"\0" in sample or any(fnmatch(path, pattern) for pattern in LFS_PATTERNS)


class HubServer:
    """The server, running, and its state; clients that it gives an environment to keep their caches under `home`.

    endpoint: its address, for HF_ENDPOINT
    requests: the log
    """

    def __init__(self, home: Path):
        self.home = home
        self.repos: dict[tuple[str, str], Repo] = {}
        self.storage: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        self.stopped = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.http.daemon_threads = True
        port = self.http.server_address[1]
        self.endpoint, self.storage_url = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        self.http.shutdown()
        self.http.server_close()

    def environment(self, token: str = "writer") -> dict[str, str]:
        """The environment of a fresh process that talks to this Hub: an empty cache, none of the user's settings."""
        home = self.home / f"home-{len(list(self.home.glob('*')))}"
        home.mkdir(parents=True)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_"))}
        keep |= {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return keep | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": token}

    def create(self, name: str, kind: str = "model", private: bool = False) -> None:
        """A repository with what the Hub puts into a new one."""
        repo = self.repos[kind, name] = Repo(name, private)
        repo.commit("main", "initial commit", {".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)})

    def edit(self, name: str, files: dict[str, bytes | str], kind: str = "model") -> None:
        """A commit that somebody makes on the Hub's pages."""
        with self.lock:
            repo = self.repos[kind, name]
            contents = {
                path: content.encode() if isinstance(content, str) else content for path, content in files.items()
            }
            blobs = {path: Blob(content, is_large(path, content[:512])) for path, content in contents.items()}
            repo.commit("main", "Edit on the Hub", repo.at("main")[1] | blobs)

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a model's repository: path -> content."""
        return {path: blob.content for path, blob in self.repos["model", name].at(revision)[1].items()}

    def head(self, name: str, branch: str = "main") -> str:
        return self.repos["model", name].branches[branch]

    def titles(self, name: str) -> list[str]:
        """The titles of all commits of a model's repository, oldest first."""
        return [title for title, _ in self.repos["model", name].commits.values()]

    def writes(self) -> list[Request]:
        """The requests so far that could have changed something."""
        changing = (request for request in self.requests if request.method not in ("GET", "HEAD"))
        return [request for request in changing if not re.search("paths-info|validate-yaml", request.path)]

    def stored(self) -> list[str]:
        """The sha256 of every large file that arrived whole, in order, again where it was sent again."""
        done = [r for r in self.requests if r.method == "PUT" and r.path.startswith("/storage/") and r.status == 200]
        return [request.path.split("/")[2] for request in done]

    def may(self, token: str, namespace: str, write: bool) -> bool:
        user, role = TOKENS.get(token, ("", ""))
        in_organization = ORGANIZATIONS.get(user, {}).get(namespace)
        if not write:
            return user == namespace or in_organization is not None
        return role == "write" and (user == namespace or in_organization == "write")

    def repo(self, kind: str, name: str, token: str, write: bool = False) -> Repo:
        repo, namespace = self.repos.get((kind, name)), name.split("/")[0]
        if repo is None or (repo.private and not self.may(token, namespace, write=False)):
            raise Refused(404, "Repository not found", "RepoNotFound") if token else Refused(401, "Invalid username")
        if write and not self.may(token, namespace, write=True):
            raise Refused(403, "You don't have the rights to write into this repo")
        return repo


class Handler(BaseHTTPRequestHandler):
    """One connection. A route is a method and a pattern of the path; the first that fits takes the request."""

    hub: HubServer
    protocol_version = "HTTP/1.1"
    API = r"/api/(?P<kind>model|dataset)s/(?P<name>[^/]+/[^/]+)"
    GIT = r"/(?P<name>[^/]+/[^/]+)"  # of a model

    def log_message(self, *arguments) -> None:
        pass

    def answer(self) -> None:
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.token = self.headers.get("authorization", "").removeprefix("Bearer ")
        request = Request(self.command, url.path)
        with self.hub.lock:
            self.hub.requests.append(request)
            what = self.fault(url.path)
        if isinstance(what, str):
            if what == "hang":
                self.hub.stopped.wait(60)
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request.size = len(self.body)
        try:
            if what:
                raise Refused(what, "A fault of the server")
            with self.hub.lock:
                status, headers, content = self.route(url.path)
        except Refused as refused:
            status, content = refused.status, json.dumps({"error": refused.message}).encode()
            headers = {"X-Error-Message": refused.message, "Content-Type": "application/json"}
            headers |= {"X-Error-Code": refused.code} if refused.code else {}
        request.status = status
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def fault(self, path: str) -> int | str | None:
        for fault in self.hub.faults:
            if fault.method == self.command and re.search(fault.pattern, path) and fault.times:
                fault.times -= 1
                return fault.what
        return None

    def route(self, path: str) -> tuple[int, dict[str, str], bytes]:
        method = "GET" if self.command == "HEAD" else self.command
        routes = [
            ("GET", "/api/whoami-v2", self.whoami),
            ("POST", "/api/repos/create", self.create),
            ("POST", "/api/validate-yaml", self.validate_yaml),
            ("GET", f"{self.API}(/revision/(?P<revision>[^/]+))?", self.info),
            ("GET", f"{self.API}/tree/(?P<revision>[^/]+)", self.tree),
            ("POST", f"{self.API}/paths-info/(?P<revision>[^/]+)", self.paths_info),
            ("POST", f"{self.API}/preupload/(?P<revision>[^/]+)", self.preupload),
            ("POST", f"{self.API}/commit/(?P<revision>[^/]+)", self.commit),
            ("POST", f"{self.API}/branch/(?P<revision>[^/]+)", self.branch),
            ("POST", f"{self.GIT}\\.git/info/lfs/objects/batch", self.batch),
            ("POST", f"{self.GIT}\\.git/info/lfs/verify", self.verify),
            ("PUT", "/storage/(?P<oid>[0-9a-f]{64})", self.store),
            ("GET", "/storage/(?P<oid>[0-9a-f]{64})", self.stored),
            ("GET", f"{self.GIT}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", self.resolve),
        ]
        for allowed, pattern, action in routes:
            if method == allowed and (found := re.fullmatch(pattern, path)):
                return action(
                    **{name: unquote(value) for name, value in found.groupdict().items() if value is not None}
                )
        raise Refused(404, f"{self.command} {path} is not spoken here")

    @staticmethod
    def json(value, status: int = 200) -> tuple[int, dict[str, str], bytes]:
        return status, {"Content-Type": "application/json"}, json.dumps(value).encode()

    # who and what there is

    def whoami(self):
        if self.token not in TOKENS:
            raise Refused(401, "Invalid credentials in Authorization header")
        user, role = TOKENS[self.token]
        orgs = [{"type": "org", "name": name, "roleInOrg": role} for name, role in ORGANIZATIONS[user].items()]
        access = {"displayName": self.token, "role": role}
        return self.json({"type": "user", "name": user, "orgs": orgs, "auth": {"accessToken": access}})

    def create(self):
        asked = json.loads(self.body)
        namespace = asked.get("organization") or TOKENS[self.token][0]
        name = f"{namespace}/{asked['name']}"
        if not self.hub.may(self.token, namespace, write=True):
            raise Refused(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
        url = {"url": f"{self.hub.endpoint}/{name}"}
        if ("model", name) in self.hub.repos:
            return self.json({"error": "You already created this model repo", **url}, 409)
        self.hub.create(name, private=asked.get("visibility") == "private" or asked.get("private", False))
        return self.json(url)

    def validate_yaml(self):
        return self.json({"errors": [], "warnings": []})

    def info(self, kind: str, name: str, revision: str = "main"):
        repo = self.hub.repo(kind, name, self.token)
        oid, files = repo.at(revision)
        text = files["README.md"].content.decode() if "README.md" in files else ""
        card = re.match(r"---\n(.*?)\n---\n", text, re.S)
        data = yaml.safe_load(card[1]) if card else {}
        info = {"id": name, "author": name.split("/")[0], "sha": oid, "private": repo.private, "cardData": data}
        info |= {key: data[key] for key in ("tags", "pipeline_tag", "library_name") if key in data}
        return self.json(info | {"siblings": [{"rfilename": path} for path in files]})

    def tree(self, kind: str, name: str, revision: str):
        _, files = self.hub.repo(kind, name, self.token).at(revision)
        folders = {parent.as_posix() for path in files for parent in list(Path(path).parents)[:-1]}
        entries = [{"type": "directory", "path": folder, "size": 0, "oid": "0" * 40} for folder in sorted(folders)]
        entries += [blob.entry(path) for path, blob in files.items()]
        recursive = self.query.get("recursive", "").lower() in ("true", "1")
        return self.json([entry for entry in entries if recursive or "/" not in entry["path"]])

    def paths_info(self, kind: str, name: str, revision: str):
        _, files = self.hub.repo(kind, name, self.token).at(revision)
        is_json = "json" in self.headers.get("content-type", "")
        paths = (json.loads(self.body) if is_json else parse_qs(self.body.decode()))["paths"]
        return self.json([files[path].entry(path) for path in paths if path in files])

    # uploads

    def preupload(self, kind: str, name: str, revision: str):
        _, files = self.hub.repo(kind, name, self.token, write=True).at(revision)
        answers = []
        for asked in json.loads(self.body)["files"]:
            large = is_large(asked["path"], base64.b64decode(asked["sample"]))
            answer = {"path": asked["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if blob := files.get(asked["path"]):
                answer["oid"] = blob.sha256 if blob.is_lfs else blob.oid
            answers.append(answer)
        return self.json({"files": answers})

    def batch(self, name: str):
        self.hub.repo("model", name, self.token, write=True)
        answers = []
        for asked in json.loads(self.body)["objects"]:
            answer = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.storage:
                verify = f"{self.hub.endpoint}/{name}.git/info/lfs/verify"
                upload = f"{self.hub.storage_url}/storage/{asked['oid']}"
                answer["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
            answers.append(answer)
        return self.json({"transfer": "basic", "objects": answers})

    def store(self, oid: str):
        self.hub.storage[oid] = self.body
        return 200, {}, b""

    def verify(self, name: str):
        return self.json({})

    def commit(self, kind: str, name: str, revision: str):
        repo = self.hub.repo(kind, name, self.token, write=True)
        head, tree = repo.at(revision)
        tree, title = dict(tree), ""
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                title = value["summary"]
                if value.get("parentCommit") not in (None, head):
                    raise Refused(412, "A commit has happened since. Please refresh and try again.")
            elif item["key"] == "file":
                tree[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif item["key"] == "lfsFile":
                tree[value["path"]] = Blob(self.hub.storage[value["oid"]], True)
            elif item["key"] == "deletedFile":
                del tree[value["path"]]
        oid = repo.commit(revision, title, tree)
        url = f"{self.hub.endpoint}/{name}/commit/{oid}"
        return self.json({"success": True, "commitOid": oid, "commitUrl": url})

    def branch(self, kind: str, name: str, revision: str):
        repo = self.hub.repo(kind, name, self.token, write=True)
        repo.branches[revision] = repo.at(json.loads(self.body or b"{}").get("startingPoint", "main"))[0]
        return self.json({})

    # downloads

    def resolve(self, name: str, revision: str, path: str):
        oid, files = self.hub.repo("model", name, self.token).at(revision)
        if path not in files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        blob = files[path]
        if not blob.is_lfs:
            return 200, {"X-Repo-Commit": oid, "ETag": f'"{blob.oid}"'}, blob.content
        linked = {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
        self.hub.storage[blob.sha256] = blob.content
        return 302, {"X-Repo-Commit": oid, "Location": f"{self.hub.storage_url}/storage/{blob.sha256}", **linked}, b""

    def stored(self, oid: str):
        return 200, {"ETag": f'"{oid}"', "Content-Type": "application/octet-stream"}, self.hub.storage[oid]
