#!/usr/bin/python3
"""Batches in OpenAI's form: their results are those of a running server; what a terminal shows of them.

usage: batch_calls.py PROGRAM MODEL URL"""
import http.client, json, os, re, signal, subprocess, sys

import terminal
from waiting import wait_until

PROGRAM, MODEL, URL = sys.argv[1:4]

CHAT, TEXT = '/v1/chat/completions', '/v1/completions'
TOOL = {'type': 'function', 'function': {'name': 'now', 'parameters': {'type': 'object', 'properties': {}}}}
PLAIN = {'temperature': 0, 'chat_template_kwargs': {'enable_thinking': False}}


def question(text, **more):
    return {'messages': [{'role': 'user', 'content': text}], **PLAIN, **more}


# Requests with each field of the server's. The last four are refused.
BODIES = [
    (CHAT, question('What is 47 + 38?', model='anything', max_tokens=12)),
    (CHAT, question([{'type': 'text', 'text': 'What is 47 '}, {'type': 'text', 'text': '+ 38?'}],
                    max_completion_tokens=12)),
    (CHAT, {'messages': [{'role': 'user', 'content': 'What is 47 + 38?'}], 'temperature': 0,
            'max_tokens': 8}),
    (CHAT, question('What is the capital of Iceland?', stop=['capital'], max_tokens=12)),
    (CHAT, question('What is 47 + 38?', logprobs=True, top_logprobs=2, max_tokens=4)),
    (CHAT, question('When?', tools=[TOOL], tool_choice='required', max_tokens=60)),
    (CHAT, question('Hello', response_format={'type': 'json_object'}, max_tokens=20)),
    (CHAT, {**question('Tell me a story.', n=3, seed=7, max_tokens=9), 'temperature': 1.5}),
    (TEXT, {'prompt': 'Once upon a time there was', 'temperature': 0, 'max_tokens': 6}),
    (TEXT, {'prompt': ['Once upon', [11, 12, 13]], 'temperature': 0, 'max_tokens': 4, 'n': 2, 'logprobs': 1}),
    (TEXT, {'prompt': 'Once upon a time', 'temperature': 0, 'max_tokens': 3, 'echo': True, 'logprobs': 2}),
    (CHAT, question('What is 47 + 38?', logit_bias={'1': 2}, max_tokens=6)),
    (CHAT, question('x', temperature=-1)),
    (CHAT, {'messages': []}),
    (CHAT, question('x ' * 300)),
    (TEXT, {'temperature': 0}),
]


def line(custom_id, url, body, **more):
    return {'custom_id': custom_id, 'method': 'POST', 'url': url, 'body': body, **more}


def write(path, lines):
    with open(path, 'w') as f:
        for x in lines:
            f.write((x if isinstance(x, str) else json.dumps(x)) + '\n')


def run(*arguments, status=0, **more):
    ran = subprocess.run([PROGRAM, '-m', MODEL, '--device', 'cpu', '-c', '256', *arguments],
                         capture_output=True, text=True,
                         stdin=subprocess.DEVNULL, **more)
    assert ran.returncode == status, (ran.returncode, ran.stderr)
    return ran


def results(path):
    with open(path) as f:
        return [json.loads(x) for x in f]


def post(path, body):
    c = http.client.HTTPConnection(*URL.split('//')[1].split(':'), timeout=120)
    c.request('POST', path, json.dumps(body))
    reply = c.getresponse()
    return reply.status, json.loads(reply.read())


def same(a, b):
    """Whether a and b are equal, except for the last bits of numbers: these depend on the cached prefix."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-3
    if type(a) != type(b) or not isinstance(a, (dict, list)):
        return a == b
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b))


def results_have_the_bodies_of_the_servers_replies(folder):
    write(folder + '/in', [line(f'request-{i}', url, body) for i, (url, body) in enumerate(BODIES)])
    run('--batch', folder + '/in', '-o', folder + '/out', '--ordered', status=1)
    got = results(folder + '/out')
    assert [x['custom_id'] for x in got] == [f'request-{i}' for i in range(len(BODIES))], got
    n_answered = 0
    for result, (url, body) in zip(got, BODIES):
        assert list(result) == ['id', 'custom_id', 'response', 'error', 'settings'] and result['error'] is None, result
        response = result['response']
        assert list(response) == ['status_code', 'request_id', 'body'] and response['request_id'], response
        status, reply = post(url, body)
        own = response['body']
        assert response['status_code'] == status, (response, status, reply)
        if status != 200:
            assert own == reply, (own, reply)
            continue
        n_answered += 1
        assert own['object'] == reply['object'] and own['id'] != reply['id'], (own, reply)
        # The cached tokens depend on the requests before.
        for usage in own['usage'], reply['usage']:
            del usage['prompt_tokens_details']
            # So do drafts.
            del usage['completion_tokens_details']
        # The id of a call depends on the seed, which is random if the body has none.
        for choices in own['choices'], reply['choices']:
            for call in sum((c.get('message', {}).get('tool_calls', []) for c in choices), []):
                del call['id']
        assert same(own['choices'], reply['choices']) and own['usage'] == reply['usage'], (own, reply)
    assert n_answered == 12, n_answered


def a_bad_line_has_an_error_with_its_number(folder):
    good = question('What is 47 + 38?', max_tokens=6)
    bad = [(line(3, CHAT, good), 'custom_id: .*number'),
           ({'method': 'POST', 'url': CHAT, 'body': good}, 'custom_id: '),
           ({**line('m', CHAT, good), 'method': 'GET'}, 'method: .*"POST"'),
           (line('u', '/v1/embeddings', good), 'url: .*"/v1/chat/completions"'),
           (line('b', CHAT, 'x'), 'body: .*object'),
           (line('x', CHAT, good, extra=1), '.*"extra"'),
           ('nonsense', '.* near '),
           ('{"custom_id": "cut", "body": {', '.* near ')]
    write(folder + '/in', [line('good', CHAT, good)] + [x for x, _ in bad])
    ran = run('--batch', folder + '/in', '-o', folder + '/out', '--ordered', status=1)
    assert f'1 answered, {len(bad)} failed' in ran.stderr, ran.stderr
    got = results(folder + '/out')
    assert got[0]['response']['body']['choices'][0]['message']['content'] == '85', got[0]
    for i, (result, (asked, reason)) in enumerate(zip(got[1:], bad), 2):
        assert result['response'] is None and result['error']['line'] == i, result
        assert re.match(f'line {i}: {reason}', result['error']['message']), (result, reason)
        given = asked.get('custom_id') if isinstance(asked, dict) else None
        assert result['custom_id'] == (given if isinstance(given, str) else None), result
    # An id belongs to one request. A batch has no streams.
    stream = line('s', CHAT, {**good, 'stream': True})
    write(folder + '/in', [line('a', CHAT, good), line('a', CHAT, good), stream])
    run('--batch', folder + '/in', '-o', folder + '/twice', '--ordered', status=1)
    first, second, third = (x['response']['body'].get('error') for x in results(folder + '/twice'))
    assert first is None and re.match('line 2: line 1 .*id', second['message']), (first, second)
    assert third['message'].startswith('stream: '), third
    # The output has results for all lines, so the run has nothing to do.
    before = open(folder + '/out').read()
    write(folder + '/in', [line('good', CHAT, good)] + [x for x, _ in bad])
    assert '9 there already' in run('--batch', folder + '/in', '-o', folder + '/out', status=1).stderr
    assert open(folder + '/out').read() == before


def requests_of(form, n, long=()):
    """n requests, those of `long` with prompts of more than 60 tokens."""
    for i in range(n):
        text = ('x ' * 70 if i in long else '') + f'What is {40 + i} + 38?'
        if form == 'call':
            yield line(f'q{i}', CHAT, question(text, max_tokens=8))
        else:
            yield {'id': f'q{i}', 'prompt': text, 'n': 8, 'temp': 0, 'no_think': True}


def text_of(result):
    if 'text' in result:
        return result['text']
    return result['response']['body']['choices'][0]['message']['content']


def failed_lines_run_again_and_the_others_stay(folder):
    for form in 'own', 'call':
        write(folder + '/in', requests_of(form, 9, long=(1, 4)))
        all_of = []
        # Each shard has its own results; 1 and 4 are in the second one.
        for i in 1, 2, 3:
            out = f'{folder}/{form}{i}'
            arguments = ['--batch', folder + '/in', '-o', out, '--shard', f'{i}/3']
            run(*arguments, '-c', '60', status=1 if i == 2 else 0)
            before = open(out).read().splitlines()
            # The run without --retry-failed keeps the failed results.
            assert '3 there already' in run(*arguments, status=1 if i == 2 else 0).stderr
            ran = run(*arguments, '--retry-failed')
            after = open(out).read().splitlines()
            kept = [x for x in before if not json.loads(x).get('error') and
                    (json.loads(x).get('response') or {'status_code': 200})['status_code'] == 200]
            assert len(kept) == (1 if i == 2 else 3), kept
            assert after[:len(kept)] == kept and len(after) == 3, (kept, after)
            assert bool(re.search(f'^moeflux: {out}: 2 ', ran.stderr, re.M)) == (i == 2), ran.stderr
            all_of += results(out)
        by_id = {x.get('custom_id') or x['id']: text_of(x) for x in all_of}
        assert by_id == {f'q{i}': str(40 + i + 38) for i in range(9) if i not in (1, 4)} | \
            {i: by_id[i] for i in ('q1', 'q4')}, by_id
        # A request that fails again has one result, with its error. The run repairs a last line that is cut.
        out = folder + f'/{form}2'
        run('--batch', folder + '/in', '-o', folder + '/again', '-c', '60', status=1)
        with open(folder + '/again', 'rb+') as f:
            f.truncate(os.fstat(f.fileno()).st_size - 5)
        for _ in range(2):
            run('--batch', folder + '/in', '-o', folder + '/again', '-c', '60', '--retry-failed', status=1)
            assert len(results(folder + '/again')) == 9
        os.unlink(folder + '/again')


def a_retry_that_is_killed_loses_nothing_that_was_finished(folder):
    out = folder + '/out'
    write(folder + '/in', requests_of('call', 6, long=(0, 3)))
    run('--batch', folder + '/in', '-o', out, '-c', '60', status=1)
    good = [x for x in open(out).read().splitlines() if '"status_code": 200' in x]
    assert len(good) == 4, good
    # There are many more requests than are answered before it is killed.
    write(folder + '/more', list(requests_of('call', 6, long=(0, 3))) +
          [line(f's{i}', TEXT, {'prompt': 'Once', 'max_tokens': 200, 'ignore_eos': True})
           for i in range(200)])
    arguments = ['--batch', folder + '/more', '-o', out]
    for number in signal.SIGKILL, signal.SIGTERM:
        retry = subprocess.Popen([PROGRAM, '-m', MODEL, '--device', 'cpu', '-c', '256', *arguments,
                                  '--retry-failed'], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        least = 6 if number == signal.SIGKILL else len(open(out).read().splitlines()) + 2


        def has_results():
            lines = open(out).read().splitlines()
            return retry.poll() is not None or lines[:4] == good and len(lines) >= least

        wait_until(has_results, f'{least} results')
        retry.send_signal(number)
        retry.wait(60)
        lines = open(out).read().splitlines()
        assert lines[:4] == good and len(lines) >= 6, lines
    assert not [x for x in os.listdir(folder) if 'moeflux-part' in x], os.listdir(folder)
    # The same command without --retry-failed completes the results.
    run('--batch', folder + '/in', '-o', out)
    own = [x for x in results(out) if x['custom_id'][0] == 'q']
    assert sorted(x['custom_id'] for x in own) == [f'q{i}' for i in range(6)], own
    assert all(x['response']['status_code'] == 200 for x in own), own


def a_terminal_shows_the_progress_of_the_batch(folder):
    write(folder + '/in', requests_of('call', 4, long=(1,)))
    for arguments, pattern in (([], rb'\r\x1b\[K0 of 4 lines done, 0 failed'),
                               (['--shard', '2/2'], rb'\r\x1b\[K0 of 2 lines done')):
        t = terminal.Terminal(['--batch', folder + '/in', '-o', folder + '/out', '-c', '60', *arguments],
                              folder)
        t.wait_for(pattern)
        t.end()
        # The line is cleared before the last message.
        assert b'\r\x1b[Kmoeflux: ' in t.seen, t.seen
        os.unlink(folder + '/out')
    # It is cleared before a result too, and drawn again after it, without a delay.
    t = terminal.Terminal(['--batch', folder + '/in', '-c', '60'], folder)
    t.wait_for(rb'0 of 4 lines done, 0 failed, 0.00/s\r\x1b\[K\{')
    t.end()
    # wait_for() has taken the first of the four results.
    assert t.seen.count(b'\r\x1b[K{') == 3, t.seen
    t = terminal.Terminal(['--batch', folder + '/in', '-o', folder + '/out', '-c', '60'], folder,
                          NO_COLOR='1')
    t.end()
    assert b'lines done' not in t.seen and b'\x1b' not in t.seen, t.seen


def main():
    return terminal.run_tests(results_have_the_bodies_of_the_servers_replies,
                              a_bad_line_has_an_error_with_its_number,
                              failed_lines_run_again_and_the_others_stay,
                              a_retry_that_is_killed_loses_nothing_that_was_finished,
                              a_terminal_shows_the_progress_of_the_batch)


if __name__ == '__main__':
    sys.exit(main())
