"""Users of a chat server, for locust (PyPI): streamed chats of several lengths, some with a common system text, some
that are left after five pieces.

usage: moeflux serve -m tests/models/tiny --device cpu --parallel 16 --queue 256 --address-connections 0
       locust -f scripts/bench_load.py --headless -u USERS -r 50 -t 45s --host http://127.0.0.1:8080 --only-summary

A row of the summary has the times to the first piece of an answer, another those between pieces; `chat` has the time
to the reply's head, and the failures: a status other than 200, or a stream that ends without [DONE].
"""
import json
import random
import time

from locust import HttpUser, between, events, task

SYSTEM = "You are a careful assistant. " * 40
QUESTIONS = ["What is 47 + 38?", "Tell me a story.", "What is 12 + 30?", "Tell me a story about a fox and a river."]


def book(name, seconds):
    events.request.fire(request_type="time", name=name, response_time=1000 * seconds, response_length=0, exception=None,
                        context={})


class Pieces:
    """The times of an answer's pieces."""

    def __init__(self):
        self.last, self.n = time.perf_counter(), 0

    def take(self):
        now = time.perf_counter()
        book("between pieces" if self.n else "first piece", now - self.last)
        self.last, self.n = now, self.n + 1


def has_text(event):
    return any(c["delta"].get("content") or c["delta"].get("reasoning_content") for c in event["choices"])


class Chatter(HttpUser):
    wait_time = between(0.1, 1.0)

    def chat(self, messages, max_tokens, most_pieces=None):
        body = {"messages": messages, "stream": True, "max_tokens": max_tokens, "seed": random.randrange(1 << 30)}
        pieces = Pieces()
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True, name="chat",
                              timeout=600) as reply:
            if reply.status_code != 200:
                return reply.failure(f"{reply.status_code} {reply.text[:200]}")
            for line in reply.iter_lines():
                if line == b"data: [DONE]" or (most_pieces and pieces.n == most_pieces):
                    return reply.success()
                if line.startswith(b"data: ") and has_text(json.loads(line[6:])):
                    pieces.take()
            return reply.failure("the stream ended without [DONE]")

    @task(4)
    def short(self):
        self.chat([{"role": "user", "content": random.choice(QUESTIONS)}], 24)

    @task(2)
    def common(self):
        self.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": random.choice(QUESTIONS)}], 48)

    @task(1)
    def long(self):
        words = " ".join(random.choice("abcdefgh") * 3 for _ in range(300))
        self.chat([{"role": "user", "content": f"Read this. {words} Tell me a story."}], 64)

    @task(1)
    def leaves(self):
        self.chat([{"role": "user", "content": QUESTIONS[1]}], 200, 5)
