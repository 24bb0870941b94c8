#!/usr/bin/python3
"""Responses and messages over HTTP: they say what chats say, in their own forms.

usage: dialects.py URL KEY"""
import http.client, json, sys, traceback

URL, KEY = sys.argv[1:3]
HOST = URL.split('//')[1]
QUESTION = 'What is 47 + 38?'
ADD = {'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}},
       'required': ['a', 'b'], 'additionalProperties': False}
CHAT_TOOL = {'type': 'function', 'function': {'name': 'add', 'description': 'adds', 'parameters': ADD}}
FLAT_TOOL = {'type': 'function', 'name': 'add', 'description': 'adds', 'parameters': ADD, 'strict': True}
TOOL = {'name': 'add', 'description': 'adds', 'input_schema': ADD, 'cache_control': {'type': 'ephemeral'}}


# ---- requests ----

def send(method, path, body=None, headers=None, status=200):
    connection = http.client.HTTPConnection(HOST, timeout=300)
    connection.request(method, path, json.dumps(body) if body is not None else None,
                       headers or {'Authorization': 'Bearer ' + KEY})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    assert reply.status == status, (path, reply.status, text)
    return text


def ask(path, status=200, **body):
    return json.loads(send('POST', path, {'temperature': 0, **body}, status=status))


def stream(path, **body):
    """Returns the data of the events, whose names are their types."""
    events = []
    for block in send('POST', path, {'temperature': 0, 'stream': True, **body}).split('\n\n')[:-1]:
        if not block.startswith(':'):
            name, data = block.split('\n')
            events.append(json.loads(data.removeprefix('data: ')))
            assert name == 'event: ' + events[-1]['type'], block
    return events


def chat(**body):
    return ask('/v1/chat/completions', **body)


def user(text):
    return {'role': 'user', 'content': text}


def same(a, b):
    assert a == b, (a, b)


# ---- responses ----

def parts(response):
    """Returns thinking, text and calls."""
    thinking, text, calls = '', '', []
    for item in response['output']:
        if item['type'] == 'reasoning':
            thinking += item['content'][0]['text']
        elif item['type'] == 'message':
            text += item['content'][0]['text']
        else:
            calls.append((item['name'], item['arguments']))
    return thinking, text, calls


def check_events(events):
    """Checks the order of a response's events; returns the response."""
    same([e['sequence_number'] for e in events], list(range(len(events))))
    events = [e for e in events if e['type'] != 'keepalive']
    same([e['type'] for e in events[:2]], ['response.created', 'response.in_progress'])
    response, done, at = events[-1]['response'], [], 2
    while at < len(events) - 1:
        item = events[at]['item']
        same((events[at]['type'], events[at]['output_index']), ('response.output_item.added', len(done)))
        is_call = item['type'] == 'function_call'
        text, at = '', at + 1
        if not is_call:
            same(events[at]['type'], 'response.content_part.added')
            at += 1
        kind = {'reasoning': 'reasoning_text', 'message': 'output_text'}.get(item['type'],
                                                                            'function_call_arguments')
        while events[at]['type'] == f'response.{kind}.delta':
            same(events[at]['item_id'], item['id'])
            text += events[at]['delta']
            at += 1
        same(events[at]['type'], f'response.{kind}.done')
        same(events[at]['arguments' if is_call else 'text'], text)
        at += 1
        if not is_call:
            same((events[at]['type'], events[at]['part']['text']), ('response.content_part.done', text))
            at += 1
        same(events[at]['type'], 'response.output_item.done')
        done.append(events[at]['item'])
        at += 1
    same(done, response['output'])
    same(events[-1]['type'], 'response.' + response['status'])
    return response


def a_response_says_what_a_chat_says():
    message = chat(messages=[{'role': 'system', 'content': 'Be brief.'}, user(QUESTION)])
    said = message['choices'][0]['message']
    for given in [QUESTION, [user(QUESTION)],
                  [{'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': QUESTION}]}]]:
        whole = ask('/v1/responses', input=given, instructions='Be brief.')
        same(parts(whole), (said['reasoning_content'], said['content'], []))
        same(whole['status'], 'completed')
        same(whole['usage']['input_tokens'], message['usage']['prompt_tokens'])
        same(whole['usage']['output_tokens'], message['usage']['completion_tokens'])
        assert 0 < whole['usage']['output_tokens_details']['reasoning_tokens'] < whole['usage']['output_tokens']
        assert whole['usage']['input_tokens_details']['cached_tokens'] > 0
        streamed = check_events(stream('/responses', input=given, instructions='Be brief.'))
        same(parts(streamed), parts(whole))
        counted = ask('/v1/responses/input_tokens', input=given, instructions='Be brief.')
        same(counted, {'object': 'response.input_tokens',
                       'input_tokens': message['usage']['prompt_tokens']})


def a_response_that_is_cut_is_incomplete():
    for response in [ask('/v1/responses', input=QUESTION, max_output_tokens=3),
                     check_events(stream('/v1/responses', input=QUESTION, max_output_tokens=3))]:
        same((response['status'], response['incomplete_details']),
             ('incomplete', {'reason': 'max_output_tokens'}))
        same([x['status'] for x in response['output']], ['incomplete'])


def a_response_is_continued_by_its_id():
    first = ask('/v1/responses', input=QUESTION, metadata={'a': 'b'})
    second = ask('/v1/responses', input='And 1 + 1?', previous_response_id=first['id'], instructions='Add.')
    items = [user(QUESTION), *first['output'], user('And 1 + 1?')]
    whole = ask('/v1/responses', input=items, instructions='Add.', store=False)
    same(parts(second), parts(whole))
    same(second['usage']['input_tokens'], whole['usage']['input_tokens'])
    third = ask('/v1/responses', input='Go on.', previous_response_id=second['id'], max_output_tokens=4)
    same(json.loads(send('GET', '/v1/responses/' + first['id'])), first)
    same(first['metadata'], {'a': 'b'})
    given = json.loads(send('GET', f'/v1/responses/{second["id"]}/input_items'))
    same([x['content'] for x in given['data']], ['And 1 + 1?'])
    # What continues a deleted response stays whole.
    send('DELETE', '/v1/responses/' + first['id'])
    send('GET', '/v1/responses/' + first['id'], status=404)
    send('DELETE', '/v1/responses/' + first['id'], status=404)
    again = ask('/v1/responses', input='Go on.', previous_response_id=second['id'], max_output_tokens=4)
    same(again['usage']['input_tokens'], third['usage']['input_tokens'])
    send('GET', '/v1/responses/' + whole['id'], status=404)
    error = ask('/v1/responses', 400, input='x', previous_response_id=first['id'])['error']
    same((error['param'], error['code']), ('previous_response_id', 'previous_response_not_found'))


def a_text_that_is_cut_goes_on_without_a_newline():
    def count(*items):
        return ask('/v1/responses/input_tokens', input=[user(QUESTION), *items, user('x')])['input_tokens']

    said = lambda text, **more: {'type': 'message', 'role': 'assistant', 'content': text, **more}
    thought = lambda text, **more: {'type': 'reasoning', 'summary': [], 'content': [
        {'type': 'reasoning_text', 'text': text}], **more}
    cut = {'status': 'incomplete'}
    whole = count(said('The river and the sea'))
    same(count(said('The river', **cut), said(' and the sea')), whole)
    same(count(said('The river'), said('and the sea')), count(said('The river\nand the sea')))
    same(count(thought('The river', **cut), thought(' and the sea'), said('x')),
         count(thought('The river and the sea'), said('x')))
    # The same by the id of the response, also after a beginning that the client gave.
    for begin in [said('The'), said(' '.join(['The river and the sea'] * 3))]:
        first = ask('/v1/responses', input=[user(QUESTION), begin], max_output_tokens=2, reasoning={'effort': 'none'})
        text = parts(first)[1]
        second = ask('/v1/responses', input=[user('x')], previous_response_id=first['id'], max_output_tokens=1)
        same(second['usage']['input_tokens'], count(said(begin['content'] + text)))


def a_response_calls_functions():
    forced = chat(messages=[user(QUESTION)], tools=[CHAT_TOOL], tool_choice='required',
                  parallel_tool_calls=False)['choices'][0]['message']
    function = forced['tool_calls'][0]['function']
    for choice in ['required', {'type': 'function', 'name': 'add'},
                   {'type': 'allowed_tools', 'mode': 'required', 'tools': [{'type': 'function', 'name': 'add'}]}]:
        body = {'input': QUESTION, 'tools': [FLAT_TOOL, {'type': 'web_search'}], 'tool_choice': choice,
                'parallel_tool_calls': False}
        # A form of texts does not concern an answer that is a call; clients send both.
        form = {'text': {'format': {'type': 'json_schema', 'name': 'x', 'schema': {'const': 1}}}}
        for response in [ask('/v1/responses', **body), check_events(stream('/v1/responses', **body)),
                         ask('/v1/responses', **body, **form)]:
            same(parts(response)[2], [(function['name'], function['arguments'])])
            same(response['status'], 'completed')
    call = response['output'][-1]
    back = [user(QUESTION), *response['output'],
            {'type': 'function_call_output', 'call_id': call['call_id'],
             'output': [{'type': 'input_text', 'text': '85'}]}]
    n = ask('/v1/responses/input_tokens', input=back, tools=[FLAT_TOOL])['input_tokens']
    history = [user(QUESTION), {**forced, 'content': forced.get('content') or ''},
               {'role': 'tool', 'tool_call_id': 'x', 'content': '85'}]
    same(n, chat(messages=history, tools=[CHAT_TOOL], max_tokens=1)['usage']['prompt_tokens'])


def functions_of_a_namespace_have_both_names():
    space = {'type': 'namespace', 'name': 'mcp__files__', 'description': 'x',
             'tools': [{'type': 'function', 'name': 'add', 'parameters': ADD}]}
    body = {'input': QUESTION, 'tools': [space], 'tool_choice': 'required'}
    for response in [ask('/v1/responses', **body), check_events(stream('/v1/responses', **body))]:
        call = [x for x in response['output'] if x['type'] == 'function_call'][0]
        same((call['namespace'], call['name']), ('mcp__files__', 'add'))
    output = {'type': 'function_call_output', 'call_id': call['call_id'], 'output': '85'}
    joined = {**call, 'name': 'mcp__files__add', 'namespace': None}
    counts = [ask('/v1/responses/input_tokens', input=[user(QUESTION), x, output])['input_tokens']
              for x in [call, joined]]
    same(counts[0], counts[1])


def numbers_beyond_64_bits_come_back_as_written():
    most = {'type': 'integer', 'maximum': 2**64 - 1}
    body = {'input': QUESTION, 'tools': [{**FLAT_TOOL, 'parameters': {'type': 'object', 'properties': {'a': most}}}],
            'metadata': {'run': 10**30}, 'tool_choice': 'none', 'max_output_tokens': 2}
    whole = ask('/v1/responses', **body)
    for response in [whole, stream('/v1/responses', **body)[-1]['response'],
                     json.loads(send('GET', '/v1/responses/' + whole['id']))]:
        same(response['tools'][0]['parameters']['properties']['a'], most)
        same(response['metadata'], {'run': 10**30})


def one_answer_may_be_asked_for():
    ask('/v1/responses', input=QUESTION, n=1, max_output_tokens=1)
    ask('/v1/messages', messages=[user(QUESTION)], n=1, max_tokens=1)


def thinking_comes_back_whole():
    body = {'input': QUESTION, 'include': ['reasoning.encrypted_content'], 'store': False}
    response = check_events(stream('/v1/responses', **body))
    thought = response['output'][0]
    bare = {'type': 'reasoning', 'id': thought['id'], 'summary': [],
            'encrypted_content': thought['encrypted_content']}
    foreign = {**bare, 'encrypted_content': 'gAAAA'}
    count = lambda item: ask('/v1/responses/input_tokens',
                             input=[user(QUESTION), item, *response['output'][1:], user('x')])['input_tokens']
    same(count(thought), count(bare))
    assert count(foreign) < count(bare)
    hidden = {'messages': [user(QUESTION)], 'thinking': {'type': 'adaptive', 'display': 'omitted'}}
    said = ask('/v1/messages', **hidden)['content']
    same(blocks_of(stream('/v1/messages', **hidden))[0], said)
    same((said[0]['type'], said[0]['thinking']), ('thinking', ''))
    shown = ask('/v1/messages', messages=[user(QUESTION)])['content']
    same([count_messages(user(QUESTION), {'role': 'assistant', 'content': x}, user('x')) for x in [said]],
         [count_messages(user(QUESTION), {'role': 'assistant', 'content': shown}, user('x'))])


# ---- messages ----

def count_messages(*messages, **more):
    return ask('/v1/messages/count_tokens', messages=list(messages), **more)['input_tokens']


def blocks_of(events):
    """Checks the order of a message's events; returns its blocks and the last delta."""
    same(events[0]['type'], 'message_start')
    same(events[0]['message']['content'], [])
    same(events[-1]['type'], 'message_stop')
    same(events[-2]['type'], 'message_delta')
    blocks, text = [], None
    for e in [e for e in events[1:-2] if e['type'] != 'ping']:
        if e['type'] == 'content_block_start':
            assert text is None
            same(e['index'], len(blocks))
            blocks.append(e['content_block'])
            text = ''
        elif e['type'] == 'content_block_delta':
            same(e['index'], len(blocks) - 1)
            delta = e['delta']
            if delta['type'] == 'signature_delta':
                blocks[-1]['signature'] = delta['signature']
            else:
                name = {'text_delta': 'text', 'thinking_delta': 'thinking',
                        'input_json_delta': 'partial_json'}[delta['type']]
                text += delta[name]
        else:
            same((e['type'], e['index']), ('content_block_stop', len(blocks) - 1))
            last = blocks[-1]
            if last['type'] == 'tool_use':
                last['input'] = json.loads(text)
            else:
                last[last['type']] = text
            text = None
    assert text is None
    return blocks, events[-2]


def a_message_says_what_a_chat_says():
    reply = chat(messages=[{'role': 'system', 'content': 'Be brief.'}, user(QUESTION)])
    said = reply['choices'][0]['message']
    for system in ['Be brief.', [{'type': 'text', 'text': 'Be brief.', 'cache_control': {'type': 'ephemeral'}}]]:
        for content in [QUESTION, [{'type': 'text', 'text': QUESTION}]]:
            body = {'messages': [user(content)], 'system': system, 'max_tokens': 200}
            whole = ask('/v1/messages?beta=true', **body)
            same([x[x['type']] for x in whole['content']], [said['reasoning_content'], said['content']])
            same((whole['stop_reason'], whole['stop_sequence']), ('end_turn', None))
            usage = whole['usage']
            same(usage['input_tokens'] + usage['cache_read_input_tokens'], reply['usage']['prompt_tokens'])
            assert usage['cache_read_input_tokens'] > 0
            blocks, last = blocks_of(stream('/messages', **body))
            same(blocks, whole['content'])
            same(last['usage'], usage)
            same(last['delta'], {'stop_reason': 'end_turn', 'stop_sequence': None})
            same(count_messages(*body['messages'], system=system), reply['usage']['prompt_tokens'])


def a_message_says_why_it_ends():
    body = {'messages': [user(QUESTION)], 'thinking': {'type': 'disabled'}}
    text = ask('/v1/messages', **body)['content']
    same([x['type'] for x in text], ['text'])
    stop = text[0]['text'][-1]
    for reply in [ask('/v1/messages', **body, stop_sequences=['zzz', stop]),
                  blocks_of(stream('/v1/messages', **body, stop_sequences=['zzz', stop]))[1]['delta']]:
        same((reply['stop_reason'], reply['stop_sequence']), ('stop_sequence', stop))
    cut = ask('/v1/messages', messages=[user(QUESTION)], max_tokens=2)
    same((cut['stop_reason'], cut['usage']['output_tokens']), ('max_tokens', 2))


def a_message_calls_tools():
    forced = chat(messages=[user(QUESTION)], tools=[CHAT_TOOL], tool_choice='required',
                  parallel_tool_calls=False)['choices'][0]['message']
    arguments = json.loads(forced['tool_calls'][0]['function']['arguments'])
    for choice in [{'type': 'any', 'disable_parallel_tool_use': True},
                   {'type': 'tool', 'name': 'add', 'disable_parallel_tool_use': True}]:
        body = {'messages': [user(QUESTION)], 'tool_choice': choice,
                'tools': [TOOL, {'type': 'web_search_20250305', 'name': 'web_search', 'max_uses': 5}]}
        whole = ask('/v1/messages', **body)
        same(whole['stop_reason'], 'tool_use')
        blocks, last = blocks_of(stream('/v1/messages', **body))
        same(last['delta']['stop_reason'], 'tool_use')
        for found in [whole['content'][-1], blocks[-1]]:
            same((found['type'], found['name'], found['input']), ('tool_use', 'add', arguments))
    use = whole['content'][-1]
    history = [user(QUESTION), {**forced, 'content': forced.get('content') or ''},
               {'role': 'tool', 'tool_call_id': 'x', 'content': 'Error: 85'}, user('Go on.\nNow.')]
    n = chat(messages=history, tools=[CHAT_TOOL], max_tokens=1)['usage']['prompt_tokens']
    for result in ['85', [{'type': 'text', 'text': '85'}]]:
        answer = [{'type': 'redacted_thinking', 'data': 'x'}, *whole['content']]
        back = [{'type': 'tool_result', 'tool_use_id': use['id'], 'content': result, 'is_error': True},
                {'type': 'text', 'text': 'Go on.', 'cache_control': {'type': 'ephemeral'}},
                {'type': 'text', 'text': 'Now.'}]
        same(count_messages(user(QUESTION), {'role': 'assistant', 'content': answer},
                            user(back), tools=[TOOL]), n)
    same(count_messages(user(QUESTION), tools=[TOOL], tool_choice={'type': 'none'}),
         count_messages(user(QUESTION)))


def a_line_that_changes_costs_no_prefix():
    line = 'x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=%s;'
    words = 'You are an agent. ' * 20
    plain = count_messages(user('Hi'), system=words)
    same(count_messages(user('Hi'), system=line % 1 + '\n' + words), plain)
    for i in range(3):
        system = [{'type': 'text', 'text': line % i}, {'type': 'text', 'text': words}]
        same(count_messages(user('Hi'), system=system), plain)
        usage = ask('/v1/messages', messages=[user('Hi')], system=system, max_tokens=1)['usage']
        assert i == 0 or usage['input_tokens'] < 10, usage
    # Elsewhere it is text.
    assert count_messages(user(line % 1)) > count_messages(user('x')) + 10


def answers_fit_a_schema():
    schema = {'type': 'object', 'properties': {'x': {'enum': [3]}}, 'required': ['x'],
              'additionalProperties': False}
    response = ask('/v1/responses', input='Give x.', reasoning={'effort': 'none'},
                   text={'format': {'type': 'json_schema', 'name': 'n', 'schema': schema, 'strict': True}})
    same(json.loads(parts(response)[1]), {'x': 3})
    same(parts(response)[0], '')
    for place in [{'output_config': {'format': {'type': 'json_schema', 'schema': schema}}},
                  {'output_format': {'type': 'json_schema', 'schema': schema}}]:
        text = ask('/v1/messages', messages=[user('Give x.')], thinking={'type': 'disabled'}, **place)
        same(json.loads(text['content'][0]['text']), {'x': 3})


# ---- the shapes of agents ----

TURNS = 30


def codex(items):
    tool = lambda i: {'type': 'function', 'name': f'tool_{i}', 'description': 'Does it. ' * 3, 'strict': False,
                      'parameters': ADD}
    return {'model': 'gpt', 'instructions': 'You are a coding agent. ' * 10,
            'input': [{'type': 'message', 'role': 'developer',
                       'content': [{'type': 'input_text', 'text': '<permissions>all</permissions>'}]},
                      {'type': 'message', 'role': 'user', 'content': [
                          {'type': 'input_text', 'text': '<environment_context>x</environment_context>'}]},
                      *items],
            'tools': [*map(tool, range(20)), {'type': 'web_search', 'external_web_access': False},
                      {'type': 'local_shell'},
                      {'type': 'custom', 'name': 'apply_patch', 'format': {'type': 'grammar', 'syntax': 'lark',
                                                                           'definition': 'x'}}],
            'tool_choice': 'auto', 'parallel_tool_calls': False, 'store': False,
            'reasoning': {'effort': 'medium', 'summary': 'auto'}, 'include': ['reasoning.encrypted_content'],
            'prompt_cache_key': 'x', 'client_metadata': {'a': 'b'}, 'text': {'verbosity': 'low'}}


def claude_code(messages):
    tool = lambda i: {'name': f'Tool{i}', 'description': 'Does it. ' * 3, 'input_schema': {
        '$schema': 'https://json-schema.org/draft/2020-12/schema', **ADD}}
    ephemeral = {'type': 'ephemeral'}
    return {'model': 'claude', 'max_tokens': 6, 'messages': messages, 'tools': [*map(tool, range(20))],
            'system': [{'type': 'text', 'text': f'x-anthropic-billing-header: cch={len(messages)};'},
                       {'type': 'text', 'text': 'You are Claude Code.', 'cache_control': ephemeral},
                       {'type': 'text', 'text': 'Be careful.\n' * 20, 'cache_control': ephemeral}],
            'metadata': {'user_id': 'user_x'}, 'thinking': {'type': 'enabled', 'budget_tokens': 1024},
            'context_management': {'edits': [{'type': 'clear_thinking_20251015', 'keep': 'all'}]},
            'output_config': {'effort': 'high'}}


def codex_works_in_a_loop():
    items = [{'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': 'Do it.'}]}]
    cached = 0
    for turn in range(TURNS):
        response = check_events(stream('/v1/responses', **codex(items), max_output_tokens=6))
        usage, before = response['usage'], cached
        cached = usage['input_tokens_details']['cached_tokens']
        assert turn == 0 or usage['input_tokens'] - cached < 90 and cached > before, (turn, before, usage)
        items += [{'type': 'reasoning', 'summary': [], 'content': None, 'encrypted_content': 'moeflux:Hm.'},
                  {'type': 'function_call', 'name': 'tool_1', 'arguments': '{"a": 1, "b": 2}',
                   'call_id': f'call_{turn}'},
                  {'type': 'function_call_output', 'call_id': f'call_{turn}', 'output': 'The result. ' * 3}]


def calls_of_another_server_stay_in_the_history():
    call = lambda name, arguments, output: [
        {'type': 'function_call', 'call_id': 'c', 'name': name, 'arguments': json.dumps(arguments)},
        {'type': 'function_call_output', 'call_id': 'c', 'output': output}]
    count = lambda *items: ask('/v1/responses/input_tokens', input=[user(QUESTION), *items])['input_tokens']
    same(count({'type': 'custom_tool_call', 'call_id': 'c', 'name': 'apply_patch', 'input': '*** Begin'},
               {'type': 'custom_tool_call_output', 'call_id': 'c', 'output': 'Done.'}),
         count(*call('apply_patch', {'input': '*** Begin'}, 'Done.')))
    action = {'type': 'exec', 'command': ['ls']}
    same(count({'type': 'local_shell_call', 'call_id': 'c', 'status': 'completed', 'action': action},
               {'type': 'local_shell_call_output', 'call_id': 'c', 'output': 'x'}),
         count(*call('local_shell', {'action': action}, 'x')))
    same(count({'type': 'web_search_call', 'status': 'completed', 'action': {'type': 'search', 'query': 'x'}},
               {'type': 'message', 'role': 'assistant', 'content': 'y'}),
         count({'type': 'message', 'role': 'assistant', 'content': 'y'}))
    error = ask('/v1/responses', 400, input=[{'type': 'custom_tool_call', 'call_id': 'c', 'name': 'x'}])['error']
    assert 'input[0].input' in error['message'], error


def claude_code_works_in_a_loop():
    ephemeral = {'type': 'ephemeral'}
    messages = [user([{'type': 'text', 'text': '<system-reminder>x</system-reminder>'},
                      {'type': 'text', 'text': 'Do it.', 'cache_control': ephemeral}])]
    cached = 0
    for turn in range(TURNS):
        events = stream('/v1/messages?beta=true', **claude_code(messages))
        usage, before = blocks_of(events)[1]['usage'], cached
        cached = usage['cache_read_input_tokens']
        assert turn == 0 or usage['input_tokens'] < 90 and cached > before, (turn, before, usage)
        body = {k: v for k, v in claude_code(messages).items() if k in ('messages', 'tools', 'system', 'thinking')}
        same(ask('/v1/messages/count_tokens?beta=true', **body)['input_tokens'], cached + usage['input_tokens'])
        messages += [{'role': 'assistant', 'content': [
            {'type': 'thinking', 'thinking': 'Hm.', 'signature': 'moeflux:'},
            {'type': 'tool_use', 'id': f'toolu_{turn}', 'name': 'Tool1', 'input': {'a': 1, 'b': 2}}]},
            user([{'tool_use_id': f'toolu_{turn}', 'type': 'tool_result', 'content': 'The result. ' * 3,
                   'cache_control': ephemeral}])]


# ---- errors, keys, paths ----

def wrong_bodies_are_refused_by_name():
    message = lambda x: {'messages': [user([x])]}
    wrong = [({'input': [user([{'type': 'input_image', 'image_url': 'x'}])]}, 'input[0].content[0]', 'input_image'),
             ({'input': [{'type': 'computer_call'}]}, 'input[0]', 'computer_call'),
             ({'input': 5}, 'input', 'a number'), ({}, 'input', 'nothing'), ({'input': []}, 'input', 'one item'),
             ({'input': 'x', 'n': 2}, 'n', 'not supported'),
             ({'input': [{'type': 'function_call', 'name': 'x'}]}, 'input[0]', 'call_id'),
             ({'input': 'x', 'max_output_tokens': 'many'}, 'max_output_tokens', 'whole number'),
             ({'input': 'x', 'text': {'format': {'type': 'xml'}}}, 'text.format', 'xml'),
             ({'input': 'x', 'tools': [{'type': 'function'}]}, 'tools[0]', 'name'),
             ({'input': 'x', 'tool_choice': {'type': 'mcp'}}, 'tool_choice', 'function'),
             ({'input': 'x', 'background': True}, 'background', 'not supported'),
             ({'input': 'x', 'conversation': 'c'}, 'conversation', 'not supported'),
             ({'input': 'x', 'temperature': -1}, 'temperature', '-1'),
             ({'input': 'x', 'samplers': ['top_k']}, 'samplers', 'not supported'),
             ({'input': 'x', 'add_special_tokens': True}, 'add_special_tokens', 'not supported')]
    for body, *words in wrong:
        error = ask('/v1/responses', 400, **body)['error']
        assert all(w in error['message'] for w in words), (body, error)
        same(error['type'], 'invalid_request_error')
    wrong = [(message({'type': 'image', 'source': {}}), 'messages[0].content[0]', '"image"'),
             (message({'type': 'tool_result', 'tool_use_id': 'x', 'content': [{'type': 'image'}]}),
              'messages[0].content[0].content[0]', '"image"'),
             (message({'type': 'tool_use', 'id': 'x', 'name': 'y', 'input': {}}), 'tool_use', 'user'),
             (message({'type': 'tool_result'}), 'tool_use_id', 'nothing'),
             ({'messages': []}, 'messages'), ({}, 'messages'), ({'messages': [{'role': 'tool'}]}, 'role'),
             ({**message({'type': 'text', 'text': 'x'}), 'system': 5}, 'system', 'a number'),
             ({**message({'type': 'text', 'text': 'x'}), 'stop_sequences': [5]}, 'stop_sequences'),
             ({**message({'type': 'text', 'text': 'x'}), 'thinking': {'type': 'much'}}, 'thinking'),
             ({**message({'type': 'text', 'text': 'x'}), 'tool_choice': {'type': 'some'}}, 'tool_choice', 'some'),
             ({**message({'type': 'text', 'text': 'x'}), 'mcp_servers': [{'url': 'x'}]}, 'mcp_servers')]
    for body, *words in wrong:
        reply = ask('/v1/messages', 400, **body)
        assert all(w in reply['error']['message'] for w in words), (body, reply)
        same((reply['type'], reply['error']['type']), ('error', 'invalid_request_error'))


def a_prompt_that_is_too_long_is_said_so():
    long = user('word ' * 12000)
    n = count_messages(long)
    same(ask('/v1/messages', 400, messages=[long])['error']['message'],
         f'prompt is too long: {n} tokens > 8192 maximum')
    same(ask('/v1/responses', 400, input=[long])['error']['code'], 'context_length_exceeded')
    assert n > 8192


def a_key_may_be_in_three_headers():
    for headers in [{'X-Api-Key': KEY}, {'api-key': KEY}, {'Authorization': 'bearer ' + KEY},
                    {'Authorization': 'Bearer wrong', 'x-api-key': KEY}]:
        send('GET', '/v1/models', headers=headers)
    for headers in [{'X-Api-Key': KEY + 'x'}, {'api-key': ''}, {'Cookie': KEY}]:
        send('GET', '/v1/models', headers=headers, status=401)
    reply = json.loads(send('POST', '/v1/messages', {}, {'X-Api-Key': 'x'}, 401))
    same((reply['type'], reply['error']['type']), ('error', 'authentication_error'))


def models_and_properties_are_there():
    same(json.loads(send('GET', '/props'))['default_generation_settings']['params']['temperature'], 0.7)
    model = json.loads(send('GET', '/v1/models'))['data'][0]
    same((model['context_length'], model['max_model_len'], model['max_input_tokens']), (8192,) * 3)
    assert model['meta']['expert_format'] and model['created_at'].endswith('Z')
    for path in ['/models', '/v1/models/', '/models/']:
        same(json.loads(send('GET', path))['data'], [model])
    same(json.loads(send('GET', '/models/tiny')), model)
    send('GET', '/v1/models/none', status=404)
    props = json.loads(send('GET', '/props'))
    same(props['default_generation_settings']['n_ctx'], 8192)
    same((props['total_slots'], props['model_alias']), (1, 'tiny'))
    assert 'reasoning_content' in props['chat_template']


def prompts_can_be_read():
    body = {'messages': [user('Hi')], 'tools': [CHAT_TOOL]}
    prompt = ask('/apply-template', **body)['prompt']
    assert prompt.endswith('<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n') and 'adds' in prompt
    same(len(ask('/v1/tokenize', content=prompt)['tokens']), chat(**body, max_tokens=1)['usage']['prompt_tokens'])


def other_kinds_of_models_are_refused_by_name():
    for path in ['/v1/embeddings', '/rerank', '/v1/infill', '/api/chat', '/completion']:
        error = ask(path, 404)['error']
        assert path in error['message'] and error['code'] == 'unsupported_endpoint', error
    send('GET', '/api/tags', status=404)
    send('POST', '/v1/', {}, status=404)
    send('GET', '/v1/messages', status=405)


CLAIMS = [a_response_says_what_a_chat_says, a_response_that_is_cut_is_incomplete,
          a_response_is_continued_by_its_id, a_text_that_is_cut_goes_on_without_a_newline, a_response_calls_functions,
          functions_of_a_namespace_have_both_names, numbers_beyond_64_bits_come_back_as_written,
          one_answer_may_be_asked_for,
          thinking_comes_back_whole,
          a_message_says_what_a_chat_says, a_message_says_why_it_ends, a_message_calls_tools,
          a_line_that_changes_costs_no_prefix, answers_fit_a_schema, codex_works_in_a_loop,
          calls_of_another_server_stay_in_the_history,
          claude_code_works_in_a_loop, wrong_bodies_are_refused_by_name, a_prompt_that_is_too_long_is_said_so,
          a_key_may_be_in_three_headers, models_and_properties_are_there, prompts_can_be_read,
          other_kinds_of_models_are_refused_by_name]

failed = 0
for claim in CLAIMS:
    try:
        claim()
        print('[       OK ]', claim.__name__)
    except (AssertionError, KeyError, IndexError, ValueError, OSError):
        traceback.print_exc(file=sys.stdout)
        print('[  FAILED  ]', claim.__name__)
        failed += 1
sys.exit(failed > 0)
