"""Claims about a running server, for tests/cli/serve.sh. Ends with a traceback if the claim does not hold.

usage: server_client.py URL CLAIM [ARGUMENT...]"""
import http.client
import json
import re
import os
import re
import socket
import sys
import threading

from waiting import wait_until

url, claim = sys.argv[1], sys.argv[2]
host, port = url.split('//')[1].rsplit(':', 1)
port = int(port)


def call(method, path, body=None, headers=None):
    c = http.client.HTTPConnection(host, port, timeout=60)
    c.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body),
              headers or {})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, r.headers, data


def post(path, body, headers=None):
    status, _, data = call('POST', path, body, headers)
    return status, json.loads(data)


def good(path, body):
    status, reply = post(path, body)
    assert status == 200, (status, reply)
    return reply


def chat(messages, **more):
    if isinstance(messages, str):
        messages = [{'role': 'user', 'content': messages}]
    return good('/v1/chat/completions', {'messages': messages, 'temperature': 0, **more})


def events(path, body):
    status, headers, data = call('POST', path, {**body, 'stream': True})
    assert status == 200 and headers['Content-Type'] == 'text/event-stream', (status, headers.items(), data)
    lines = [x[6:] for x in data.decode().split('\n') if x.startswith('data: ')]
    assert lines[-1] == '[DONE]', lines[-1]
    return [json.loads(x) for x in lines[:-1]]


def metrics():
    _, _, data = call('GET', '/metrics')
    return {x.split()[0]: float(x.split()[1]) for x in data.decode().splitlines() if not x.startswith('#')}


def wait_for_answers(what, n):
    """Waits until n answers are 'running' or 'waiting', or more."""
    wait_until(lambda: metrics()['moeflux_requests_' + what] >= n, f'{n} answers {what}')


def refused(status, param, body, path='/v1/chat/completions', words=''):
    got, reply = post(path, body)
    e = reply['error']
    assert got == status and e['param'] == param and words in e['message'], (got, e, status, param, words)
    assert set(e) - {'n_prompt_tokens', 'n_ctx'} == {'message', 'type', 'param', 'code'}, e
    assert e['message'] and e['type'], e
    return e


user = {'role': 'user', 'content': 'What is 12 + 30?'}
long_answer = {'prompt': 'The river', 'max_tokens': 7000, 'ignore_eos': True}


def whole_answers_and_events_say_the_same():
    ask = {'messages': [user], 'temperature': 0}
    whole = good('/v1/chat/completions', ask)
    message = whole['choices'][0]['message']
    assert message['content'] == '42' and message['reasoning_content'], message
    assert whole['object'] == 'chat.completion' and whole['choices'][0]['finish_reason'] == 'stop', whole
    parts = events('/v1/chat/completions', {**ask, 'stream_options': {'include_usage': True}})
    deltas = [p['choices'][0]['delta'] for p in parts[:-1]]
    assert deltas[0]['role'] == 'assistant'
    assert ''.join(d.get('content', '') for d in deltas) == message['content']
    assert ''.join(d.get('reasoning_content', '') for d in deltas) == message['reasoning_content']
    assert [p['choices'][0]['finish_reason'] for p in parts[-3:-1]] == [None, 'stop'], parts[-3:]
    n_tokens = whole['usage']['completion_tokens']
    assert parts[-1]['choices'] == [] and parts[-1]['usage']['completion_tokens'] == n_tokens, parts[-1]
    assert all(p['usage'] is None for p in parts[:-1]) and len({p['id'] for p in parts}) == 1
    assert 'usage' not in events('/v1/chat/completions', ask)[0]
    off = chat([user], chat_template_kwargs={'enable_thinking': False})['choices'][0]['message']
    assert off['content'] and 'reasoning_content' not in off, off


def thinking_is_switched_by_either_name():
    """The server's model has tests/cli/serve.sh's template, which reads `thinking`."""
    for switches in ({'thinking': True}, {'enable_thinking': True},
                     {'enable_thinking': True, 'thinking': False}):
        message = chat([user], chat_template_kwargs=switches)['choices'][0]['message']
        assert message['content'] == '42' and message['reasoning_content'], (switches, message)
    for switches in ({}, {'thinking': False}, {'enable_thinking': False},
                     {'enable_thinking': False, 'thinking': True},
                     {'enable_thinking': None, 'thinking': False}):
        message = chat([user], chat_template_kwargs=switches)['choices'][0]['message']
        assert message['content'] and 'reasoning_content' not in message, (switches, message)
    # Ollama's name.
    for think, thinks in ((True, True), (False, False), ('high', True), ('none', False)):
        message = chat([user], think=think)['choices'][0]['message']
        assert ('reasoning_content' in message) == thinks, (think, message)


def a_template_without_thinking_ignores_the_switch():
    """The server's model has a template of tests/cli/serve.sh without thinking."""
    plain = chat([user])['choices'][0]['message']
    for switches in ({'thinking': True}, {'enable_thinking': True}, {'thinking': False}):
        assert chat([user], chat_template_kwargs=switches)['choices'][0]['message'] == plain, switches


def a_conversation_computes_its_new_tokens_only():
    messages, known = [], []
    for i in range(6):
        messages.append({'role': 'user', 'content': f'What is {i + 10} + {i + 3}?'})
        reply = chat(messages, max_tokens=40)
        u = reply['usage']
        known.append((u['prompt_tokens'], u['prompt_tokens_details']['cached_tokens']))
        messages.append({'role': 'assistant', 'content': reply['choices'][0]['message']['content']})
    # The whole prompt is known, except for the last answer and the new question.
    for (before, _), (_, cached) in zip(known, known[1:]):
        assert before - 4 <= cached <= before, known


def two_alternating_conversations_keep_their_prefixes():
    one = [{'role': 'system', 'content': 'Add. ' * 12}, user]
    other = [{'role': 'system', 'content': 'Count words. ' * 12}, user]
    for messages in (one, other):
        chat(messages, max_tokens=20)
    for messages in (one, other):
        u = chat(messages, max_tokens=20)['usage']
        assert u['prompt_tokens'] - 4 <= u['prompt_tokens_details']['cached_tokens'] < u['prompt_tokens'], u


def completions_take_texts_ids_and_lists():
    r = good('/v1/completions', {'prompt': ['The river was', 'A brave owl'], 'max_tokens': 3, 'n': 2,
                                 'temperature': 0})
    texts = [c['text'] for c in r['choices']]
    assert [c['index'] for c in r['choices']] == [0, 1, 2, 3] and texts[0] == texts[1] != texts[2], r
    ids = good('/tokenize', {'content': 'The river was'})['tokens']
    same = good('/v1/completions', {'prompt': ids, 'max_tokens': 3, 'temperature': 0})
    assert same['choices'][0]['text'] == texts[0] and same['usage']['prompt_tokens'] == len(ids), same
    assert good('/v1/completions',
                {'prompt': 'The', 'temperature': 0, 'ignore_eos': True})['usage']['completion_tokens'] == 16
    banned = good('/v1/completions', {'prompt': ids, 'max_tokens': 1, 'temperature': 0, 'logit_bias': {
        str(good('/tokenize', {'content': 'The river was' + texts[0]})['tokens'][len(ids)]): -100}})
    other = banned['choices'][0]['text']
    assert other and not texts[0].startswith(other), (banned, texts)
    parts = events('/v1/completions', {'prompt': ['The river was', 'A brave owl'], 'max_tokens': 3,
                                       'temperature': 0})
    for i in range(2):
        assert ''.join(p['choices'][0]['text'] for p in parts
                       if p['choices'][0]['index'] == i) == texts[2 * i]


def the_same_seed_gives_the_same_text():
    ask = {'prompt': 'The', 'max_tokens': 12, 'temperature': 1.5, 'top_k': 0, 'n': 3}
    text = lambda **more: [c['text'] for c in good('/v1/completions', {**ask, **more})['choices']]
    first = text(seed=7)
    assert first == text(seed=7) and len(set(first)) == 3 and first != text(seed=70), first
    assert text() != text()


def echo_and_logprobs_score_a_prompt():
    ids = good('/tokenize', {'content': 'The river was very quiet'})['tokens']
    r = good('/v1/completions', {'prompt': [ids], 'max_tokens': 1, 'temperature': 0, 'echo': True,
                                 'logprobs': 1})
    l = r['choices'][0]['logprobs']
    assert len(l['tokens']) == len(ids) + 1 and l['token_logprobs'][0] is None, l
    text = r['choices'][0]['text']
    assert ''.join(l['tokens']) == text and text.startswith('The river was very quiet')
    assert l['text_offset'][:3] == [0, 3, 9], l
    # The scores are those that the tokens had when they were generated.
    start = good('/v1/completions', {'prompt': ids[:3], 'max_tokens': 2, 'temperature': 0, 'logprobs': 0})
    assert start['choices'][0]['text'] == ' very quiet', start
    for a, b in zip(start['choices'][0]['logprobs']['token_logprobs'], l['token_logprobs'][3:]):
        assert abs(a - b) < 1e-3, (a, b)
    for top, own in zip(l['top_logprobs'][1:], l['token_logprobs'][1:]):
        assert max(top.values()) >= own
    none = good('/v1/completions', {'prompt': 'The river', 'max_tokens': 0, 'echo': True, 'logprobs': 2})
    assert none['choices'][0]['text'] == 'The river' and none['usage']['completion_tokens'] == 0, none
    c = chat([user], logprobs=True, top_logprobs=2,
             chat_template_kwargs={'enable_thinking': False})['choices'][0]
    tokens = c['logprobs']['content']
    assert ''.join(t['token'] for t in tokens) == c['message']['content'] == '42', c
    assert all(len(t['top_logprobs']) == 2 and t['top_logprobs'][0]['logprob'] == t['logprob']
               for t in tokens), tokens


def stops_end_an_answer():
    c = good('/v1/completions', {'prompt': 'The river was', 'max_tokens': 9, 'temperature': 0,
                                 'stop': [' quiet', 'x']})
    assert (c['choices'][0]['text'], c['choices'][0]['finish_reason']) == (' very', 'stop'), c


def answers_fit_a_schema_or_a_grammar():
    schema = {'type': 'object', 'properties': {'sum': {'type': 'integer'}, 'even': {'type': 'boolean'}},
              'required': ['sum', 'even'], 'additionalProperties': False}
    form = lambda **f: {'response_format': f, 'max_tokens': 100,
                        'chat_template_kwargs': {'enable_thinking': False}}
    for seed in range(5):
        c = chat([user], **form(type='json_schema', json_schema={'name': 's', 'schema': schema}),
                 seed=seed)['choices'][0]
        if c['finish_reason'] == 'stop':
            got = json.loads(c['message']['content'])
            assert set(got) == {'sum', 'even'} and type(got['sum']) is int and type(got['even']) is bool, got
    assert chat([user],
                **form(type='json_object'))['choices'][0]['message']['content'].lstrip().startswith('{')
    c = good('/v1/completions',
             {'prompt': 'The', 'temperature': 1, 'grammar': 'root ::= "a" [bc] "d"'})['choices'][0]
    assert c['text'] in ('abd', 'acd') and c['finish_reason'] == 'stop', c
    refused(400, 'response_format', {'messages': [user], 'response_format': {'type': 'xml'}})
    refused(400, 'response_format', {'messages': [user], 'response_format': {'type': 'json_schema'}})
    refused(400, 'response_format', {'messages': [user], 'response_format': {
        'type': 'json_schema', 'json_schema': {'schema': {'type': 'sum'}}}})
    refused(400, 'grammar', {'messages': [user], 'grammar': 'root ::= ("a"'})


def forms_and_thinking_of_other_servers_are_obeyed():
    content = lambda **f: chat([user], seed=1, max_tokens=60, reasoning_effort='none',
                               **f)['choices'][0]['message']['content']
    assert content(json_schema={'const': '42'}) == content(guided_json={'const': '42'}) == '"42"'
    assert content(guided_choice=['yes "', 'yes\n<b>']) in ('yes "', 'yes\n<b>')
    assert re.fullmatch('[a-c]{3}-(x|y)', content(guided_regex='^[a-c]{3}-(x|y)$'))
    assert content(structured_outputs={'choice': ['only']}) == 'only'
    # The answer goes on after the limit, and in the middle of a message.
    thinks = lambda **f: chat([user], seed=1, temperature=0, max_tokens=40, **f)['choices'][0]['message']
    free, limited = thinks(), thinks(think_budget=3)
    assert len(limited['reasoning_content']) < len(free['reasoning_content']) and limited['content'], limited
    assert 'reasoning_content' not in thinks(thinking={'type': 'disabled'})
    said = chat([user, {'role': 'assistant', 'content': 'four'}], guided_choice=['fourteen'])
    assert said['choices'][0]['message']['content'] == 'teen', said
    logprobs = chat([user], max_tokens=1, logprobs=True)['choices'][0]
    assert logprobs['message'].get('reasoning_content') is None or logprobs['logprobs'] == {'content': []}
    long = refused(400, None, {'messages': [{'role': 'user', 'content': 'x y ' * 200}]})
    assert long['n_ctx'] == 256 < long['n_prompt_tokens'] and 'exceeds the available context size' in long['message']


def texts_may_have_nul_and_halves_of_characters():
    tokens = lambda text: good('/tokenize', {'content': text})['tokens']
    assert tokens('a\0b \ud83d \ude00 \U0001f600') == tokens('a\ufffdb \ufffd \ufffd \U0001f600')
    ask = lambda text: good('/v1/completions',
                            {'prompt': text, 'max_tokens': 3, 'temperature': 0})['choices'][0]['text']
    assert ask('The river\0') == ask('The river\ufffd')
    chat([{'role': 'user', 'content': 'cut \ud83d'}, {'role': 'assistant', 'content': '\0'}, user],
         max_tokens=1)
    # A NUL ends no text.
    c = good('/v1/completions', {'prompt': 'The river was', 'max_tokens': 2, 'temperature': 0,
                                 'stop': [' quiet\0x', '\0']})
    assert c['choices'][0]['text'] == ' very quiet', c
    refused(400, 'grammar', {'messages': [user], 'grammar': 'root ::= "a"\0'})
    refused(400, 'response_format', {'messages': [user], 'response_format': {'type': 'text\0'}})


def tokens_and_texts_are_inverse():
    text = 'Hello there, caf\u00e9 <|im_end|>'
    ids = good('/tokenize', {'content': text})['tokens']
    assert good('/detokenize', {'tokens': ids})['content'] == text
    pieces = good('/tokenize', {'content': text, 'with_pieces': True})['tokens']
    assert [p['id'] for p in pieces] == ids
    raw = b''.join(bytes(p['piece']) if isinstance(p['piece'], list) else p['piece'].encode() for p in pieces)
    assert raw.decode() == text, pieces
    assert len(good('/tokenize', {'content': text, 'parse_special': False})['tokens']) > len(ids)


def streamed_calls(parts):
    calls = {}
    for p in parts:
        for d in p['choices'][0]['delta'].get('tool_calls', []):
            have = calls.setdefault(d['index'], {'name': '', 'arguments': ''})
            for key, value in d['function'].items():
                have[key] += value
    return [calls[i] for i in sorted(calls)]


def tools_are_called_and_their_results_answered():
    """The server's model has a template of tests/cli/serve.sh without thinking."""
    tools = [{'type': 'function', 'function': {'name': 'get_sum', 'description': 'adds',
                                               'parameters': {'type': 'object', 'properties': {}}}}]
    ask = {'messages': [user], 'tools': tools, 'tool_choice': 'required', 'temperature': 0, 'max_tokens': 80}
    whole = good('/v1/chat/completions', ask)
    choice = whole['choices'][0]
    calls = choice['message']['tool_calls']
    assert choice['finish_reason'] == 'tool_calls' and choice['message']['content'] is None, whole
    assert {c['function']['name'] for c in calls} == {'get_sum'}, calls
    assert all(c['type'] == 'function' and c['id'] for c in calls), calls
    assert all(isinstance(json.loads(c['function']['arguments']), dict) for c in calls)
    parts = events('/v1/chat/completions', ask)
    got = streamed_calls(parts)
    assert got == [c['function'] for c in calls], (got, calls)
    assert parts[-1]['choices'][0]['finish_reason'] == 'tool_calls'
    # Arguments fit the schema. There is one call if the request forbids more.
    strict = [{'type': 'function', 'function': {'name': 'put', 'parameters': {
        'type': 'object', 'properties': {'n': {'type': 'integer', 'minimum': 3, 'maximum': 7},
                                         'mode': {'enum': ['r', 'w']}},
        'required': ['mode', 'n'], 'additionalProperties': False}}}]
    for seed in range(3):
        reply = good('/v1/chat/completions', {**ask, 'tools': strict, 'temperature': 1, 'seed': seed,
                                              'parallel_tool_calls': False})
        assert reply['choices'][0]['finish_reason'] == 'tool_calls', reply
        [call] = reply['choices'][0]['message']['tool_calls']
        got = json.loads(call['function']['arguments'])
        assert set(got) == {'n', 'mode'} and 3 <= got['n'] <= 7 and got['mode'] in ('r', 'w'), got
    strict[0]['function']['parameters']['properties']['n'] = {'type': 'integer', 'not': {'const': 4}}
    refused(400, 'tools', {**ask, 'tools': strict}, words='tools: put: parameters: #/properties/n/"not": ')
    # A form of texts leaves calls possible.
    schema = {'type': 'object', 'required': ['on'], 'properties': {'on': {'type': 'boolean'}}}
    form = {'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': schema}}
    n_calls = 0
    for seed in range(12):
        reply = good('/v1/chat/completions',
                     {'messages': [user], 'tools': tools, 'temperature': 2, 'seed': seed, 'max_tokens': 60,
                      'chat_template_kwargs': {'enable_thinking': False}, 'response_format': form})
        message = reply['choices'][0]['message']
        n_calls += bool(message.get('tool_calls'))
        assert message.get('tool_calls') or message['content'].lstrip().startswith('{'), reply
    assert 0 < n_calls < 12, n_calls
    messages = [user, choice['message']] + [{'role': 'tool', 'tool_call_id': c['id'], 'content': '42'}
                                            for c in calls]
    u = chat(messages, tools=tools, max_tokens=5)['usage']
    assert u['prompt_tokens_details']['cached_tokens'] >= whole['usage']['prompt_tokens'] - 1, (u, whole)
    # A client that joins the parts of calls by their index has the good call, after a malformed one.
    say = lambda *all: 'root ::= ' + json.dumps('\n'.join(
        f'<tool_call>\n{{"name": "get_sum", "arguments": {arguments}}}\n</tool_call>' for arguments in all))
    ask = {'messages': [user], 'tools': tools, 'temperature': 0, 'max_tokens': 150,
           'grammar': say('{]', '{}')}
    [call] = good('/v1/chat/completions', ask)['choices'][0]['message']['tool_calls']
    assert call['function'] == {'name': 'get_sum', 'arguments': '{}'}, call
    got = streamed_calls(events('/v1/chat/completions', ask))
    assert [c['arguments'] for c in got] == ['{]', '{}'] and got[1] == call['function'], got
    assert 'tools' in refused(400, 'tool_choice', {'messages': [user], 'tool_choice': 'required'})['message']
    refused(400, 'tools', {'messages': [user], 'tools': [{'type': 'function'}]}, words='tools[0].function.name')


put = [{'type': 'function', 'function': {'name': 'put', 'parameters': {'type': 'object', 'properties': {}}}}]


def tokens_after(arguments):
    """Returns the number of tokens of a prompt with a call of these arguments, and its result."""
    call = {'id': 'a', 'type': 'function', 'function': {'name': 'put', 'arguments': arguments}}
    messages = [user, {'role': 'assistant', 'content': None, 'tool_calls': [call]},
                {'role': 'tool', 'tool_call_id': 'a', 'content': '42'}]
    return chat(messages, tools=put, max_tokens=1)['usage']['prompt_tokens']


def calls_may_be_sent_back():
    # The next request may have the calls of an answer.
    for arguments in (r'{"a": "x", "a": "y"}', r'{"a": "x\u0000y"}'):
        said = '<tool_call>\n{"name": "put", "arguments": ' + arguments + '}\n</tool_call>'
        choice = chat([user], tools=put, grammar='root ::= ' + json.dumps(said), max_tokens=150)['choices'][0]
        assert choice['message']['tool_calls'][0]['function']['arguments'] == arguments, choice
        tokens_after(arguments)
    # It may have malformed ones too, and what a client makes of no arguments.
    for arguments in ('{', '[1]', '3', 'x', '\0', '\ud83d', r'{"a": "\ud83d"}', '{"a": ' + '[' * 3000):
        tokens_after(arguments)
    assert tokens_after('') == tokens_after('{}') != tokens_after('{"a": 1}')


def calls_may_be_sent_back_to_a_template_of_objects():
    """The server's model has a template of tests/cli/serve.sh that reads the members of the arguments."""
    for arguments in ('', 'null', ' ', [], None):
        assert tokens_after(arguments) == tokens_after('{}'), arguments
    # Others are a member's text: the model sees what it wrote.
    for arguments in ('{', '[1]', '3', 'NaN', 5):
        assert tokens_after(arguments) > tokens_after('{}'), arguments
    assert tokens_after({'a': 1}) == tokens_after('{"a": 1}') > tokens_after('{}')


def wrong_requests_are_refused_by_name():
    for body in ('', '{', '[]', '{"messages":[],}'):
        refused(400, None, body)
    refused(400, 'messages', {})
    refused(400, 'messages', {'messages': []})
    refused(400, 'messages', {'messages': 'x'})
    refused(400, 'messages', {'messages': [{'role': 'user'}]})
    image = {'role': 'user', 'content': [{'type': 'text', 'text': 'a'},
                                         {'type': 'image_url', 'image_url': {}}]}
    refused(400, 'messages', {'messages': [image]}, words='image_url')
    for name, value in (('temperature', 'hot'), ('temperature', -1), ('top_p', 2), ('top_k', 1.5),
                        ('max_tokens', -3), ('seed', 'x'), ('stream', 1), ('n', 0), ('n', 1000), ('stop', 3),
                        ('logprobs', 2), ('stream_options', 1), ('logit_bias', {'x': 2}),
                        ('logit_bias', {'1': 101}), ('logit_bias', {'99999999': 2}),
                        ('stream_options', {'include_usage': True}), ('best_of', 2), ('priority', 'soon'),
                        ('parallel_tool_calls', 1), ('response_format', {'type': 'json_object', 'schema': 3}),
                        ('suffix', 'x'), ('presence_penalty', 3), ('model', 4), ('web_search_options', {}),
                        ('format', 'json'), ('format', {'type': 'object'}), ('options', {'temperature': 0}),
                        ('system', 'Be brief.'), ('template', '{{ .Prompt }}'), ('raw', True),
                        ('context', [1, 2]), ('images', ['iVBORw0KGgo=']), ('think', 3), ('think', 'deeply')):
        refused(400, name, {'messages': [user], name: value})
    for name, value in (('format', 'json'), ('options', {'num_predict': 4}), ('system', 'Be brief.')):
        refused(400, name, {'prompt': 'a', name: value}, '/v1/completions')
        refused(400, name, {'input': 'a', name: value}, '/v1/responses')
    # Empty values ask for nothing.
    chat([user], max_tokens=1, format='', options={}, raw=False, context=[], web_search_options=None)
    refused(400, 'prompt', {}, '/v1/completions')
    refused(400, 'prompt', {'prompt': [[1, 99999999]]}, '/v1/completions')
    refused(400, 'prompt', {'prompt': ['a', 3]}, '/v1/completions')
    refused(400, 'prompt', {'prompt': ''}, '/v1/completions')
    assert refused(400, None, {'prompt': [5] * 300}, '/v1/completions')['code'] == 'context_length_exceeded'
    refused(400, 'content', {'content': 1}, '/tokenize')
    refused(400, 'tokens', {'tokens': [-1]}, '/detokenize')
    # Unknown fields are ignored.
    chat([user], max_tokens=1, frobnicate={'a': 1}, user='me')
    refused(400, 'messages', {'messages': [user, {'role': 'bob', 'content': 'x'}]})
    # Other servers take these.
    chat([{'role': 'developer', 'content': 'Be brief.'}, user,
          {'role': 'assistant', 'content': None, 'refusal': 'no'}, user], max_tokens=1, top_p=0)
    assert call('GET', '/nothing')[0] == 404 and call('DELETE', '/v1/models')[0] == 405
    assert call('GET', '/v1/completions')[1]['Allow'] == 'POST'


def broken_http_does_not_end_it():
    head = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\n'
    for raw in (b'garbage\r\n\r\n', b'GET / HTTP/9.9\r\n\r\n', head + b'Content-Length: 7\r\n\r\n{"a"',
                head + b'Content-Length: x\r\n\r\n',
                head + b'Transfer-Encoding: chunked\r\n\r\nzz\r\n',
                b'GET /' + b'a' * 70000 + b' HTTP/1.1\r\n\r\n', b'\x00' * 100, b''):
        c = socket.create_connection((host, port), timeout=10)
        try:
            c.sendall(raw)
            c.shutdown(socket.SHUT_WR)
            while c.recv(4096):
                pass
        except OSError:
            pass
        c.close()
    c = socket.create_connection((host, port), timeout=10)
    c.sendall(head + b'Content-Length: 999999999999\r\n\r\n')
    assert b' 413 ' in c.recv(4096).split(b'\n')[0]
    c.close()
    assert call('GET', '/health')[0] == 200


def start_long(stream, max_tokens=200, **more):
    body = json.dumps({**long_answer, 'stream': stream, 'max_tokens': max_tokens, **more}).encode()
    c = socket.create_connection((host, port), timeout=60)
    c.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
    return c


def a_client_that_hangs_up_stops_its_answer():
    # A byte that was sent after the request does not hide it.
    for stream, rest in ((False, b''), (True, b''), (False, b'\r\n'), (True, b'\r\n')):
        # An answer may end before its client is seen to leave, if the machine is busy: then another is begun.
        for _ in range(20):
            before = metrics()
            c = start_long(stream, 7000)
            ended = lambda now: now['moeflux_generated_tokens_total'] >= before['moeflux_generated_tokens_total'] + 7000
            runs = lambda now: now['moeflux_requests_running'] >= 1
            wait_until(lambda: (lambda now: runs(now) or ended(now))(metrics()), 'a request runs')
            if rest:
                c.sendall(rest)
                c.shutdown(socket.SHUT_WR)
            else:
                c.close()
            wait_until(lambda: metrics()['moeflux_requests_running'] == 0, 'the answer ends')
            after = metrics()
            c.close()
            if not ended(after):
                break
        assert not ended(after), after
        assert after['moeflux_answers_cancelled_total'] == before['moeflux_answers_cancelled_total'] + 1


def concurrent_answers_are_those_of_single_requests():
    n = int(sys.argv[3])
    ask = lambda i: good('/v1/completions', {'prompt': 'The river ' * (i + 1), 'max_tokens': 30, 'seed': i,
                                             'temperature': 1})
    single = [ask(i)['choices'][0]['text'] for i in range(n)]
    got = [None] * n

    def one(i):
        got[i] = ask(i)['choices'][0]['text']

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == single, (got, single)


def a_full_queue_refuses_requests():
    """The server has --queue 1: one request runs and one waits, with several answers."""
    held = [start_long(True)]
    wait_for_answers('running', 1)
    held.append(start_long(True, n=6))
    wait_for_answers('waiting', 6)
    status, headers, data = call('POST', '/v1/completions', {'prompt': 'a'})
    for c in held:
        c.close()
    error = json.loads(data)['error']
    assert status == 429 and headers['Retry-After'] and error['type'] == 'rate_limit_error', (status, data)
    assert error['message'].startswith('1 request waits'), error


def a_key_is_needed():
    key = sys.argv[3]
    for shown in (None, 'Bearer x', 'Bearer ' + key[:-1], 'Bearer ' + key + 'x', 'Basic ' + key,
                  'Bearer # a comment'):
        for method, path in (('GET', '/v1/models'), ('GET', '/metrics'), ('POST', '/v1/completions'),
                             ('GET', '/nothing')):
            status, headers, data = call(method, path, '{}' if method == 'POST' else None,
                                         {'Authorization': shown} if shown else {})
            assert status == 401 and headers['WWW-Authenticate'] == 'Bearer', (shown, path, status)
            assert json.loads(data)['error']['code'] == 'invalid_api_key'
    assert call('GET', '/v1/models', None, {'Authorization': 'Bearer ' + key})[0] == 200
    assert call('GET', '/health')[0] == 200 and call('GET', '/')[0] == 200


def pages_of_other_sites_are_refused():
    status = lambda **h: call('POST', '/tokenize', {'content': 'a'}, {k.capitalize(): h[k] for k in h})[0]
    own = f'{host}:{port}'
    assert status() == 200 and status(origin='http://' + own) == 200
    assert status(origin='http://example.com') == 403 and status(origin='null') == 403
    # The name of another site may have this host's address.
    assert status(origin=f'http://example.com:{port}', host=f'example.com:{port}') == 403
    assert call('OPTIONS', '/tokenize', None, {'Origin': 'http://example.com'})[0] in (403, 405)


def a_page_of_a_named_site_may_use_it():
    origin = {'Origin': 'https://chat.example'}
    def allowed(asked):
        status, headers, _ = call('OPTIONS', '/v1/chat/completions', None, {**origin, **asked})
        assert status == 204 and headers['Access-Control-Allow-Origin'] == origin['Origin'], (status, headers)
        assert headers['Vary'] == 'Origin, Access-Control-Request-Headers', headers
        return headers['Access-Control-Allow-Headers']

    # A browser asks this for OpenAI's own client.
    asked = 'authorization,content-type,x-stainless-lang, x-stainless-os'
    assert allowed({'Access-Control-Request-Headers': asked}) == asked
    usual = allowed({})
    assert usual == 'authorization, content-type'
    for wrong in ('', 'a: b', 'a;b', 'x\ty', 'caf\u00e9', 'x' * 1001):
        assert allowed({'Access-Control-Request-Headers': wrong}) == usual, wrong
    status, headers, _ = call('OPTIONS', '/tokenize', None,
                              {'Origin': 'https://other.example', 'Access-Control-Request-Headers': 'x-a'})
    assert status in (403, 405) and headers['Access-Control-Allow-Headers'] is None, (status, headers)
    status, headers, _ = call('POST', '/tokenize', {'content': 'a'}, origin)
    site = headers['Access-Control-Allow-Origin']
    assert status == 200 and site == origin['Origin'] and headers['Vary'] == 'Origin', headers.items()
    assert call('POST', '/tokenize', {'content': 'a'}, {'Origin': 'https://other.example'})[0] == 403


def the_page_is_whole():
    status, headers, data = call('GET', '/')
    assert status == 200 and data.rstrip().endswith(b'</html>') and len(data) <= 150000, (status, len(data))
    for part in os.listdir('src/server/page'):
        with open('src/server/page/' + part, 'rb') as f:
            assert part == 'index.html' or f.read() in data, part
    assert headers['Content-Type'].startswith('text/html')
    # The page fetches nothing from other sites.
    policy = headers['Content-Security-Policy']
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy, policy
    assert not re.search(rb'src=|href="[^d]|@import|url\(', data), re.search(rb'src=|href="[^d]|@import|url\(', data)


def models_health_and_metrics_are_there():
    models = json.loads(call('GET', '/v1/models')[2])
    assert [m['id'] for m in models['data']] == ['tiny'] and models['object'] == 'list', models
    assert json.loads(call('GET', '/v1/models/tiny')[2]) == models['data'][0]
    assert json.loads(call('GET', '/v1/models/other')[2])['error']['code'] == 'model_not_found'
    assert json.loads(call('GET', '/health')[2]) == {'status': 'ok'}
    assert call('HEAD', '/health')[0] == 200
    before = metrics()
    chat([user], max_tokens=5)
    after = metrics()
    for name, n in (('generated_tokens_total', 5), ('time_to_first_token_seconds_count', 1),
                    ('time_between_tokens_seconds_count', 4)):
        assert after['moeflux_' + name] == before['moeflux_' + name] + n, (name, before, after)


def leave_two_conversations():
    """Asks two long prompts. The server keeps one sequence in memory."""
    for word in ('river', 'owl'):
        good('/v1/completions', {'prompt': f'The {word} ' * 60, 'max_tokens': 4, 'temperature': 0})


def both_conversations_are_known():
    for word in ('river', 'owl'):
        u = good('/v1/completions', {'prompt': f'The {word} ' * 60, 'max_tokens': 4,
                                     'temperature': 0})['usage']
        assert u['prompt_tokens_details']['cached_tokens'] >= u['prompt_tokens'] - 1, u


def a_running_answer_is_cut_with_its_last_event():
    """argv[3]: the server's process. It ends while this answer runs."""
    c = start_long(True)
    data = c.recv(65536)
    while b'data: ' not in data:
        data += c.recv(65536)
    os.kill(int(sys.argv[3]), 15)
    while more := c.recv(65536):
        data += more
    lines = [x for x in data.decode().replace('\r', '').split('\n') if x.startswith('data: ')]
    assert lines[-1] == 'data: [DONE]', lines[-3:]
    last = json.loads(lines[-2][6:])
    assert last['choices'][0]['finish_reason'] == 'length', last


def a_prompt_that_was_not_answered_can_be_asked_again():
    """argv[3]: the server's process, which has a chunk of 1 token. It ends while it computes this prompt."""
    stream = sys.argv[4] == 'stream'
    got = []
    ask = {'prompt': [5] * 7000, 'max_tokens': 100, 'ignore_eos': True, 'stream': stream}
    t = threading.Thread(target=lambda: got.extend(call('POST', '/v1/completions', ask)))
    t.start()
    wait_for_answers('running', 1)
    assert t.is_alive(), got
    os.kill(int(sys.argv[3]), 15)
    t.join()
    status, _, data = got
    text = data.decode()
    if stream:
        sent = [x[6:] for x in text.split('\n') if x.startswith('data: ')]
        assert status == 200 and len(sent) == 2 and sent[1] == '[DONE]', (status, text)
        text = sent[0]
    else:
        assert status == 503, (status, text)
    error = json.loads(text)['error']
    assert error['message'] and error['type'] == 'server_error', error


globals()[claim]()
