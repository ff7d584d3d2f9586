"""A Hub on 127.0.0.1 that speaks as much of the protocol as pushing and loading models takes.

The real client talks to it: repositories, branches, commits with files inline or by the large-file route,
listings and downloads. Tests give it tokens and faults.
"""

import base64
import hashlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

Run = Callable[..., subprocess.CompletedProcess[str]]  # the fixtures `run` and `run_python` of tests/hub
LARGE = 20_000  # bytes; files from this size on take the large-file route
LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "other"}  # some of those that the Hub knows


@dataclass
class Commit:
    """A state of a repository: the contents of its files by name."""

    sha: str
    message: str
    files: dict[str, bytes]


@dataclass
class Repository:
    """Branches are lists of commits, the latest last."""

    private: bool
    branches: dict[str, list[Commit]] = field(default_factory=lambda: {"main": [_commit("", {})]})

    def find(self, revision: str) -> Commit | None:
        """The commit that a branch or a hash names."""
        if revision in self.branches:
            return self.branches[revision][-1]
        commits = (commit for branch in self.branches.values() for commit in branch)
        return next((commit for commit in commits if commit.sha == revision), None)


def _commit(message: str, files: dict[str, bytes]) -> Commit:
    digest = hashlib.sha1(message.encode())
    for name, content in sorted(files.items()):
        digest.update(name.encode() + content)
    return Commit(digest.hexdigest(), message, files)


@dataclass
class LoopbackHub:
    """The Hub's state. `tokens` are those of users, by token; `cut` drops the connection where it says so."""

    tokens: dict[str, str]
    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # large files by their SHA-256
    requests: list[tuple[str, str]] = field(default_factory=list)  # method and path
    cut: Callable[[str, str], bool] = lambda method, path: False
    is_down: bool = False  # then it answers 503

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """What a repository holds."""
        commit = self.repositories[repo_id].find(revision)
        assert commit is not None
        return commit.files

    def card(self, repo_id: str) -> str:
        return self.files(repo_id)["README.md"].decode()

    def forget(self) -> None:
        """Delete repositories, requests and faults, but keep the users."""
        self.repositories.clear()
        self.objects.clear()
        self.requests.clear()
        self.cut = lambda method, path: False
        self.is_down = False

    def environment(self, cache: str, token: str | None) -> dict[str, str]:
        """Environment variables for a process that uses this Hub."""
        variables = {"HF_ENDPOINT": self.url, "HF_HOME": cache, "HF_HUB_DISABLE_XET": "1"}
        variables |= {"HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"}
        return variables | ({} if token is None else {"HF_TOKEN": token})


@contextmanager
def loopback_hub(**tokens: str) -> Iterator[LoopbackHub]:
    """Serve a Hub in a thread; arguments are the users' tokens, by the users' names."""
    hub = LoopbackHub({token: user for user, token in tokens.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
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


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str):
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Nothing on the screen."""

    def do_HEAD(self) -> None:  # the names that the library calls
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if self.hub.is_down:
            self._body()
            self._answer(b"maintenance", 503)
            return
        if self.hub.cut(self.command, path):
            self.rfile.read(1)
            self.close_connection = True
            self.connection.close()
            return
        body = self._body()
        try:
            self._route(path, body)
        except _RefusedError as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self._answer(json.dumps({"error": refused.message}).encode(), refused.status, headers)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _route(self, path: str, body: bytes) -> None:
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate_card(json.loads(body)["content"])
        elif path.startswith("/api/models/"):
            self._api("/".join(parts[2:4]), parts[4:], body)
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._offer_uploads(json.loads(body))
        elif parts[0] == "objects":
            self._store(parts[1], body)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._download("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            raise _RefusedError(404, "", f"no such page: {path}")

    # Who is asking, and for what.

    def _user(self) -> str | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise _RefusedError(401, "", "Invalid credentials in Authorization header")
        return self.hub.tokens.get(token)

    def _repository(self, repo_id: str, *, write: bool = False) -> Repository:
        user, repository = self._user(), self.hub.repositories.get(repo_id)
        owns = repo_id.split("/")[0] == user
        if repository is None or (repository.private and not owns):
            raise _RefusedError(401 if user is None else 404, "RepoNotFound", "Repository not found")
        if write and not owns:
            raise _RefusedError(403, "", "You don't have the rights to write to this repository")
        return repository

    def _find(self, repo_id: str, revision: str) -> Commit:
        commit = self._repository(repo_id).find(revision)
        if commit is None:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    # Answers.

    def _answer(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    def _create(self, payload: dict[str, Any]) -> None:
        user = self._user()
        if user is None:
            raise _RefusedError(401, "", "You must be authenticated to create a repository")
        owner = payload.get("organization") or user
        repo_id = f"{owner}/{payload['name']}"
        if owner != user:
            raise _RefusedError(
                403, "", f"You don't have the rights to create a model under the namespace {owner}"
            )
        answer = {"url": f"{self.hub.url}/{repo_id}", "name": repo_id}
        if repo_id in self.hub.repositories:
            self._json({**answer, "error": "You already created this model repo"}, 409)
            return
        self.hub.repositories[repo_id] = Repository(private=payload.get("visibility") == "private")
        self._json(answer)

    def _validate_card(self, content: str) -> None:
        """Some of what the Hub asks of a card's metadata."""
        metadata = yaml.safe_load(content.split("---")[1])
        errors = [f'"license" must be one of {LICENSES}'] * (metadata.get("license") not in {None, *LICENSES})
        errors += [
            f'"language" has no code {code}' for code in metadata.get("language") or [] if len(code) > 3
        ]
        for model in metadata.get("model-index") or []:
            for result in model["results"]:
                complete = {"task", "dataset", "metrics"} <= result.keys()
                complete = complete and {"name", "type"} <= result["dataset"].keys()
                complete = complete and all(
                    {"type", "value"} <= metric.keys() for metric in result["metrics"]
                )
                errors += [] if complete else ['"model-index" has an incomplete result']
        self._json(
            {"errors": [{"message": error} for error in errors], "warnings": []}, 400 if errors else 200
        )

    def _api(self, repo_id: str, rest: list[str], body: bytes) -> None:
        kind, revision = (rest[0] if rest else "info"), "/".join(rest[1:]) or "main"
        if kind in ("info", "revision"):
            commit = self._find(repo_id, revision)
            files = [{"rfilename": name} for name in commit.files]
            self._json({"id": repo_id, "modelId": repo_id, "sha": commit.sha, "siblings": files})
        elif kind == "tree":
            self._list(self._find(repo_id, rest[1]), "/".join(rest[2:]))
        elif kind == "preupload":
            self._repository(repo_id, write=True)
            self._json({"files": [_upload_mode(file) for file in json.loads(body)["files"]]})
        elif kind == "branch":
            branches = self._repository(repo_id, write=True).branches
            if revision in branches:
                raise _RefusedError(409, "", "Reference already exists")
            branches[revision] = list(branches["main"])
            self._json({})
        elif kind == "commit":
            self._commit(self._repository(repo_id, write=True), repo_id, revision, body)
        else:
            raise _RefusedError(404, "", f"no such page: {kind}")

    def _list(self, commit: Commit, folder: str) -> None:
        listed = {name: content for name, content in commit.files.items() if name.startswith(folder)}
        if folder and not listed:
            raise _RefusedError(404, "EntryNotFound", f"{folder} does not exist")
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in listed.items()
        ]
        self._json(entries)

    def _commit(self, repository: Repository, repo_id: str, branch: str, body: bytes) -> None:
        if branch not in repository.branches:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        files, message = dict(repository.branches[branch][-1].files), ""
        for line in body.decode().splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        commit = _commit(message, files)
        repository.branches[branch].append(commit)
        url = f"{self.hub.url}/{repo_id}/commit/{commit.sha}"
        self._json({"success": True, "commitOid": commit.sha, "commitUrl": url})

    def _offer_uploads(self, payload: dict[str, Any]) -> None:
        offers = []
        for wanted in payload["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/objects/{wanted['oid']}"}}
            known = wanted["oid"] in self.hub.objects
            offers.append({**wanted, **({} if known else {"actions": upload})})
        self._json({"transfer": "basic", "objects": offers})

    def _store(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _RefusedError(400, "", "the content is not what was announced")
        self.hub.objects[oid] = body
        self._answer(b"")

    def _download(self, repo_id: str, revision: str, name: str) -> None:
        commit = self._find(repo_id, revision)
        if name not in commit.files:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit.sha}
            self._answer(b"Entry not found", 404, headers)
            return
        content = commit.files[name]
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        self._answer(content, 200, headers)


def _upload_mode(file: dict[str, Any]) -> dict[str, Any]:
    mode = "lfs" if file["size"] >= LARGE else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
