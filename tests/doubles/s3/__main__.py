"""A bucket that speaks S3: moto, with keys that are asked for, and a back door for tests."""

import argparse
import hashlib
import json
import os
import sys
import threading
from datetime import timedelta

# before moto is imported: pages of lists are short, so that there are several
os.environ.setdefault("MOTO_S3_DEFAULT_MAX_KEYS", "100")

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "blobs-of-the-tests"
KEY = "AKIDOFTHETESTS"
SECRET = "SECRETTEST"
REFUSED = (
    "<?xml version='1.0'?><Error><Code>{}</Code><Message>no</Message>"
    "<StringToSign>what was signed</StringToSign></Error>"
)


class Double:
    def __init__(self, forward):
        self.forward = forward
        self.requests = []

    def bucket(self):
        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET]

    def back_door(self, name, body):
        bucket = self.bucket()
        if name == "objects":
            return {
                key.name: {"size": len(key.value), "sha256": hashlib.sha256(key.value).hexdigest()}
                for key in bucket.keys.values()
            }
        if name == "age":
            for key in bucket.keys.values():
                key.last_modified -= timedelta(seconds=body["seconds"])
            return {}
        if name == "put":
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(BUCKET, body["key"], b"x")
            return {}
        if name == "requests":
            return self.requests
        if name == "uploads":
            return len(bucket.multiparts)
        raise ValueError(name)

    def __call__(self, environ, start):
        path = environ["PATH_INFO"]
        if path.startswith("/_double/"):
            size = int(environ.get("CONTENT_LENGTH") or 0)
            body = json.loads(environ["wsgi.input"].read(size) or b"null")
            answer = json.dumps(self.back_door(path.rsplit("/", 1)[1], body)).encode()
            start("200 OK", [("content-type", "application/json")])
            return [answer]
        code = refusal(environ)
        self.requests.append([environ["REQUEST_METHOD"], path, code])
        if code:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("403 Forbidden", [("content-type", "application/xml")])
            return [REFUSED.format(code).encode()]
        return self.forward(environ, start)


def refusal(environ):
    """Why a request is not let in: its signature is made again by the vendor's own code."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    given = environ.get("HTTP_AUTHORIZATION", "")
    if f"Credential={KEY}/" not in given:
        return "InvalidAccessKeyId"
    names = given.split("SignedHeaders=")[1].split(",")[0].split(";")
    region = given.split("/")[2]
    headers = {}
    for name in names:
        cgi = name.upper().replace("-", "_")
        headers[name] = environ.get(f"HTTP_{cgi}", environ.get(cgi, ""))
    url = f"http://{environ['HTTP_HOST']}{environ.get('RAW_URI', environ['PATH_INFO'])}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, headers=headers)
    request.context["timestamp"] = environ["HTTP_X_AMZ_DATE"]
    signer = S3SigV4Auth(Credentials(KEY, SECRET), "s3", region)
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    return "" if given.endswith(f"Signature={signature}") else "SignatureDoesNotMatch"


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", help="not used")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"), help="serve https with these PEM files")
    options = parser.parse_args()
    moto = DomainDispatcherApplication(create_backend_app)
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(BUCKET, "us-east-1")
    tls = tuple(options.tls) if options.tls else None
    application = Double(moto)
    server = make_server("127.0.0.1", options.port, application, threaded=True, request_handler=Quiet, ssl_context=tls)
    scheme = "https" if tls else "http"
    print(f"s3 double on {scheme}://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


main()
