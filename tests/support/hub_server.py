"""A hub on this machine: the part of huggingface.co's interface that megalith and huggingface_hub speak, with faults.

Two servers, as with the real one: the hub itself, and a store on another port to which large files are redirected.
"""

import hashlib
import json
import re
import ssl
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_secretsecretsecret"


class File:
    def __init__(self, content, is_large):
        self.content, self.is_large = content, is_large
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.etag = self.sha256 if is_large else self.git


class Repo:
    def __init__(self, files, large):
        self.files = {name: File(content, name in large) for name, content in files.items()}
        text = "".join(f"{name} {file.etag}\n" for name, file in sorted(self.files.items()))
        self.commit = hashlib.sha1(text.encode()).hexdigest()


class Hub:
    """`faults` maps a file's name to a list, of which each request for its bytes takes one:

    ("cut", N)      the connection ends after N bytes of the answer
    ("stall", N)    nothing more comes after N bytes
    ("wrong",)      other bytes of the same number
    ("long",)       more bytes than there should be
    ("whole",)      a Range is ignored
    ("status", N)   this status, and no bytes
    """

    def __init__(self):
        self.repos = {}  # (type, "org/name", revision) -> Repo
        self.gated = set()  # "org/name": asks for TOKEN
        self.lists_gated = False  # otherwise only files ask for it, as on the real hub
        self.faults = {}
        self.list_faults = []  # of requests for a list: ("status", N), or ("endless",), a text that goes on for 256 MiB
        self.num_endless = 0  # bytes of it that were taken
        self.log = []  # (server, method, path, headers)
        self.lists_hashes = True  # else as a mirror that knows no ?blobs=true
        self.release = threading.Event()  # ends stalls
        self.servers = {}
        for role in ("hub", "store"):
            server = ThreadingHTTPServer(("127.0.0.1", 0), type(f"{role}Handler", (Handler,), {"hub": self, "role": role}))
            server.daemon_threads = True
            self.servers[role] = server
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.servers['hub'].server_port}"
        # Another name of the same machine, so that it is another host, too.
        self.store = f"http://localhost:{self.servers['store'].server_port}"

    def close(self):
        self.release.set()
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def encrypt(self, certificate, key):
        """The hub speaks TLS from now on; the store does not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.servers["hub"].socket = context.wrap_socket(self.servers["hub"].socket, server_side=True)
        self.endpoint = self.endpoint.replace("http:", "https:")

    def add(self, repo, files, large=(), repo_type="model", revision="main"):
        added = Repo(files, large)
        self.repos[repo_type, repo, revision] = added
        self.repos[repo_type, repo, added.commit] = added
        return added

    def requests(self, method=None, part=""):
        return [(role, path) for role, found, path, _ in self.log if part in path and method in (None, found)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = role = None

    def log_message(self, *words):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        path = urllib.parse.unquote(self.path)
        self.hub.log.append((self.role, self.command, self.path, dict(self.headers)))
        if self.role == "store":
            found = self.find(path.split("?")[0].removeprefix("/store"))
            return self.bytes_of(*found, {}) if found else self.refuse(404)
        if path == "/api/whoami-v2":
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.refuse(401)
            return self.send(200, {"Content-Type": "application/json"}, b'{"name": "tester"}')
        api = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/?]+)(?:/revision/([^?]+))?(\?.*)?", path)
        if api:
            return self.list(api[1], api[2], api[3] or "main", "blobs" in (api[4] or ""))
        found = self.find(path)
        if found is None:
            return self.refuse(404, "EntryNotFound")
        repo, name = found
        if not self.may_read(self.repo_name(path)):
            return self.refuse(401, "GatedRepo")
        file = repo.files[name]
        headers = {"X-Repo-Commit": repo.commit}
        if not file.is_large:
            return self.bytes_of(repo, name, {**headers, "ETag": f'"{file.etag}"'})
        headers |= {"X-Linked-Size": str(len(file.content)), "X-Linked-ETag": f'"{file.etag}"'}
        kind = "datasets/" if path.startswith("/datasets/") else ""
        where = path.removeprefix("/datasets").lstrip("/")
        self.send(302, {**headers, "Location": f"{self.hub.store}/store/{kind}{urllib.parse.quote(where)}?signature=sigsigsig"})

    def repo_name(self, path):
        return "/".join(path.removeprefix("/datasets").lstrip("/").split("/")[:2])

    def find(self, path):
        found = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+|refs/[^/]+/[^/]+)/(.+)", path)
        repo = found and self.hub.repos.get(("dataset" if found[1] else "model", found[2], found[3]))
        return (repo, found[4]) if repo and found[4] in repo.files else None

    def may_read(self, repo):
        return repo not in self.hub.gated or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def list(self, repo_type, name, revision, with_blobs):
        fault = self.hub.list_faults.pop(0) if self.hub.list_faults else ("none",)
        if fault[0] == "status":
            return self.refuse(fault[1])
        if fault[0] == "endless":
            return self.endless()
        if not any(kind == repo_type and known == name for kind, known, _ in self.hub.repos):
            return self.refuse(404 if self.headers.get("Authorization") else 401, "RepoNotFound")
        if not self.hub.lists_gated and not self.may_read(name):
            # A careless server repeats what it was sent.
            sent = self.headers.get("Authorization", "")
            return self.refuse(403 if sent else 401, "GatedRepo", f"Access to {name} is restricted {sent}")
        repo = self.hub.repos.get((repo_type, name, revision))
        if repo is None:
            return self.refuse(404, "RevisionNotFound")
        siblings = []
        for file_name, file in repo.files.items():
            sibling = {"rfilename": file_name}
            if with_blobs and self.hub.lists_hashes:
                sibling |= {"size": len(file.content), "blobId": file.git}
                if file.is_large:
                    sibling["lfs"] = {"sha256": file.sha256, "size": len(file.content), "pointerSize": 130}
            siblings.append(sibling)
        body = json.dumps({"id": name, "sha": repo.commit, "siblings": siblings}).encode()
        self.send(200, {"Content-Type": "application/json"}, body)

    def endless(self):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(b'{"sha": "')
            for _ in range(256):
                self.wfile.write(b"a" * (1 << 20))
                self.hub.num_endless += 1 << 20
        except OSError:
            pass

    def bytes_of(self, repo, name, headers):
        file = repo.files[name]
        faults = self.hub.faults.get(name, []) if self.command == "GET" else []
        fault = faults.pop(0) if faults else ("none",)
        if fault[0] == "status":
            return self.refuse(fault[1])
        content, begin = file.content, 0
        if fault[0] == "wrong":
            content = bytes(byte ^ 1 for byte in content)
        if fault[0] == "long":
            content += b"more"
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and fault[0] != "whole":
            begin = int(asked[1])
            if begin >= len(content):
                return self.refuse(416)
            headers = {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        self.send(206 if begin else 200, {"Accept-Ranges": "bytes", **headers}, content[begin:], fault)

    def refuse(self, status, code=None, message=None):
        headers = {"X-Error-Code": code} if code else {}
        if status in (429, 500, 503):
            headers["Retry-After"] = "1"
        self.send(status, headers | ({"X-Error-Message": message} if message else {}))

    def send(self, status, headers, body=b"", fault=("none",)):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = body[: fault[1]] if fault[0] in ("cut", "stall") else body
        try:
            for begin in range(0, len(sent), 1 << 16):
                self.wfile.write(sent[begin : begin + (1 << 16)])
                if fault[0] == "slow":
                    time.sleep(fault[1])
            self.wfile.flush()
        except OSError:
            self.close_connection = True
        if fault[0] == "stall":
            self.hub.release.wait(60)
        if fault[0] in ("cut", "stall"):
            self.close_connection = True
