"""The vendors' own clients against the stub of the tests: what they accept is what the real services say.

usage: official.py BASE_URL KEY, where BASE_URL ends in /v1. The scripts are set up by tests/it/clients.rs.
"""

import json
import sys

import anthropic
import openai

PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
THINKING, TEXT, ANSWER = "So, é 😀.", "Let me look.", "It is 42, as said: é 😀."
CODES = ["print(1)", "print(2)"]


def main():
    base_url, key = sys.argv[1:]
    chat = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
    messages = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0)
    for way in ("whole", "streamed"):
        openai_conversation(chat, way)
        anthropic_conversation(messages, way)
    openai_errors(chat)
    anthropic_errors(messages)
    print(f"openai {openai.__version__} and anthropic {anthropic.__version__} accept the stub")


def question(script):
    return {"role": "user", "content": f"please [script {script}]"}


def openai_conversation(client, way):
    tool = {"type": "function", "function": {"name": "run_python", "parameters": PARAMETERS}}
    history = [{"role": "system", "content": "You run code."}, question(f"official-openai-{way}")]
    first = openai_turn(client, way, history, tool)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls", first
    assert message.content == TEXT and message.model_extra["reasoning_content"] == THINKING, message
    codes = [json.loads(call.function.arguments)["code"] for call in message.tool_calls]
    assert codes == CODES, message
    assert first.usage.prompt_tokens == 10 and first.usage.completion_tokens == 5, first
    history.append(plain(message))
    history += [{"role": "tool", "tool_call_id": call.id, "content": "status: ok\n"} for call in message.tool_calls]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    history.append({"role": "user", "content": [{"type": "text", "text": "Images:"}, picture]})
    last = openai_turn(client, way, history, tool, tool_choice="none")
    assert last.choices[0].finish_reason == "stop" and last.choices[0].message.content == ANSWER, last


def openai_turn(client, way, messages, tool, **more):
    request = {"model": "stub", "messages": messages, "tools": [tool], **more}
    if way == "whole":
        return client.chat.completions.create(**request)
    with client.chat.completions.stream(stream_options={"include_usage": True}, **request) as stream:
        return stream.get_final_completion()


def plain(message):
    """The message as people send it back: by the client's own dump, without what was never there."""
    fields = message.model_dump(exclude_unset=True)
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {key: call["function"][key] for key in ("name", "arguments")},
        }
        for call in fields["tool_calls"]
    ]
    return {"role": "assistant", "content": fields["content"], "tool_calls": calls}


def openai_errors(client):
    for script, kind in (
        ("official-429", openai.RateLimitError),
        ("official-400", openai.BadRequestError),
        ("official-500", openai.InternalServerError),
    ):
        error = fails(
            kind,
            lambda script=script: client.chat.completions.create(
                model="stub", messages=[{"role": "system", "content": "x"}, question(script)]
            ),
        )
        if script == "official-400":
            assert error.code == "context_length_exceeded", error
    other = openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0)
    fails(openai.AuthenticationError, lambda: other.chat.completions.create(model="stub", messages=[question("x")]))
    two = [{"role": "system", "content": "x"}, question("x"), question("x")]
    fails(openai.BadRequestError, lambda: client.chat.completions.create(model="stub", messages=two))


def anthropic_conversation(client, way):
    tool = {"name": "run_python", "input_schema": PARAMETERS}
    history = [question(f"official-anthropic-{way}")]
    history[0]["content"] = [{"type": "text", "text": history[0]["content"]}]
    first = anthropic_turn(client, way, history, tool)
    assert first.stop_reason == "tool_use", first
    thinking, redacted, text, *calls = first.content
    assert thinking.thinking == THINKING and thinking.signature and redacted.data, first
    assert text.text == TEXT and [call.input["code"] for call in calls] == CODES, first
    assert first.usage.input_tokens == 10 and first.usage.output_tokens == 5, first
    # the client's own objects go back as they are
    blocks = [
        block.model_dump(exclude_unset=True, exclude_none=True, exclude={"parsed_output"}) for block in first.content
    ]
    history.append({"role": "assistant", "content": blocks})
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "status: ok\n"}, picture]}
        for call in calls
    ]
    history.append({"role": "user", "content": results})
    last = anthropic_turn(client, way, history, tool, tool_choice={"type": "none"})
    assert last.stop_reason == "end_turn" and last.content[0].text == ANSWER, last


def anthropic_turn(client, way, messages, tool, **more):
    request = {"model": "stub", "max_tokens": 100, "messages": messages, "tools": [tool], **more}
    if way == "whole":
        return client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        return stream.get_final_message()


def anthropic_errors(client):
    def ask(asking, *messages):
        return asking.messages.create(model="stub", max_tokens=100, messages=list(messages))

    def said(script):
        return {"role": "user", "content": [{"type": "text", "text": f"[script {script}]"}]}

    fails(anthropic.RateLimitError, lambda: ask(client, said("official-429")))
    fails(anthropic.BadRequestError, lambda: ask(client, said("official-400")))
    fails(anthropic.InternalServerError, lambda: ask(client, said("official-500")))
    fails(anthropic.AuthenticationError, lambda: ask(client.with_options(api_key="wrong"), said("x")))
    fails(anthropic.BadRequestError, lambda: ask(client, said("x"), {"role": "assistant", "content": []}))
    with client.messages.stream(model="stub", max_tokens=100, messages=[said("official-overloaded")]) as stream:
        fails(anthropic.APIStatusError, stream.get_final_message)


def fails(kind, call):
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, not {answer}")


if __name__ == "__main__":
    main()
