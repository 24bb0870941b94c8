"""A conversation that began on the second copy of a model goes on there, with the same text.

usage: serve_home.py MOEFLUX MODEL"""
import json
import re
import subprocess
import sys
import urllib.request

program, model = sys.argv[1:]


class Server:
    def __init__(self, *flags):
        self.run = subprocess.Popen([program, 'serve', '-m', model, '--port', '0', '-c', '512', *flags],
                                    stderr=subprocess.PIPE, text=True)
        self.url = re.search(r'listening on (\S+)', self.run.stderr.readline())[1]

    def open(self, prompt, n, stream=False):
        body = {'prompt': prompt, 'max_tokens': n, 'temperature': 0, 'stream': stream, 'ignore_eos': True}
        call = urllib.request.Request(self.url + '/v1/completions', json.dumps(body).encode(),
                                      {'Content-Type': 'application/json'})
        return urllib.request.urlopen(call, timeout=300)

    def ask(self, prompt, n):
        with self.open(prompt, n) as answer:
            said = json.load(answer)
        return said['choices'][0]['text'], said['usage']

    def end(self):
        self.run.terminate()
        assert self.run.wait() == 0, self.run.stderr.read()


FIRST = 'Once there were nine owls in the old barn. ' * 8
alone = Server('--device', 'cpu')
text, _ = alone.ask(FIRST, 10)
want, _ = alone.ask(FIRST + text + ' Then', 10)
alone.end()

copies = Server('--device', 'cpu,cpu', '--replicate', '--parallel', '4')
# While the first copy is busy the conversation begins on the second one; when it goes on, neither is.
busy = copies.open('The river was very quiet.', 300, stream=True)
busy.readline()
have, before = copies.ask(FIRST, 10)
assert have == text, (have, text)
busy.read()
have, usage = copies.ask(FIRST + text + ' Then', 10)
copies.end()
assert have == want, (have, want)
assert usage['prompt_tokens_details']['cached_tokens'] >= before['prompt_tokens'] - 1, (before, usage)
