"""Plays clients that call tools in a loop, and says how many tokens of their prompts are computed. For
tests/cli/agents.sh. Ends with a traceback if the claim does not hold.

usage: agents.py MODEL loops TURNS CONVERSATIONS MOST_WORDS [FLAG...]
           with --state-dir among the flags: a restart in the middle
       agents.py MODEL documents N_AT_ONCE [FLAG...]"""
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading

model, what = sys.argv[1], sys.argv[2]
n_numbers = {'loops': 3, 'documents': 1}[what]
numbers, flags = [int(x) for x in sys.argv[3:3 + n_numbers]], sys.argv[3 + n_numbers:]
tools = [{'type': 'function', 'function': {'name': 'read', 'parameters': {
    'type': 'object', 'properties': {'path': {'type': 'string'}}, 'required': ['path']}}}]
words = 'river stone kettle seven blue garden iron window paper silver morning letter'.split()


def text(rng, n):
    return ' '.join(rng.choice(words) for _ in range(n))


class Server:
    def start(self):
        command = [os.environ['MOEFLUX'], 'serve', '-m', model, '--device', 'cpu', '--port', '0', *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        assert 'listening on' in line, line
        self.host, self.port = line.split('//')[1].strip().rsplit(':', 1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate()
        assert self.process.returncode == 0 and not said, (self.process.returncode, said)


server = Server()


def chat(messages, n=8, **more):
    c = http.client.HTTPConnection(server.host, int(server.port), timeout=600)
    body = {'messages': messages, 'max_tokens': n, 'temperature': 0, **more}
    c.request('POST', '/v1/chat/completions', json.dumps(body))
    r = c.getresponse()
    reply = json.loads(r.read())
    assert r.status == 200, reply
    u = reply['usage']
    return reply['choices'][0]['message'], u['prompt_tokens'], u['prompt_tokens_details']['cached_tokens']


class Loop:
    """One conversation: a question, then calls and their results. Even ones ask again now and then, odd ones give
    the thinking back, which the template drops once there is another question."""

    def __init__(self, seed):
        self.thinks = seed % 2
        self.rng = random.Random(seed)
        self.messages = [{'role': 'system', 'content': f'Agent {seed}. ' + text(self.rng, 60)},
                         {'role': 'user', 'content': text(self.rng, 20)}]
        self.computed = self.new = self.before = 0
        self.worst = []

    def turn(self, i, most):
        message, n, cached = chat(self.messages, tools=tools)
        if i:
            self.computed += n - cached
            self.new += n - self.before
            self.worst.append((n - cached - (n - self.before), i, n, cached, self.before))
        self.before = n
        # Clients give answers back as they are, with a blank more, with or without the thinking.
        said = {'role': 'assistant', 'content': ['', ' ', ' Next. ', '\n'][i % 4] + (message['content'] or '')}
        if self.thinks and i % 3 and message.get('reasoning_content'):
            said['reasoning_content'] = message['reasoning_content'] + '\n' * (i % 2)
        if not self.thinks and i % 10 == 9:
            self.messages += [said, {'role': 'user', 'content': text(self.rng, 20)}]
            return
        said['tool_calls'] = [{'id': f'c{i}', 'type': 'function',
                               'function': {'name': 'read', 'arguments': json.dumps({'path': f'f{i}'})}}]
        self.messages += [said, {'role': 'tool', 'tool_call_id': f'c{i}',
                                 'content': text(self.rng, self.rng.randint(most // 20, most))}]


def loops(turns, conversations, most):
    """Append-only turns: at most a tenth more than the new tokens are computed."""
    all_loops = [Loop(i) for i in range(conversations)]

    def run(loop, first, end):
        for i in range(first, end):
            loop.turn(i, most)

    def run_all(first, end):
        threads = [threading.Thread(target=run, args=(x, first, end)) for x in all_loops]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    run_all(0, turns // 2)
    if '--state-dir' in flags:
        server.stop()
        server.start()
    run_all(turns // 2, turns)
    computed, new = sum(x.computed for x in all_loops), sum(x.new for x in all_loops)
    worst = sorted((w for x in all_loops for w in x.worst), reverse=True)[:8]
    print(f'{computed} tokens computed, {new} new: {computed / new:.3f}')
    print('most above the new ones (how many, turn, prompt, cached, last prompt):', worst)
    assert len(all_loops[0].worst) == turns - 1  # every turn was counted
    assert computed <= 1.1 * new, (computed, new)


def documents(n_at_once):
    """A long text with other last words: the third request at the latest computes only these."""
    rng = random.Random(5)
    document = text(rng, 700)
    counts = []

    def ask(i):
        counts.append(chat([{'role': 'user', 'content': f'{document} Question {i}: {text(random.Random(i), 6)}?'}], 1)[1:])
    for i in range(2):
        ask(i)
    for i in range(2, 12, n_at_once):
        threads = [threading.Thread(target=ask, args=(k,)) for k in range(i, i + n_at_once)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    print(counts)
    late = sum(n - cached for n, cached in counts[2:])
    # Each of those that run at the same time may have to compute it once.
    assert late <= (n_at_once - 1) * counts[0][0] + 40 * len(counts), counts


server.start()
try:
    {'loops': loops, 'documents': documents}[what](*numbers)
finally:
    server.stop()
