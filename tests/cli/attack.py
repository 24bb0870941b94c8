"""Claims about a server that is attacked, for tests/cli/attack.sh. Ends with a traceback if the claim does not hold.

usage: attack.py URL CLAIM [ARGUMENT...]"""
import http.client
import json
import os
import socket
import sys
import threading

from waiting import PATIENCE_S, wait_until

url, claim = sys.argv[1], sys.argv[2]
host, port = url.split('//')[1].rsplit(':', 1)
port = int(port)
MOST_CONNECTIONS = 256
HEAD = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\n'


def connect(source='127.0.0.1'):
    return socket.create_connection((host, port), timeout=PATIENCE_S, source_address=(source, 0))


def call(method, path, body=None, source='127.0.0.1'):
    c = http.client.HTTPConnection(host, port, timeout=PATIENCE_S, source_address=(source, 0))
    c.request(method, path, body if body is None else json.dumps(body))
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def good(path, body, source='127.0.0.1'):
    status, data = call('POST', path, body, source)
    assert status == 200, (status, data[:300])
    return json.loads(data)


def is_served(source='127.0.0.1'):
    assert call('GET', '/health', source=source)[0] == 200
    assert good('/v1/completions', {'prompt': 'The river', 'max_tokens': 2}, source)['choices'][0]['text']


def raw_status(data, what=b''):
    """Returns the status of the first reply."""
    c = connect()
    c.sendall(data)
    reply = b''
    while b'\r\n\r\n' not in reply and (more := c.recv(4096)):
        reply += more
    c.close()
    return int(reply.split()[1])


def is_closed(c):
    """Returns whether the server has closed a connection that it has not answered."""
    c.setblocking(False)
    try:
        return c.recv(1) == b''
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def memory(pid, field):
    with open(f'/proc/{pid}/status') as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(field + ':'))


def refuses_length(path, body):
    status, data = call('POST', path, body)
    e = json.loads(data)['error']
    assert status == 400 and e['code'] == 'context_length_exceeded' and 'context' in e['message'], (status, e)


def texts_that_cannot_fit_are_refused_before_they_are_encoded():
    pid = int(sys.argv[3])
    before = memory(pid, 'VmHWM')
    text = '1' * 4000000
    refuses_length('/tokenize', {'content': text, 'with_pieces': True})
    refuses_length('/v1/completions', {'prompt': text})
    refuses_length('/v1/chat/completions', {'messages': [{'role': 'user', 'content': text}]})
    # Not taken by the bytes, but by the tokens.
    refuses_length('/v1/completions', {'prompt': '1' * 20000})
    assert memory(pid, 'VmHWM') - before < 160 << 20


def token_ids_are_written_while_they_are_sent():
    """A tree of these pieces takes more than 200 MB."""
    pid = int(sys.argv[3])
    text = 'Zq ' * 130000
    before = memory(pid, 'VmHWM')
    pieces = good('/tokenize', {'content': text, 'with_pieces': True})['tokens']
    assert ''.join(p['piece'] for p in pieces) == text and len(pieces) > 200000
    assert memory(pid, 'VmHWM') - before < 120 << 20
    assert good('/tokenize', {'content': text})['tokens'] == [p['id'] for p in pieces]
    assert good('/detokenize', {'tokens': [p['id'] for p in pieces[:1000]]})['content'] == text[:len(
        ''.join(p['piece'] for p in pieces[:1000]))]


def requests_of_clients_that_left_are_not_read():
    pid = int(sys.argv[3])
    body = json.dumps({'messages': [{'role': 'user', 'content': 'a ' * 8000000}]}).encode()
    before = memory(pid, 'VmHWM')
    for _ in range(20):
        c = connect()
        c.sendall(HEAD + b'Content-Length: %d\r\n\r\n' % len(body) + body)
        c.close()
    is_served()
    assert memory(pid, 'VmHWM') - before < 1 << 30


def ambiguous_requests_are_refused():
    host_line, body = b'Host: x\r\n', b'{"content":"a"}'
    post = b'POST /tokenize HTTP/1.1\r\n' + host_line
    length = b'Content-Length: %d\r\n' % len(body)
    for data in (b'GET /health HTTP/1.1\r\n\r\n', b'GET /health HTTP/1.1\r\n' + 2 * host_line + b'\r\n',
                 b'GET /health\0x HTTP/1.1\r\n' + host_line + b'\r\n',
                 b'GET /health%00 HTTP/1.1\r\n' + host_line + b'\r\n',
                 post + length + b'Content-Length: 16\r\n\r\n' + body, post + 2 * length + b'\r\n' + body,
                 post + length + b'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
                 post + b'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n',
                 post + b'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
                 post + b'Content-Length: -1\r\n\r\n' + body, post + b'Content-Length: +15\r\n\r\n' + body):
        assert raw_status(data) == 400, data
    assert raw_status(post + b'Content-Encoding: gzip\r\n' + length + b'\r\n' + body) == 415
    for data in (b'GET /health HTTP/1.0\r\n\r\n', b'GET /health?a=b&c=%00 HTTP/1.1\r\n' + host_line + b'\r\n',
                 post + length + b'\r\n' + body,
                 post + b'Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n' % (len(body), body)):
        assert raw_status(data) == 200, data


def the_second_request_of_an_ambiguous_one_is_not_answered():
    body = b'GET /health HTTP/1.1\r\nHost: x\r\n\r\n'
    c = connect()
    c.sendall(b'POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'
              % len(body) + body)
    reply = b''
    while more := c.recv(4096):
        reply += more
    assert reply.count(b'HTTP/1.1') == 1 and b' 400 ' in reply, reply


def clients_that_send_nothing_keep_nobody_out(per_address=128):
    """The oldest connections whose request has not arrived make way, of the same address or of others."""
    held = []
    for i in range(MOST_CONNECTIONS + 44):
        c = connect(f'127.0.0.{2 + i // per_address}')
        c.sendall((HEAD + b'X: ')[:1 + i % 50])
        held.append(c)
        if i % 40 == 0:
            is_served('127.0.0.2')
    is_served('127.0.0.9')
    is_served()
    wait_until(lambda: sum(not is_closed(c) for c in held) <= MOST_CONNECTIONS, 'the oldest are closed')
    assert is_closed(held[0]) and not is_closed(held[-1])
    for c in held:
        c.close()


def one_address_gets_all_answers_at_once():
    """The server has --parallel 150."""
    body = json.dumps({'prompt': 'The river', 'max_tokens': 5000, 'ignore_eos': True, 'stream': True}).encode()
    held = [connect('127.0.0.2') for _ in range(200)]
    for c in held[:150]:
        c.sendall(HEAD + b'Content-Length: %d\r\n\r\n' % len(body) + body)
    for c in held[:150]:
        assert b' 200 ' in c.recv(100)
    assert not any(is_closed(c) for c in held[150:])
    for c in held:
        c.close()


def one_address_has_its_share():
    """The server has --address-connections 4."""
    body = json.dumps({'prompt': 'The river', 'max_tokens': 5000, 'ignore_eos': True, 'stream': True}).encode()
    held = []
    for _ in range(4):
        c = connect('127.0.0.2')
        c.sendall(HEAD + b'Content-Length: %d\r\n\r\n' % len(body) + body)
        assert b' 200 ' in c.recv(100)
        held.append(c)
    more = connect('127.0.0.2')
    wait_until(lambda: is_closed(more), 'the fifth is closed')
    assert call('GET', '/health', source='127.0.0.3')[0] == 200
    for c in held:
        c.close()
    wait_until(lambda: is_there('127.0.0.2'), 'the address may connect again')


def is_there(source):
    try:
        return call('GET', '/health', source=source)[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def leave_two_conversations_and_half_a_request():
    for name in ('Ann', 'Ben'):
        good('/v1/chat/completions', {'max_tokens': 4, 'messages': [
            {'role': 'system', 'content': f'{name} adds numbers. ' * 20}, {'role': 'user', 'content': '1 + 1?'}]})
    held = [connect() for _ in range(8)]
    for c in held:
        c.sendall(HEAD + b'Content-Length: 16000000\r\n\r\n{"prompt": "')
    print('ready', flush=True)
    # Until the server closes them.
    while not all(is_closed(c) for c in held):
        pass


def a_change_of_the_model_is_reported():
    status, data = call('POST', '/v1/completions', {'prompt': 'The river', 'max_tokens': 2})
    assert status == 500 and sys.argv[3] in json.loads(data)['error']['message'], (status, data)


globals()[claim]()
