"""The vendor's own client does with the double what it does with S3: the double is proven by it."""

import hashlib
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

URL, BUCKET, KEY, SECRET = sys.argv[1:]


def client(key=KEY, secret=SECRET):
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
    names = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    return boto3.client("s3", endpoint_url=URL, region_name="us-east-1", config=config, **names)


def code(call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


s3 = client()
s3.put_object(Bucket=BUCKET, Key="of/one ü", Body=b"content")
got = s3.get_object(Bucket=BUCKET, Key="of/one ü")
assert got["Body"].read() == b"content"
part = s3.get_object(Bucket=BUCKET, Key="of/one ü", Range="bytes=2-4")
assert (part["Body"].read(), part["ContentRange"]) == (b"nte", "bytes 2-4/7")
assert s3.head_object(Bucket=BUCKET, Key="of/one ü")["LastModified"].tzinfo is not None
assert code(s3.get_object, Bucket=BUCKET, Key="none") == "NoSuchKey"
assert code(s3.get_object, Bucket="no-such-bucket", Key="none") == "NoSuchBucket"

parts = [bytes([number]) * (6 << 20) for number in range(3)]
upload = s3.create_multipart_upload(Bucket=BUCKET, Key="of/parts")["UploadId"]
tags = []
for number, content in enumerate(parts, 1):
    place = {"Bucket": BUCKET, "Key": "of/parts", "UploadId": upload, "PartNumber": number}
    tags.append({"PartNumber": number, "ETag": s3.upload_part(Body=content, **place)["ETag"]})
assert code(s3.head_object, Bucket=BUCKET, Key="of/parts") == "404", "none before it is whole"
s3.complete_multipart_upload(Bucket=BUCKET, Key="of/parts", UploadId=upload, MultipartUpload={"Parts": tags})
whole = s3.get_object(Bucket=BUCKET, Key="of/parts")["Body"].read()
assert hashlib.sha256(whole).digest() == hashlib.sha256(b"".join(parts)).digest()

for number in range(150):
    s3.put_object(Bucket=BUCKET, Key=f"of/many/{number:03}", Body=b"")
pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="of/many/"))
names = [found["Key"] for page in pages for found in page["Contents"]]
assert names == [f"of/many/{number:03}" for number in range(150)] and len(pages) > 1, len(pages)

assert code(client(key="AKIDOFNOBODY").list_buckets) == "InvalidAccessKeyId"
assert code(client(secret="wrong").get_object, Bucket=BUCKET, Key="of/one ü") == "SignatureDoesNotMatch"
for name in [*names, "of/one ü", "of/parts"]:
    s3.delete_object(Bucket=BUCKET, Key=name)
assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET, Prefix="of/")
print("boto3 accepts the bucket")
