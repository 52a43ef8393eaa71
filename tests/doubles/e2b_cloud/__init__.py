"""A double of the E2B cloud for tests: control plane, proxy, envd and code interpreter on one port.

    PYTHONPATH=tests/doubles python -m e2b_cloud [options]

prints `e2b double on http://127.0.0.1:PORT` once it listens, and ends, with all its sandboxes, when its standard
input does. E2B's own clients use it with E2B_API_URL and E2B_SANDBOX_URL set to that address; tests/clients has a
program that proves it. A request is for a sandbox when it has the headers E2b-Sandbox-Id and E2b-Sandbox-Port, or a
Host of the form {port}-{sandboxID}.anything; else it is for the control plane, unless it is for the back door:

    POST /_double/faults         {"match": regex on "METHOD /path", "times": 1, "skip": 0, "delay": seconds,
                                  "sandbox": only of this one, "key": only of this API key, and one of
                                  "status" with "body" and "headers": this answer, and nothing else happens
                                  "action": "reset"           a TCP reset before any answer
                                            "hang"            no answer at all
                                            "head_only_hang"  the head of a 200, then nothing
                                            "cut", "after": N breaks the connection after N events of a run or of a
                                                              process, or N bytes of a download; other requests are
                                                              done, but not answered
                                            "no_end"          a clean end without end_of_execution, or without end
                                            "garbage"         something that is not JSON after the first event
                                  "lines": [...]              sent by /execute instead of a run, nothing added; with
                                                              "cut" or "hang" as action: what comes after them}
    GET | DELETE /_double/faults
    GET | DELETE /_double/requests    the last 500: method, path, headers, body
    GET  /_double/sandboxes           of all teams, with tokens, state and contexts
    POST /_double/kill_sandbox        {"id"}: it vanishes
    POST /_double/reset               no sandboxes, faults, requests any more

It is no security boundary: programs of a sandbox run with our rights. Each sandbox has its own /home/user, /files,
/root and /tmp and its own processes; the rest of the file system is the host's, read-only. Unlike in the real
template, kernels, commands and files all belong to one user, there are only Python kernels, of our own making rather
than IPython's, and pauses stop processes instead of saving them.
"""
