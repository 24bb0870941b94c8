"""Claims about a server under thousands of requests, for tests/cli/flood.sh.

usage: flood.py URL PID CLAIM [N]"""
import http.client
import json
import random
import socket
import sys
import threading
import time

# A sanitizer on a busy machine needs minutes for what is queued. No limit on speed: it ends a test that hangs.
PATIENCE_S = 900

url, pid, claim = sys.argv[1], int(sys.argv[2]), sys.argv[3]
host, port = url.split('//')[1].rsplit(':', 1)
port = int(port)
N_CLIENTS = 8
MOST_BYTES = 1 << 30


def memory(field):
    with open(f'/proc/{pid}/status') as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(field + ':'))


def connect(source='127.0.0.1'):
    return socket.create_connection((host, port), timeout=PATIENCE_S, source_address=(source, 0))


class Kept(threading.local):
    """A connection of the thread that stays open, and how many requests it has had."""
    connection, n = None, 0


kept = Kept()
n_reused = 0


def send_kept(method, path, body):
    """Sends a request over the thread's open connection. The server closes it after some refusals."""
    global n_reused
    while True:
        is_new = not kept.connection
        if is_new:
            kept.connection, kept.n = http.client.HTTPConnection(host, port, timeout=PATIENCE_S), 0
        try:
            kept.connection.request(method, path, body or None)
            reply = kept.connection.getresponse()
            data = b'HTTP/1.1 %d ' % reply.status + reply.read()
            kept.n += 1
            n_reused += kept.n > 1
            if reply.will_close:
                kept.connection = None
            return data
        except (ConnectionError, http.client.HTTPException):
            kept.connection.close()
            kept.connection = None
            if is_new:
                return b''


def send(method, path, body=b'', headers='', keep=None):
    """Returns the bytes of a reply. keep: bytes of the request that are sent before the client leaves."""
    if keep is None and not headers and random.random() < 0.8:
        return send_kept(method, path, body)
    data = f'{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}'
    data = (data + f'Content-Length: {len(body)}\r\n\r\n').encode() + body
    c = connect()
    try:
        c.sendall(data if keep is None else data[:keep])
        reply = b''
        while keep is None and (more := c.recv(1 << 16)):
            reply += more
        return reply
    except ConnectionError:
        return b''
    finally:
        c.close()


def post(path, body, **more):
    return send('POST', path, json.dumps(body).encode(), **more)


def is_good(reply):
    return reply.startswith(b'HTTP/1.1 200 ')


def one(r):
    """Sends a request of a random kind. Returns whether the reply is as it should be."""
    words = ['river', 'sum', '12', 'caf\u00e9', '{"a"', '<|im_end|>', '\U0001f600']
    text = ' '.join(r.choices(words, k=r.randrange(1, 90)))
    ask = {'messages': [{'role': 'system', 'content': 'Add. ' * 9}, {'role': 'user', 'content': text}],
           'max_tokens': r.randrange(4), 'temperature': r.random(), 'stream': r.random() < 0.5}
    status = lambda n, reply: reply.startswith(b'HTTP/1.1 %d ' % n)
    kinds = [
        (8, lambda: is_good(post('/v1/chat/completions', ask))),
        (3, lambda: is_good(post('/v1/responses', {'input': text, 'instructions': 'Add.', 'max_output_tokens': 3,
                                                   'store': r.random() < 0.5, 'stream': ask['stream']}))),
        (3, lambda: is_good(post('/v1/messages', {**ask, 'messages': ask['messages'][1:], 'system': 'Add.',
                                                  'max_tokens': 3}))),
        (4, lambda: is_good(post('/v1/completions', {'prompt': text, 'max_tokens': 2, 'n': 2, 'logprobs': 3}))),
        (8, lambda: is_good(post('/tokenize', {'content': text * 20, 'with_pieces': True}))),
        (4, lambda: is_good(post('/detokenize', {'tokens': [r.randrange(300) for _ in range(500)]}))),
        (4, lambda: is_good(send('GET', r.choice(['/', '/health', '/metrics', '/v1/models'])))),
        (2, lambda: is_good(post('/v1/completions', {'prompt': 'The', 'max_tokens': 9,
                                                     'grammar': 'root ::= "a"+ "b"'}))),
        (2, lambda: status(400, post('/v1/completions', {'prompt': text, 'temperature': 'hot'}))),
        (2, lambda: status(400, send('POST', '/v1/completions', b'{"prompt": [' * r.randrange(1, 3000)))),
        (2, lambda: status(404, send('GET', '/' + 'x' * r.randrange(1, 5000)))),
        (2, lambda: send('POST', '/v1/completions', bytes(r.randrange(256) for _ in range(300))).count(b' 400 ')),
        (3, lambda: post('/v1/completions', {'prompt': text, 'max_tokens': 500, 'ignore_eos': True},
                         keep=r.randrange(1, 900)) == b''),
        (0.3, lambda: status(400, post('/v1/completions', {'prompt': '1' * 2000000}))),
        (0.3, lambda: post('/tokenize', {'content': 'a ' * 150000}, keep=r.randrange(300000)) == b''),
    ]
    return r.choices([k[1] for k in kinds], [k[0] for k in kinds])[0]()


def flood(n, seed):
    """Sends n requests of several clients."""
    wrong = []

    def client(i):
        for k in range(n // N_CLIENTS):
            try:
                if not one(random.Random(f'{seed} {i} {k}')):
                    wrong.append((seed, i, k))
            except OSError as e:
                wrong.append((seed, i, k, e))

        if kept.connection:
            kept.connection.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def memory_stays_flat_over_mixed_requests():
    n = int(sys.argv[4])
    sizes = []
    for part in range(5):
        flood(n // 5, part)
        sizes.append(memory('VmRSS'))
    print(f'{n} requests, {n_reused} of them over open connections: RSS {[s >> 20 for s in sizes]} MiB, '
          f'peak {memory("VmHWM") >> 20} MiB')
    assert n_reused > n // 4, n_reused
    assert memory('VmHWM') < MOST_BYTES, memory('VmHWM')
    assert sizes[-1] - sizes[1] < 48 << 20, sizes


def a_client_is_served_among_256_hostile_ones():
    stop = threading.Event()
    body = json.dumps({'content': 'a ' * 190000}).encode()
    head = b'POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(body)

    def hostile(i):
        r = random.Random(i)
        while not stop.is_set():
            try:
                c = connect(f'127.0.1.{1 + i // 64}')
                # Half a header, half a body, all of it; then it stays, reads nothing, or goes.
                data = r.choice([head[:r.randrange(1, len(head))], head + body[:r.randrange(1, len(body))], head + body,
                                 bytes(r.randrange(256) for _ in range(99))])
                c.sendall(data)
                stop.wait(r.choice([0, 0.5, 5]))
                c.close()
            except OSError:
                stop.wait(0.1)

    threads = [threading.Thread(target=hostile, args=(i,)) for i in range(256)]
    for t in threads:
        t.start()
    slowest = n_lost = 0
    for i in range(60):
        begin = time.monotonic()
        c = http.client.HTTPConnection(host, port, timeout=PATIENCE_S, source_address=('127.0.0.1', 0))
        try:
            c.request('POST', '/v1/completions', json.dumps({'prompt': 'The river', 'max_tokens': 3}))
            assert c.getresponse().status == 200
        except (ConnectionError, http.client.HTTPException):
            n_lost += 1
        c.close()
        slowest = max(slowest, time.monotonic() - begin)
    stop.set()
    for t in threads:
        t.join()
    print(f'60 requests: {n_lost} lost, the slowest took {slowest:.2f} s, peak {memory("VmHWM") >> 20} MiB')
    assert n_lost <= 3 and memory('VmHWM') < 2 * MOST_BYTES, n_lost


def headers_have_a_minute_to_arrive():
    held = [connect() for _ in range(20)]
    begin, n_open = time.monotonic(), len(held)
    while n_open:
        n_open = 0
        for c in held:
            try:
                c.sendall(b'G')
                c.setblocking(False)
                n_open += c.recv(1) != b''
            except BlockingIOError:
                n_open += 1
            except OSError:
                pass
            c.setblocking(True)
        assert time.monotonic() - begin < PATIENCE_S, n_open
        time.sleep(1)
    assert time.monotonic() - begin > 50


globals()[claim]()
