"""moto's S3 server, and a proxy before it that makes what networks and storages do to a client."""

import http.client
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "the/secret+key/of+these+tests"


class Faults:
    """What a proxy does wrong. A test sets what it needs; all are off at first."""

    def __init__(self):
        self.share = 0.0  # of requests that fail: 503, cut before or within the answer, or late
        self.canned = None  # (status, code, headers) of every answer
        self.on_request = None  # called with method and path before a request is passed on


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self):
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        faults = proxy.faults
        if faults.on_request:
            faults.on_request(self.command, self.path)
        with proxy.lock:
            is_bad = proxy.random.random() < faults.share
            kind = proxy.random.choice(["503", "silent", "cut", "late"])
            proxy.requests.append((self.command, self.path, self.headers.get("Range"), kind if is_bad else ""))
        if faults.canned:
            status, code, headers = faults.canned
            return self.send(status, headers, f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode())
        if is_bad and kind == "503":
            return self.send(503, {}, b"<Error><Code>SlowDown</Code></Error>")
        if is_bad and kind == "silent":
            self.close_connection = True
            return None
        if is_bad and kind == "late":
            time.sleep(0.5)
        connection = http.client.HTTPConnection(*proxy.target)
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        content = response.read()
        own = ("connection", "server", "date", "transfer-encoding")
        headers = {name: value for name, value in response.getheaders() if name.lower() not in own}
        connection.close()
        return self.send(response.status, headers, content, cut=is_bad and kind == "cut")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

    def send(self, status, headers, body, cut=False):
        self.send_response_only(status)
        if self.command != "HEAD":
            headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True


class ObjectStorage:
    """The server, its proxy and boto3's client, which asks the server itself."""

    def __init__(self):
        import boto3
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.target = self.server.get_host_and_port()
        self.faults, self.requests, self.lock, self.random = Faults(), [], threading.Lock(), random.Random(5)
        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.proxy.proxy = self
        self.proxy.daemon_threads = True
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()
        keys = {"aws_access_key_id": "AKIATESTS", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        self.client = boto3.client("s3", endpoint_url="http://%s:%d" % self.target, **keys)
        self.client.create_bucket(Bucket="bucket")

    def close(self):
        self.proxy.shutdown()
        self.server.stop()

    def environment(self, folder):
        """The program's variables; `folder` is its machine's TMPDIR."""
        folder.mkdir(exist_ok=True)
        return {
            **{"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:%d" % self.proxy.server_port, "AWS_REGION": "us-east-1"},
            **{"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": SECRET, "TMPDIR": str(folder)},
        }

    def names(self, prefix):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix + "/")
        return sorted(entry["Key"][len(prefix) + 1 :] for page in pages for entry in page.get("Contents", []))

    def uploads(self):
        return self.client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])
