"""A server's answers to concurrent clients are those of single requests.

usage: serve_concurrent.py MOEFLUX MODEL FLAG..."""
import json
import re
import sys
import threading
import urllib.request

from server import Server

N = 10
program, model, *flags = sys.argv[1:]


def ask(server, i):
    with server.complete(prompt=f'Once there were {i} owls. ' * (1 + i % 3), max_tokens=8 + 5 * (i % 4),
                         temperature=i % 2, seed=i) as answer:
        return json.load(answer)['choices'][0]['text']


def ask_at_once(server):
    texts = [None] * N
    threads = [threading.Thread(target=lambda i=i: texts.__setitem__(i, ask(server, i))) for i in range(N)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return texts


single = Server(program, model, '-c', '256', '--device', 'cpu')
want = [ask(single, i) for i in range(N)]
single.end()
several = Server(program, model, '-c', '256', *flags)
have = ask_at_once(several)
metrics = urllib.request.urlopen(several.url + '/metrics', timeout=60).read().decode()
again = [ask(several, i) for i in range(N)]
several.end()
assert want == have, [(a, b) for a, b in zip(want, have) if a != b]
assert want == again, [(a, b) for a, b in zip(want, again) if a != b]
assert re.search(r'^moeflux\S*tokens\S* \d+', metrics, re.M), metrics
