"""Copies of a model, and two servers, save conversations in one directory: its limit holds for all of them, and
each finds what another one has saved.

usage: serve_files.py MOEFLUX MODEL DIR"""
import json
import os
import sys
import threading

from server import Server

program, model, states = sys.argv[1:]
MOST = 3
FLAGS = ['-c', '256', '--sequences', '2', '--state-dir', states, '--state-files', str(MOST)]


def start(*flags):
    return Server(program, model, *FLAGS, *flags)


def ask(server, i):
    """Returns how many tokens of the prompt need not be computed."""
    prompt = f'Once there were {i} owls in the old barn. ' * 8
    with server.complete(prompt=prompt, max_tokens=4, temperature=0, ignore_eos=True) as answer:
        return json.load(answer)['usage']['prompt_tokens_details']['cached_tokens']


def files():
    return [f for f in os.listdir(states) if f.endswith('.moeflux-state')]


copies = start('--device', 'cpu,cpu', '--replicate', '--parallel', '2')
threads = [threading.Thread(target=lambda k: [ask(copies, i) for i in range(k, 12, 2)], args=(k,)) for k in (0, 1)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert len(files()) == MOST, files()
copies.end()
assert len(files()) == MOST, files()

# One of the last conversations is in a file, whichever copy had it. Others replace the files.
copies = start('--device', 'cpu,cpu', '--replicate', '--parallel', '2')
assert any(ask(copies, i) >= 64 for i in reversed(range(12))), 'no conversation was found'
copies.end()

one, two = start('--device', 'cpu'), start('--device', 'cpu')
for i in range(20, 26):
    ask(one, i)
    ask(two, 10 + i)
    assert len(files()) <= MOST, files()
one.end()
ask(two, 40)  # one of its conversations is saved
assert ask(two, 25) >= 64
two.end()
assert len(files()) == MOST, files()
