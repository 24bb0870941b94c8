"""Writes sampler_cases.txt: what the sampler must choose, computed by the plain formulas in floating point.

The sampler itself adds whole numbers; a case whose draw falls within 1e-6 of a border is left out.
usage: tests/data/sampler_cases.py > tests/data/sampler_cases.txt
"""

import math
import random

MASK = (1 << 64) - 1
DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0, "min_keep": 0,
            "xtc_probability": 0.0, "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75,
            "dry_allowed": 2, "dry_last": 64}


def random_of(seed, n):
    """Returns the n-th number of splitmix64."""
    z = (seed + n * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def softmax(logits, ids, temperature):
    best = max(logits[i] for i in ids)
    weights = {i: math.exp((logits[i] - best) / temperature) for i in ids}
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


def in_order(logits, ids):
    return sorted(ids, key=lambda i: (-logits[i], i))


def n_sigma(logits, ids, n):
    mean = sum(logits[i] for i in ids) / len(ids)
    deviation = math.sqrt(sum((logits[i] - mean) ** 2 for i in ids) / len(ids))
    return [i for i in ids if logits[i] >= max(logits[k] for k in ids) - n * deviation]


def first_that_sum(order, p, enough, keep):
    total = 0.0
    for n, i in enumerate(order, 1):
        total += p[i]
        if enough(total) and n >= keep:
            return order[:n]
    return order


def typical(logits, ids, share, keep):
    p = softmax(logits, ids, 1)
    entropy = -sum(x * math.log(x) for x in p.values())
    order = sorted(ids, key=lambda i: (abs(-math.log(p[i]) - entropy), -logits[i], i))
    return first_that_sum(order, p, lambda total: total > share, keep)


def top_p(logits, ids, share, temperature, keep):
    p = softmax(logits, ids, temperature)
    return first_that_sum(in_order(logits, ids), p, lambda total: total >= share, keep)


def min_p(logits, ids, least, temperature, keep):
    p = softmax(logits, ids, temperature)
    order = in_order(logits, ids)
    return [i for n, i in enumerate(order) if n < keep or p[i] >= least * p[order[0]]]


def xtc(logits, ids, threshold, keep):
    p = softmax(logits, ids, 1)
    order = in_order(logits, ids)
    n = sum(p[i] >= threshold for i in order)
    return order if n < 2 or len(order) - (n - 1) < keep else order[n - 1:]


def repetition_ends(text, breakers):
    """Returns how many of the last tokens follow the last breaker."""
    for back in range(len(text)):
        tails = [len(b) - 1 for b in breakers
                 if len(b) <= back + 1 and text[len(text) - 1 - back:][:len(b)] == b]
        if tails:
            return back - max(tails)
    return len(text)


def dry(logits, history, o, breakers):
    text = history[-o["dry_last"]:]
    limit = repetition_ends(text, breakers)
    longest = {}
    if len(text) <= o["dry_allowed"] or limit < o["dry_allowed"]:
        return list(logits)
    for end in range(len(text) - 1):
        n = 0
        while n <= end and text[end - n] == text[-1 - n]:
            n += 1
        n = min(n, limit)
        if n >= o["dry_allowed"] and [text[end + 1]] not in breakers:
            longest[text[end + 1]] = max(n, longest.get(text[end + 1], 0))
    return [x - o["dry_multiplier"] * o["dry_base"] ** (longest[i] - o["dry_allowed"]) if i in longest else x
            for i, x in enumerate(logits)]


def pick(logits, allowed, history, o, breakers, number):
    """Returns the id, and how near the draw is to a border."""
    keep, temperature = o["min_keep"], o["temperature"]
    ids = list(allowed)
    if o["dry_multiplier"] > 0 and o["dry_last"] > 0:
        logits = dry(logits, history, o, breakers)
    if temperature == 0:
        return in_order(logits, ids)[0], 1.0
    if o["top_n_sigma"] > 0:
        ids = n_sigma(logits, ids, o["top_n_sigma"])
    if o["top_k"]:
        ids = in_order(logits, ids)[:o["top_k"]]
    if o["typical_p"] < 1:
        ids = typical(logits, ids, o["typical_p"], keep)
    if o["top_p"] < 1:
        ids = top_p(logits, ids, o["top_p"], temperature, keep)
    if o["min_p"] > 0:
        ids = min_p(logits, ids, o["min_p"], temperature, keep)
    if o["xtc_probability"] > 0 and o["xtc_threshold"] <= 0.5:
        if random_of(number, 1) / 2**64 <= o["xtc_probability"]:
            ids = xtc(logits, ids, o["xtc_threshold"], keep)
    p = softmax(logits, ids, temperature)
    passed, point = 0.0, number / 2**64
    for i in sorted(ids):
        passed += p[i]
        if passed > point:
            return i, min(passed - point, point - (passed - p[i]))
    return sorted(ids)[-1], 0.0


CASES = [
    {"typical_p": 0.5}, {"typical_p": 0.2}, {"typical_p": 0.9, "temperature": 0.5}, {"typical_p": 0.3, "min_keep": 6},
    {"typical_p": 0.7, "top_k": 8}, {"top_n_sigma": 1.0}, {"top_n_sigma": 0.5, "temperature": 3.0},
    {"top_n_sigma": 2.0, "top_k": 5}, {"xtc_probability": 1.0}, {"xtc_probability": 0.5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "temperature": 2.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"xtc_probability": 1.0, "top_k": 4, "min_keep": 3}, {"xtc_probability": 1.0, "temperature": 0.1},
    {"xtc_probability": 0.9, "top_p": 0.9, "min_p": 0.02}, {"top_p": 0.3, "min_keep": 5}, {"min_p": 0.5, "min_keep": 7},
    {"min_keep": 4, "top_p": 0.4, "min_p": 0.9, "temperature": 1.5}, {"dry_multiplier": 0.8},
    {"dry_multiplier": 2.0, "dry_allowed": 1}, {"dry_multiplier": 5.0, "dry_allowed": 0, "dry_last": 12},
    {"dry_multiplier": 3.0, "dry_base": 1.0, "dry_last": 20}, {"dry_multiplier": 0.8, "temperature": 0.0},
    {"dry_multiplier": 0.8, "dry_base": 4.0, "top_k": 10, "typical_p": 0.8, "top_p": 0.95, "min_p": 0.01,
     "xtc_probability": 0.5, "top_n_sigma": 2.5, "min_keep": 2, "temperature": 0.8},
]


def main():
    draw = random.Random(42)
    print("# made by sampler_cases.py: options, seed; logits; allowed ids; text; breakers; picks and the next tokens of the text")
    for number, given in enumerate(CASES * 3):
        o = DEFAULTS | given
        n, seed = draw.choice([12, 40, 70]), draw.getrandbits(40)
        logits = [round(draw.gauss(0, 2) * 64) / 64 for _ in range(n)]
        allowed = list(range(n)) if number % 2 == 0 else sorted(draw.sample(range(n), n * 2 // 3))
        words = draw.choice([2, 3, 5])
        text = [draw.randrange(words) for _ in range(draw.choice([3, 10, 40, 90]))]
        breakers = draw.choice([[], [[1]], [[0, 1]], [[0], [1, 1, 0], [2, 2]]])
        picks, now = [], text
        for k in range(24):
            i, distance = pick(logits, allowed, now, o, breakers, random_of(seed, k + 1))
            picks += [i if distance > 1e-6 else -1, draw.randrange(words)]
            now = now + picks[-1:]
        print("options", *(o[name] for name in DEFAULTS), seed)
        print("logits", n, *logits)
        print("allowed", len(allowed), *allowed)
        print("text", len(text), *text)
        print("breakers", len(breakers), *(x for b in breakers for x in (len(b), *b)))
        print("picks", len(picks) // 2, *picks)


main()
