"""What 'wandb sync' needs of a W&B server, on this machine: it accepts a run and keeps what is uploaded."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WandbServer:
    """Runs (by id), each with what the server was last told of it, its rows of history in the order of their offsets, and
    its files."""

    def __init__(self):
        self.runs = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def rows(self, run):
        """Its history: one object a row."""
        lines = self.runs[run]["history"]
        assert sorted(lines) == list(range(len(lines))), f"rows at the offsets {sorted(lines)}"
        return [json.loads(lines[offset]) for offset in sorted(lines)]

    def _run(self, name):
        return self.runs.setdefault(name, {"upserts": [], "history": {}, "files": {}, "exits": []})

    def _answer(self, query):
        """The reply to a query of GraphQL, by the name of its operation."""
        name, given = query.get("operationName"), query.get("variables") or {}
        owner = {"id": "e", "name": given.get("entity") or "me"}
        if name == "UpsertBucket":
            run = self._run(given["name"])
            run["upserts"].append(given)
            project = {"id": "p", "name": given.get("project"), "entity": owner}
            bucket = {"id": "b", "name": given["name"], "displayName": given.get("displayName"), "config": "{}", "project": project}
            bucket["historyLineCount"] = len(run["history"])
            return {"upsertBucket": {"bucket": bucket, "inserted": len(run["upserts"]) == 1}}
        if name == "RunResumeStatus" and given["name"] in self.runs:
            run = self.runs[given["name"]]
            last = [run["history"][max(run["history"])]] if run["history"] else []
            bucket = {"id": "b", "name": given["name"], "summaryMetrics": "{}", "displayName": "", "logLineCount": 0}
            bucket |= {"historyLineCount": len(run["history"]), "eventsLineCount": 0, "historyTail": json.dumps(last)}
            bucket |= {"eventsTail": "[]", "config": "{}", "tags": [], "wandbConfig": "{}"}
            return {"model": {"id": "p", "name": given.get("project"), "entity": owner, "bucket": bucket}}
        if name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.url}/upload/{given['run']}/{file}"} for file in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}"}, "serverInfo": {}}

    def _receive(self, run, body):
        """A part of the file stream."""
        history = body.get("files", {}).get("wandb-history.jsonl")
        for number, line in enumerate(history["content"] if history else []):
            self._run(run)["history"][history["offset"] + number] = line
        if body.get("complete"):
            self._run(run)["exits"].append(body.get("exitcode"))

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:
                    pass  # a client that leaves without a word

            def log_message(self, *_):
                pass

            def body(self):
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                return gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data

            def answer(self, value):
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.answer({})

            def do_PUT(self):
                data, (run, file) = self.body(), self.path.split("/", 3)[2:]
                with server._lock:
                    server._run(run)["files"][file] = data
                self.answer({})

            def do_POST(self):
                data = self.body()
                with server._lock:
                    if self.path.endswith("/graphql"):
                        self.answer({"data": server._answer(json.loads(data))})
                    elif self.path.endswith("/file_stream"):
                        server._receive(self.path.split("/")[-2], json.loads(data))
                        self.answer({})
                    else:
                        self.answer({})

        return Handler
