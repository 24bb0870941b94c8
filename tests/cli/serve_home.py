"""A conversation that began on the second copy of a model continues there, with the same text.

usage: serve_home.py MOEFLUX MODEL"""
import json
import sys

from server import Server

program, model = sys.argv[1:]


def start(server, prompt, n, stream=False):
    return server.complete(prompt=prompt, max_tokens=n, temperature=0, stream=stream, ignore_eos=True)


def ask(server, prompt, n):
    with start(server, prompt, n) as answer:
        reply = json.load(answer)
    return reply['choices'][0]['text'], reply['usage']


FIRST = 'Once there were nine owls in the old barn. ' * 8
single = Server(program, model, '-c', '512', '--device', 'cpu')
text, _ = ask(single, FIRST, 10)
want, _ = ask(single, FIRST + text + ' Then', 10)
single.end()

copies = Server(program, model, '-c', '512', '--device', 'cpu,cpu', '--replicate', '--parallel', '4')
# The conversation begins on the second copy, since the first one is busy. When it continues, neither is busy.
busy = start(copies, 'The river was very quiet.', 300, stream=True)
busy.readline()
have, before = ask(copies, FIRST, 10)
assert have == text, (have, text)
busy.read()
have, usage = ask(copies, FIRST + text + ' Then', 10)
copies.end()
assert have == want, (have, want)
assert usage['prompt_tokens_details']['cached_tokens'] >= before['prompt_tokens'] - 1, (before, usage)
