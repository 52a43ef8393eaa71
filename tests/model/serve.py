#!/usr/bin/env python3
"""Serves a small model as chat completions with tool calls. For tests.

Small models do not write tool calls of their own accord. So the turn after a question is decoded under a JSON schema
made of the request's tools, which leaves nothing but a valid call; the turn after a tool's result is free text.
usage: serve.py MODEL; prints one line, whose last word is the base URL.
"""

import json
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import xllamacpp

CONTEXT_TOKENS = 8192
MAX_TOKENS = 256
# characters of a streamed piece: about a token
PIECE = 4
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


class Model:
    """The model, one request at a time."""

    def __init__(self, path):
        parameters = xllamacpp.CommonParams()
        parameters.model.path = path
        parameters.chat_template = TEMPLATE
        parameters.use_jinja = True
        parameters.n_ctx = CONTEXT_TOKENS
        parameters.n_parallel = 1
        # one thread each: threads that wait for each other spin, and crawl on a busy machine
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        parameters.hostnames, parameters.port = ["127.0.0.1"], 0
        self.server = xllamacpp.Server(parameters)
        self.lock = threading.Lock()

    def complete(self, request):
        """The status and body of the answer to a request, as if it were not streamed."""
        tools = request.get("tools") or []
        called = bool(tools) and wants_call(request)
        asked = {
            "messages": plain(request["messages"], tools if called else []),
            "temperature": request.get("temperature", 0),
            "seed": request.get("seed", 0),
            "max_tokens": request.get("max_tokens") or request.get("max_completion_tokens") or MAX_TOKENS,
        }
        if called:
            asked["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "call", "schema": {"anyOf": [call_schema(tool["function"]) for tool in tools]}},
            }
        with self.lock:
            answer = self.server.handle_chat_completions(asked)
        if "choices" not in answer:
            return refusal(answer)
        choice = answer["choices"][0]
        message = {"role": "assistant", "content": choice["message"].get("content")}
        finish = choice["finish_reason"]
        if called:
            message = as_call(message["content"])
            finish = "length" if finish == "length" else "tool_calls"
        return 200, {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.get("model", "small"),
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": answer["usage"],
        }


def wants_call(request):
    """True for the turn after a question, not for the one after a tool's result."""
    choice = request.get("tool_choice", "auto")
    if choice != "auto":
        return choice != "none"
    for message in reversed(request["messages"]):
        if message["role"] in ("tool", "assistant"):
            return message["role"] == "assistant"
    return True


def call_schema(function):
    properties = {"name": {"const": function["name"]}, "arguments": function.get("parameters") or {"type": "object"}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def plain(messages, tools):
    """The conversation as texts of a system, a user and an assistant who take turns."""
    texts = []
    for message in messages:
        role, text = message["role"], text_of(message.get("content"))
        if role == "developer":
            role = "system"
        elif role == "tool":
            role, text = "user", f"Result of the tool call:\n{text}\nAnswer the question in one sentence."
        elif message.get("tool_calls"):
            function = message["tool_calls"][0]["function"]
            text = json.dumps({"name": function["name"]})[:-1] + f', "arguments": {function["arguments"]}}}'
        add(texts, role, text)
    # at the end, so that what stands before it is the same from turn to turn, and is read once
    for tool in tools:
        function = tool["function"]
        arguments = json.dumps(function.get("parameters", {}).get("properties", {}))
        add(texts, "user", f"Function {function['name']}: {function.get('description', '')} Arguments: {arguments}")
    return texts


def add(texts, role, text):
    if texts and texts[-1]["role"] == role:
        texts[-1]["content"] += f"\n{text}"
    else:
        texts.append({"role": role, "content": text})


def text_of(content):
    """Content is a text, nothing, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(part.get("text", "[image]") for part in content)
    return content or ""


def as_call(content):
    """The message with a call for what was decoded; one that was cut keeps what there is of its arguments."""
    try:
        call = json.loads(content)
        name, arguments = call["name"], json.dumps(call["arguments"])
    except ValueError:
        head, _, arguments = content.partition('"arguments":')
        name = head.split('"')[3] if head.count('"') > 3 else ""
    function = {"name": name, "arguments": arguments.strip()}
    call = {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def refusal(answer):
    error = answer.get("error", answer)
    message = str(error.get("message", error))
    code = "context_length_exceeded" if "context" in message else None
    return 400, {"error": {"message": message, "type": "invalid_request_error", "code": code}}


def chunks(answer, include_usage):
    """The answer in the pieces of a stream."""
    same = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (choice,) = answer["choices"]
    for delta in deltas(choice["message"]):
        yield same | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield same | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if include_usage:
        yield same | {"choices": [], "usage": answer["usage"]}


def deltas(message):
    yield {"role": "assistant", "content": None if message.get("tool_calls") else ""}
    for piece in pieces(message["content"] or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        yield {"tool_calls": [{"index": index, **call, "function": {"name": function["name"], "arguments": ""}}]}
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def pieces(text):
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # the server's one model
    model = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path != "/v1/chat/completions":
            self.answer(404, {"error": {"message": f"there is no {self.path}"}})
            return
        try:
            request = json.loads(body)
            status, answer = self.model.complete(request)
        except (KeyError, TypeError, ValueError) as error:
            status, answer = refusal({"message": f"the request cannot be read: {error!r}"})
        except Exception as error:
            status, answer = 500, {"error": {"message": repr(error)}}
        if status == 200 and request.get("stream"):
            include_usage = (request.get("stream_options") or {}).get("include_usage", False)
            self.stream(chunks(answer, include_usage))
        else:
            self.answer(status, answer)

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.begin(status, "application/json", ("content-length", str(len(content))))
        self.wfile.write(content)

    def stream(self, events):
        self.begin(200, "text/event-stream", ("transfer-encoding", "chunked"))
        for data in [*map(json.dumps, events), "[DONE]"]:
            event = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def begin(self, status, kind, framing):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header(*framing)
        self.end_headers()

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    Handler.model = Model(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"the model answers on http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()
