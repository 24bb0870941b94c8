#!/usr/bin/python3
"""Reads and compares safetensors files for the shell tests, with the standard library only.

  tensors.py shape FILE           "name dtype d0xd1..." of each tensor, sorted
  tensors.py ids FILE NAME        an I32 tensor as decimal numbers
  tensors.py perplexity FILE      of the I32 tensor "tokens": row i of "logits" predicts token i + 1
  tensors.py compare A B          mean KL divergence of the rows of "logits" of B from those of A without the
                                  last row, its standard error, percent of rows with the same largest element
  tensors.py diff A NAME B NAME   "max|a - b|  max|b|  elements" of two F32 tensors with equally many elements
"""
import array, json, math, struct, sys


def load(path):
    data = open(path, 'rb').read()
    (n,) = struct.unpack_from('<Q', data)
    header = json.loads(data[8:8 + n])
    header.pop('__metadata__', None)
    end = max(h['data_offsets'][1] for h in header.values())
    assert 8 + n + end == len(data), f'{path}: {len(data)} bytes, the header says {8 + n + end}'
    return header, data[8 + n:]


def values(path, name):
    header, data = load(path)
    a, b = header[name]['data_offsets']
    out = array.array({'I32': 'i', 'F32': 'f'}[header[name]['dtype']], data[a:b])
    assert len(out) == math.prod(header[name]['shape']), f'{path}: {name}: the shape and the bytes differ'
    return out


def log_softmax(numbers, width):
    rows = []
    for at in range(0, len(numbers), width):
        row = list(numbers[at:at + width])
        top = max(row)
        total = top + math.log(math.fsum(math.exp(x - top) for x in row))
        rows.append([x - total for x in row])
    return rows


def main(verb, *words):
    if verb == 'shape':
        for name, h in sorted(load(words[0])[0].items()):
            print(name, h['dtype'], 'x'.join(map(str, h['shape'])))
    elif verb == 'ids':
        print(*values(*words))
    elif verb == 'perplexity':
        tokens, logits = values(words[0], 'tokens'), values(words[0], 'logits')
        width, total = len(logits) // len(tokens), 0
        for i, token in enumerate(tokens[1:]):
            row = logits[i * width:(i + 1) * width]
            top = max(row)
            total += top + math.log(math.fsum(math.exp(x - top) for x in row)) - row[token]
        print('%.4f' % math.exp(total / (len(tokens) - 1)))
    elif verb == 'compare':
        width = load(words[0])[0]['logits']['shape'][1]
        a, b = (log_softmax(values(path, 'logits'), width)[:-1] for path in words)
        assert len(a) == len(b) > 1, (len(a), len(b))
        kl = [math.fsum(math.exp(x) * (x - y) for x, y in zip(p, q)) for p, q in zip(a, b)]
        mean = math.fsum(kl) / len(kl)
        error = math.sqrt(math.fsum((x - mean) ** 2 for x in kl) / (len(kl) - 1) / len(kl))
        same = sum(p.index(max(p)) == q.index(max(q)) for p, q in zip(a, b))
        print('%.12f %.12f %.4f' % (mean, error, 100 * same / len(a)))
    elif verb == 'diff':
        a, b = values(*words[:2]), values(*words[2:])
        assert len(a) == len(b) and len(a), (len(a), len(b))
        assert all(map(math.isfinite, a)), 'not finite'
        print('%.3e %.3e %d' % (max(abs(x - y) for x, y in zip(a, b)), max(map(abs, b)), len(a)))
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
