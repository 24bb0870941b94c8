"""Adds a layer of multi-token prediction to a GGUF file, or replaces what it has of one: the tensors of its last
layer with attention once more, and a join that halves the embedding and the hidden state. With several residual
streams it also has the model's last mix once more. ALONE: RESULT has only the layer and the embedding, and its mix has
the names of a model's.
usage: gguf_drafter.py SOURCE RESULT [ALONE]"""
import struct, sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32, F32, ALIGNMENT = 8, 9, 4, 0, 32


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, form):
        return struct.unpack('<' + form, self.take(struct.calcsize(form)))[0]

    def text(self):
        return self.take(self.number('Q')).decode()

    def skip(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            item, n = self.number('I'), self.number('Q')
            for _ in range(n):
                self.skip(item)
        else:
            self.take(SIZES[kind])


def text(s):
    return struct.pack('<Q', len(s)) + s.encode()


def main():
    data = open(sys.argv[1], 'rb').read()
    r = Reader(data)
    r.take(8)
    n_tensors, n_keys = r.number('Q'), r.number('Q')
    keys = []
    for _ in range(n_keys):
        name, kind = r.text(), r.number('I')
        at = r.at
        r.skip(kind)
        keys.append((name, kind, data[at:r.at]))
    tensors = []
    for _ in range(n_tensors):
        name, n = r.text(), r.number('I')
        tensors.append([name, struct.unpack(f'<{n}Q', r.take(8 * n)), r.number('I'), r.number('Q')])
    alignment = next((struct.unpack('<I', v)[0] for k, _, v in keys if k == 'general.alignment'), ALIGNMENT)
    start = -(-r.at // alignment) * alignment
    ends = sorted(t[3] for t in tensors) + [len(data) - start]
    bodies = [(t[0], t[1], t[2], data[start + t[3]:start + ends[ends.index(t[3]) + 1]]) for t in tensors]
    arch = next(v for k, _, v in keys if k == 'general.architecture')[8:].decode()
    numbers = {k: struct.unpack('<I', v)[0] for k, t, v in keys if t == U32}
    layers = numbers[arch + '.block_count'] - numbers.get(arch + '.nextn_predict_layers', 0)
    changed = {arch + '.block_count': layers + 1, arch + '.nextn_predict_layers': 1}
    keys = [k for k in keys if k[0] not in changed] + [(k, U32, struct.pack('<I', n)) for k, n in changed.items()]
    bodies = [b for b in bodies if not b[0].startswith(f'blk.{layers}.')]
    full = max(int(b[0].split('.')[1]) for b in bodies if b[0].endswith(('.attn_q.weight', '.attn_q_a.weight')))
    hidden = next(b[1][0] for b in bodies if b[0] == 'token_embd.weight')
    last, new = f'blk.{full}.', f'blk.{layers}.'
    bodies += [(new + b[0][len(last):], *b[1:]) for b in bodies if b[0].startswith(last)]
    rows = b''.join(struct.pack(f'<{2 * hidden}f', *(0.5 if c % hidden == i else 0 for c in range(2 * hidden)))
                    for i in range(hidden))
    bodies.append((new + 'nextn.eh_proj.weight', (2 * hidden, hidden), F32, rows))
    mix = [(new + 'nextn.hc_head_' + b[0][len('output_hc_'):], *b[1:]) for b in bodies if b[0].startswith('output_hc_')]
    width = next((b[1][0] for b in mix if b[0].endswith('norm.weight')), hidden)
    bodies += mix
    for name, n in ('enorm', hidden), ('hnorm', width), *([] if mix else [('shared_head_norm', hidden)]):
        bodies.append((f'{new}nextn.{name}.weight', (n,), F32, struct.pack(f'<{n}f', *[1] * n)))
    if sys.argv[3:]:
        prefix = new + 'nextn.hc_head_'
        bodies = [(('output_hc_' + b[0][len(prefix):]) if b[0].startswith(prefix) else b[0], *b[1:]) for b in bodies
                  if b[0].startswith((new, 'token_embd.'))]
    head = data[:8] + struct.pack('<QQ', len(bodies), len(keys))
    head += b''.join(text(k) + struct.pack('<I', t) + v for k, t, v in keys)
    at = 0
    for name, shape, kind, body in bodies:
        head += text(name) + struct.pack(f'<I{len(shape)}QIQ', len(shape), *shape, kind, at)
        at += -(-len(body) // alignment) * alignment
    with open(sys.argv[2], 'wb') as out:
        out.write(head + bytes(-len(head) % alignment))
        for body in bodies:
            out.write(body[3] + bytes(-len(body[3]) % alignment))


if __name__ == '__main__':
    main()
