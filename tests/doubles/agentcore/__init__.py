"""A double of the data plane of AWS Bedrock AgentCore's Code Interpreter for tests.

    PYTHONPATH=tests/doubles python -m agentcore [options]

prints `agentcore double on http://127.0.0.1:PORT` once it listens, and ends, with all its sessions, when its standard
input does. boto3 and the AWS SDKs use it as `endpoint_url`, with any key id, the secret SECRETTEST and any region;
tests/clients has a program that proves it. Everything but the back door must be signed:

    POST /_double/faults         {"match": regex on "METHOD /path TOOL" (TOOL of tools/invoke only), "times": 1,
                                  "skip": 0, "session": only of this one, and one of
                                  "status": 400 ... 504 with "body" and "type" if others than AWS's own
                                  "action": one of
        "drop"            the socket closes without an answer
        "hang"            no answer at all
        "slow_head"       the answer comes "seconds" late
    and for tools/invoke, whose answer is a stream:
        "slow_body"       the head at once, the result "seconds" later
        "trickle"         the head at once, an unknown event every 0.1 s, the result after "seconds"
        "mid"             the exception "exception" (camelCase; "error": a frame of type error) in the stream
        "trunc"           half of the result's frame, then the end
        "bad_crc"         the result's frame with a wrong checksum
        "empty"           no events
        "stall"           the head, then nothing
        "half_stall"      half of the result's frame, then nothing
        "initial"         an initial-response before the result
        "unknown_event"   an event of an unknown type before the result
        "two"             the result in two events; the exit code is in the second
        "split"           the result's frame in chunks of 7 bytes
        "garbage"         bytes that are no frames
        "flood"           unknown events until there were "bytes" of them, then the end
        "huge"            a result whose stdout is "bytes" long
        "image"           the result with an image and a page of HTML
        "bare_error"      a refusal with the text "text"
        "silent"          the result without its output and its structured content}
    GET | DELETE /_double/faults
    GET | DELETE /_double/requests   the last 500 that were signed: method, path, headers, body, and of tools/invoke
                                     tool, session and arguments
    GET  /_double/sessions           all that ever were
    POST /_double/kill_session       {"id"}: it is terminated, as if AWS had done it
    POST /_double/kill_kernel        {"id"}: SIGKILL to its kernel; 404 when it has none
    GET  /_double/stats              {"executed": cells that a kernel was given, "calls": {"PUT sessions/start": 1,
                                     "POST tools/invoke": 2, "executeCode": 2}}

The actions that need the true result (slow_head, slow_body, trickle, trunc, bad_crc, half_stall, initial,
unknown_event, two, split, image, silent) really do the work; the others, and "status", do it only with
"after": true, and then to its end before anything of the answer is sent.

It is no security boundary: kernels and commands run in temporary directories on this machine; as nobody when the
double is root's, so that they can write nowhere else, as in the real service. The working directory stands for
/opt/amazon/genesis1p-tools/var.
"""
