#!/usr/bin/env python3
"""Writes tests/data/templates.json: what jinja2 makes of conversations with published chat templates, with the
settings of transformers (jinja2 3.1.6 and transformers 5.24.0 from PyPI). Unlike there, templates may change lists and
dicts: Kimi-K2's published ones do.

The templates are not stored: they are llama.cpp's models/templates, and chat_template.jinja of published models.
Of each there are a hash of its text and the hashes of its renderings; "-": jinja2 refuses the conversation.
test_templates reads it with MOEFLUX_TEMPLATES=DIR.

DeepSeek-V4 has no template; what its own program writes, encoding_dsv4.py in DIR, is there as well. "?": that program
takes no such conversation.

usage: TZ=UTC template_cases.py [--texts] DIR > tests/data/templates.json
--texts: writes the renderings instead of their hashes, so that a difference can be seen.
"""

import copy
import datetime
import importlib.util
import json
import pathlib
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from transformers.utils import chat_template_utils

NOW = 1763874123
TOOLS = [
    {"type": "function",
     "function": {"name": "get_weather", "description": "Reads the weather of a city.",
                  "parameters": {"type": "object", "required": ["city"],
                                 "properties": {"city": {"type": "string", "description": "The city's \"name\""},
                                                "days": {"type": "integer"},
                                                "unit": {"type": "string", "enum": ["C", "F"]}}}}},
    {"type": "function",
     "function": {"name": "put", "description": "Stores <b>things</b> & more.",
                  "parameters": {"type": "object", "required": ["items", "where"],
                                 "properties": {"items": {"type": "array", "items": {"type": "string"}},
                                                "where": {"type": "object", "required": ["x"],
                                                          "properties": {"x": {"type": "number"},
                                                                         "y": {"type": ["number", "null"]}}},
                                                "force": {"type": "boolean", "nullable": True}}}}},
]


def call(n, name, arguments):
    return {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = says("system", "You are terse. Ünïcode ✓ <|im_end|>")
ASK = says("user", "  What's the weather in \"Köln\"?\n")
CALLS = [call(1, "get_weather", {"city": "Köln", "days": 2})]
MORE = [call(1, "get_weather", {"city": "a\nb"}),
        call(2, "put", {"items": ["x", "y'z"], "where": {"x": 1.5, "y": None}, "force": True})]


def result(n, name, content):
    return says("tool", content, tool_call_id=f"call_{n}", name=name)


THOUGHT = "First I think.\nThen I act."
CONVERSATIONS = [
    [ASK],
    [SYSTEM, ASK],
    [says("user", "a"), says("assistant", "b"), says("user", "c"), says("assistant", " d\n\ne "), says("user", "f")],
    [SYSTEM, says("user", "a"), says("assistant", "b", reasoning_content=THOUGHT), says("user", "c")],
    [says("user", "a"), says("assistant", f"<think>{THOUGHT}</think>\n\nb"), says("user", "c")],
    [ASK, says("assistant", "", tool_calls=CALLS), result(1, "get_weather", "{\"t\": 3}")],
    [SYSTEM, ASK, says("assistant", None, tool_calls=MORE), result(1, "get_weather", "cold"),
     result(2, "put", "done"), says("assistant", "It is cold."), says("user", "Thanks")],
    [ASK, says("assistant", "I look.", reasoning_content=THOUGHT, tool_calls=CALLS),
     result(1, "get_weather", "warm"), says("assistant", "Again.", reasoning_content="Hm.", tool_calls=MORE),
     result(1, "get_weather", "cold"), result(2, "put", "done")],
    [says("user", [{"type": "text", "text": "part one"}, {"type": "text", "text": "two"}])],
    [SYSTEM, says("user", "a"), says("assistant", "b")],
]
SWITCHES = [{}, {"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def contexts():
    for i, messages in enumerate(CONVERSATIONS):
        for switches in SWITCHES:
            for tools in (None, TOOLS):
                if (tools is None and any("tool_calls" in m for m in messages)) or (tools and 2 < i < 5):
                    continue
                opens = messages[-1]["role"] != "assistant"
                yield {"documents": None, **TOKENS, **switches, "messages": messages, "tools": tools,
                       "add_generation_prompt": opens}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW)


def render_all(source, all_contexts):
    compiled = chat_template_utils._cached_compile_jinja_template(source)
    made = []
    for context in all_contexts:
        try:
            made.append(compiled.render(**copy.deepcopy(context)))
        except Exception:
            made.append(None)
    return made


def encode_all(path, all_contexts):
    """What encoding_dsv4.py writes, with tools where it expects them: in the first system message."""
    spec = importlib.util.spec_from_file_location("encoding", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    made = []
    for context in map(copy.deepcopy, all_contexts):
        messages = context["messages"]
        for one in (c["function"] for m in messages for c in m.get("tool_calls") or []):
            if not isinstance(one["arguments"], str):
                one["arguments"] = json.dumps(one["arguments"], ensure_ascii=False)
        if context["tools"] and messages[0]["role"] != "system":
            messages.insert(0, says("system", ""))
        if context["tools"]:
            messages[0]["tools"] = context["tools"]
        try:
            made.append(context["bos_token"] + program.encode_messages(
                messages, "thinking" if context.get("thinking") else "chat", add_default_bos_token=False))
        except TypeError:
            made.append(None)
    return made


def hash_of(text):
    """FNV-1a of 64 bits."""
    h = 0xcbf29ce484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return f"{h:016x}"


def main():
    chat_template_utils.datetime = Clock
    ImmutableSandboxedEnvironment.is_safe_attribute = SandboxedEnvironment.is_safe_attribute
    texts = sys.argv[1] == "--texts"
    all_contexts = list(contexts())
    templates = {}
    for path in sorted(pathlib.Path(sys.argv[-1]).glob("*.jinja")):
        source = path.read_text()
        made = render_all(source, all_contexts)
        hashes = " ".join("-" if m is None else hash_of(m) for m in made)
        templates[path.name] = [hash_of(source), made if texts else hashes]
    encoded = encode_all(pathlib.Path(sys.argv[-1], "encoding_dsv4.py"), all_contexts)
    encoders = {"deepseek-v4": " ".join("?" if e is None else hash_of(e) for e in encoded)}
    print(json.dumps({"now": NOW, "contexts": all_contexts, "templates": templates, "encoders": encoders},
                     ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
