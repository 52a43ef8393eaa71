"""Checks signatures: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html"""

import hashlib
import hmac
import urllib.parse

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "bedrock-agentcore"


def problem(request, body, secret, region):
    """What is wrong with a request's signature; None when nothing is."""
    given = request.headers.get("Authorization", "")
    if not given.startswith(ALGORITHM + " "):
        return "Missing Authentication Token"
    fields = dict(part.strip().partition("=")[::2] for part in given.removeprefix(ALGORITHM).split(","))
    scope = fields.get("Credential", "").split("/")[1:]
    if len(scope) != 4 or scope[2] != SERVICE or scope[3] != "aws4_request":
        return f"Credential should be scoped to correct service: '{SERVICE}'."
    if region not in (None, scope[1]):
        return f"Credential should be scoped to a valid region, not '{scope[1]}'."
    digest = hashlib.sha256(body).hexdigest()
    claimed = request.headers.get("x-amz-content-sha256", digest)
    if claimed not in (digest, "UNSIGNED-PAYLOAD"):
        return "The provided x-amz-content-sha256 does not match the body."
    canonical = canonical_request(request, fields.get("SignedHeaders", ""), claimed)
    expected = signature(secret, scope, request.headers.get("x-amz-date", ""), canonical)
    if not hmac.compare_digest(expected, fields.get("Signature", "")):
        return "The request signature we calculated does not match the signature you provided."
    return None


def canonical_request(request, signed_headers, body_digest):
    path, _, query = request.raw_path.partition("?")
    names = signed_headers.split(";")
    values = (",".join(request.headers.getall(name, [])) for name in names)
    headers = [f"{name}:{' '.join(value.split())}\n" for name, value in zip(names, values, strict=True)]
    return "\n".join(
        [
            request.method,
            urllib.parse.quote(path, safe="/-_.~"),  # the path is encoded twice
            "&".join(sorted(query.split("&"))),
            "".join(headers),
            signed_headers,
            body_digest,
        ]
    )


def signature(secret, scope, date, canonical):
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([ALGORITHM, date, "/".join(scope), digest])
    key = ("AWS4" + secret).encode()
    for part in (*scope, text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
