"""A server's answers to several clients at once are batch-invariant: those that each client gets without the others.

usage: serve_side_by_side.py MOEFLUX MODEL FLAG..."""
import json
import re
import subprocess
import sys
import threading
import urllib.request

program, model, *flags = sys.argv[1:]


def ask(url, i):
    body = {'prompt': f'Once there were {i} owls. ' * (1 + i % 3), 'max_tokens': 8 + 5 * (i % 4),
            'temperature': i % 2,
            'seed': i}
    call = urllib.request.Request(url + '/v1/completions', json.dumps(body).encode(),
                                  {'Content-Type': 'application/json'})
    with urllib.request.urlopen(call, timeout=300) as answer:
        return json.load(answer)['choices'][0]['text']


class Server:
    def __init__(self, *more):
        self.run = subprocess.Popen([program, 'serve', '-m', model, '--port', '0', '-c', '256', *more],
                                    stderr=subprocess.PIPE, text=True)
        line = self.run.stderr.readline()
        self.url = re.search(r'listening on (\S+)', line)[1]

    def end(self):
        self.run.terminate()
        assert self.run.wait() == 0, self.run.stderr.read()


def all_at_once(url, n):
    texts = [None] * n
    threads = [threading.Thread(target=lambda i=i: texts.__setitem__(i, ask(url, i))) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return texts


N = 10
alone = Server('--device', 'cpu')
want = [ask(alone.url, i) for i in range(N)]
alone.end()
several = Server(*flags)
have = all_at_once(several.url, N)
metrics = urllib.request.urlopen(several.url + '/metrics', timeout=60).read().decode()
again = [ask(several.url, i) for i in range(N)]
several.end()
assert want == have, [(a, b) for a, b in zip(want, have) if a != b]
assert want == again, [(a, b) for a, b in zip(want, again) if a != b]
assert re.search(r'^moeflux\S*tokens\S* \d+', metrics, re.M), metrics
