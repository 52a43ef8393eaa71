"""The file transfers of envd: GET and POST /files, with a token or a signature."""

import base64
import contextlib
import hashlib
import hmac
import json
import mimetypes
import os
import re
import time
import urllib.parse
import zlib

from aiohttp import web

from .paths import BadPath, UnknownUser, home, resolve

PIECE = 1 << 16
XATTR = "user.e2b."
RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


class FileError(Exception):
    """What envd answers as {"code", "message"}."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


async def handle(request, sandbox):
    try:
        if problem := access_problem(request, sandbox):
            raise FileError(401, problem)
        directory = home(request.query.get("username"))
        if request.method in ("GET", "HEAD"):
            return await download(request, sandbox, directory)
        if request.method == "POST":
            return await upload(request, sandbox, directory)
        return web.Response(status=405)
    except UnknownUser as error:
        return refusal(401, str(error))
    except BadPath as error:
        return refusal(400, str(error))
    except FileError as error:
        return refusal(error.status, str(error))
    except (NotADirectoryError, FileExistsError) as error:
        return refusal(500, f"error ensuring directories: {error.strerror}")


def refusal(status, message):
    return web.json_response({"code": status, "message": message}, status=status)


def access_problem(request, sandbox):
    if sandbox.token is None:
        return None
    if token := request.headers.get("X-Access-Token"):
        return None if sandbox.admits(token) else "access token present in header but does not match"
    return signature_problem(request, sandbox)


def signature_problem(request, sandbox):
    """Why the signature in the query is none for this sandbox; None when it is one."""
    query = request.query
    if "signature" not in query:
        return "missing signature query parameter"
    if sandbox.token is None:
        return "the sandbox has no token to sign with"
    operation = "write" if request.method == "POST" else "read"
    parts = [query.get("path", ""), operation, query.get("username", ""), sandbox.token]
    expiration = query.get("signature_expiration")
    if expiration is not None:
        parts.append(expiration)
    digest = hashlib.sha256(":".join(parts).encode()).digest()
    wanted = "v1_" + base64.b64encode(digest).decode().rstrip("=")
    if not hmac.compare_digest(wanted.encode(), query["signature"].encode()):
        return "invalid signature"
    if expiration is not None and int(expiration) < time.time():
        return "signature is already expired"
    return None


async def download(request, sandbox, directory):
    path = resolve(request.query.get("path", ""), directory)
    real = sandbox.box.real(path)
    if not os.path.exists(real):
        raise FileError(404, f"path '{path}' does not exist")
    if not os.path.isfile(real):
        raise FileError(400, f"path '{path}' is a directory")
    with open(real, "rb") as file:
        status = os.fstat(file.fileno())
        tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        name = urllib.parse.quote(os.path.basename(path))
        headers = {"ETag": tag, "Vary": "Accept-Encoding", "Content-Disposition": f"inline; filename={name}"}
        headers["Content-Type"] = mimetypes.guess_type(path)[0] or "application/octet-stream"
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", "") and "Range" not in request.headers:
            return await send_compressed(request, file, headers)
        return await send(request, file, status.st_size, headers)


async def send(request, file, size, headers):
    start, end, status = 0, size, 200
    if found := RANGE.match(request.headers.get("Range", "")):
        start, end = bounds(found, size)
        if start >= size:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers |= {"Accept-Ranges": "bytes", "Content-Length": str(end - start)}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    file.seek(start)
    left, cut = end - start, cut_at(request)
    while left and (piece := file.read(min(PIECE, left, max(cut, 1)))):
        if cut <= 0:
            request.transport.abort()
            return response
        await response.write(piece)
        left -= len(piece)
        cut -= len(piece)
    await response.write_eof()
    return response


def bounds(found, size):
    first, last = found.groups()
    if not first:
        return max(0, size - int(last or 0)), size
    return int(first), min(size, int(last) + 1) if last else size


def cut_at(request):
    """After how many bytes a fault wants the download cut."""
    fault = request["fault"]
    return fault.get("after", 0) if fault.get("action") == "cut" else 1 << 60


async def send_compressed(request, file, headers):
    response = web.StreamResponse(headers={**headers, "Content-Encoding": "gzip"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    while piece := file.read(PIECE):
        if packed := packer.compress(piece):
            await response.write(packed)
    await response.write(packer.flush())
    await response.write_eof()
    return response


async def upload(request, sandbox, directory):
    target = Upload(request, sandbox, directory)
    path = request.query.get("path")
    if request.content_type == "application/octet-stream":
        if path is None:
            raise FileError(400, "path query parameter is required for raw body upload")
        await target.save(path, request.content.iter_any())
    elif request.content_type == "multipart/form-data":
        async for part in await request.multipart():
            if part.name == "file":
                await target.save(file_name(part) if path is None else path, pieces(part))
    else:
        expected = "expected multipart/form-data or application/octet-stream"
        raise FileError(400, f"unsupported content type: {request.headers.get('Content-Type', '')}, {expected}")
    # envd does not name the type of this answer
    return web.Response(text=json.dumps(target.saved), content_type="text/plain")


class Upload:
    """The files of one request."""

    def __init__(self, request, sandbox, directory):
        self.sandbox, self.directory = sandbox, directory
        given = {name.lower(): value for name, value in request.headers.items()}
        self.metadata = {name[11:]: value for name, value in given.items() if name.startswith("x-metadata-")}
        self.saved = []

    async def save(self, path, chunks):
        path = resolve(path, self.directory)
        real = self.sandbox.box.real(path)
        if os.path.isdir(real):
            raise FileError(400, f"path is a directory: {path}")
        os.makedirs(os.path.dirname(real), exist_ok=True)
        with open(real, "wb") as file:
            async for chunk in chunks:
                file.write(chunk)
        self.set_metadata(real)
        entry = {"path": path, "name": os.path.basename(path), "type": "file"}
        self.saved.append({**entry, "metadata": self.metadata} if self.metadata else entry)

    def set_metadata(self, real):
        with contextlib.suppress(OSError):
            for name in os.listxattr(real):
                if name.startswith(XATTR):
                    os.removexattr(real, name)
            for name, value in self.metadata.items():
                os.setxattr(real, XATTR + name, value.encode())


async def pieces(part):
    while piece := await part.read_chunk(PIECE):
        yield piece


def file_name(part):
    """The whole name: `part.filename` lacks the leading slash, which is part of the path here."""
    found = re.search(r'filename="((?:[^"\\]|\\.)*)"', part.headers.get("Content-Disposition", ""))
    name = urllib.parse.unquote(found[1]) if found else part.filename
    if not name:
        raise FileError(400, "the part has no filename, and the query no path")
    return name


async def compose(request, sandbox):
    """Joins files to a new one, and removes nothing."""
    try:
        body = json.loads(await request.read())
        directory = home(body.get("username"))
        target = resolve(body["destination"], directory)
        parts = [resolve(path, directory) for path in body["source_paths"]]
        real = sandbox.box.real(target)
        os.makedirs(os.path.dirname(real), exist_ok=True)
        with open(real, "wb") as file:
            for path in parts:
                with open(sandbox.box.real(path), "rb") as part:
                    file.write(part.read())
    except FileNotFoundError as error:
        return refusal(404, error.strerror)
    except (ValueError, KeyError, TypeError, UnknownUser, BadPath) as error:
        return refusal(400, f"validation error: {error}")
    return web.json_response({"path": target, "name": os.path.basename(target), "type": "file"})
