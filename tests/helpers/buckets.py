"""A bucket on loopback: a server of what TensorStore, TensorFlow's files and Google's client ask of Google Cloud Storage.

TensorFlow's files know one address, https://www.googleapis.com: the server is a proxy for it as well, with its own certificate.
"""

import datetime
import email
import email.policy
import http.server
import json
import re
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Bucket(http.server.ThreadingHTTPServer):
    """Holds the objects of one bucket, called "bucket", in memory.

    Attributes:
      objects: contents and generations, by name.
      refuses: returns the code of HTTP with which a request is refused, by its method and the name of its object; 0 lets it pass.
        It may wait, as a store does that stalls.
    """

    daemon_threads = True

    def __init__(self, certificate: Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.refuses: Callable[[str, str], int] = lambda method, name: 0
        self.lock, self.generation, self.uploads = threading.Lock(), 0, {}
        self.certificate = certificate
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate)

    def variables(self) -> dict[str, str]:
        """Returns the environment in which the libraries ask this server, without credentials."""
        url = f"http://127.0.0.1:{self.server_port}"
        return {
            "STORAGE_EMULATOR_HOST": url,  # Google's client
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",  # of TensorStore and TensorFlow
            "HTTPS_PROXY": url,
            "NO_PROXY": "127.0.0.1,localhost",  # where the processes of a run meet
            "CURL_CA_BUNDLE": str(self.certificate),
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that has gone, as a process does that is killed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def steps(self, folder: str) -> list[int]:
        """Returns the steps of which a folder has objects."""
        return sorted({int(step[1]) for name in self.objects if (step := re.match(rf"{folder}/(\d+)/", name))})


@contextmanager
def serving(folder: Path) -> Iterator[Bucket]:
    """Yields a bucket that is served until the block ends; its certificate is written to the folder."""
    with Bucket(_certificate(folder / "certificate.pem")) as bucket:
        threading.Thread(target=bucket.serve_forever, daemon=True).start()
        try:
            yield bucket
        finally:
            bucket.shutdown()


def _certificate(path: Path) -> Path:
    """Writes a key and a certificate for Google's hosts, which is its own authority, and returns the file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOSTS[0])])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    secret = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(form))
    return path


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one connection; after CONNECT it goes on in TLS."""

    server: Bucket
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        del args

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

    def answer(self) -> None:
        body = b"".join(self.chunks())
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        match = re.fullmatch(r"(/upload)?/storage/v1/b/([^/]+)(?:/(o)(?:/(.*))?)?|/([^/]+)/(.+)", parts.path)
        assert match, self.path
        upload, bucket, listed, name, plain_bucket, plain_name = match.groups()
        name = unquote(name or plain_name or query.get("name") or "")
        if upload and query["uploadType"] == "multipart":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            sent: Any = email.message_from_bytes(head + body, policy=email.policy.HTTP)
            about, body = (part.get_payload(decode=True) for part in sent.iter_parts())
            name = json.loads(about)["name"]
        if code := self.server.refuses(self.command, name):
            return self.reply(code, {"error": {"code": code, "message": f"no permission to {self.command} {name}"}})
        if (bucket or plain_bucket) != "bucket":
            return self.reply(404, {"error": {"code": 404, "message": "The specified bucket does not exist."}})
        with self.server.lock:
            if upload:
                return self.upload(name, query, body)
            if name:
                return self.object(name, query, alt="media" if plain_name else query.get("alt", "json"))
            return self.reply(200, self.listing(query) if listed else {"kind": "storage#bucket", "name": "bucket"})

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer

    def chunks(self) -> Iterator[bytes]:
        """Yields the body of a request: TensorFlow sends it in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def upload(self, name: str, query: dict[str, str], body: bytes) -> None:
        store = self.server
        if query["uploadType"] == "resumable" and self.command == "POST":
            host = f"https://{_HOSTS[0]}" if isinstance(self.connection, ssl.SSLSocket) else f"http://{self.headers['Host']}"
            place = f"{host}/upload/storage/v1/b/bucket/o?uploadType=resumable&name={quote(name, safe='')}&upload_id=1"
            return self.reply(200, {}, Location=place)
        if self.fails(name, query):
            return self.reply(412, {"error": {"code": 412, "message": "conditionNotMet"}})
        store.generation += 1
        store.objects[name] = body, store.generation
        return self.reply(200, self.about(name))

    def object(self, name: str, query: dict[str, str], alt: str) -> None:
        if name not in self.server.objects:
            return self.reply(404, {"error": {"code": 404, "message": f"No such object: {name}"}})
        content, generation = self.server.objects[name]
        if query.get("ifGenerationNotMatch") == str(generation):
            return self.reply(304, b"")
        if self.fails(name, query):
            return self.reply(412, {"error": {"code": 412, "message": "conditionNotMet"}})
        if self.command == "DELETE":
            del self.server.objects[name]
            return self.reply(204, b"")
        if alt == "json":
            return self.reply(200, self.about(name))
        headers = {"x-goog-generation": str(generation), "Content-Type": "application/octet-stream"}
        if not (wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")):
            return self.reply(200, content, **headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        if first > last:
            return self.reply(416, b"", **headers | {"Content-Range": f"bytes */{len(content)}"})
        part = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return self.reply(206, content[first : last + 1], **headers | part)

    def fails(self, name: str, query: dict[str, str]) -> bool:
        """Returns whether an object is not of the generation for which a request asks; 0 is that of none."""
        generation = self.server.objects.get(name, (b"", 0))[1]
        return query.get("ifGenerationMatch", str(generation)) != str(generation)

    def listing(self, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], []
        for name in sorted(name for name in self.server.objects if name.startswith(prefix)):
            below, cut, _ = name.removeprefix(prefix).partition(delimiter or "\0")
            if cut:
                prefixes.append(f"{prefix}{below}{cut}")
            else:
                items.append(self.about(name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted({*prefixes})}

    def about(self, name: str) -> dict[str, Any]:
        content, generation = self.server.objects[name]
        at = "2026-01-01T00:00:00.000Z"
        same = {"kind": "storage#object", "bucket": "bucket", "metageneration": "1", "updated": at, "timeCreated": at}
        return same | {"name": name, "generation": str(generation), "size": str(len(content))}

    def reply(self, code: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for key, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
