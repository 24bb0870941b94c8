"""What the make.py of these folders have in common: random models of mlx-lm, and what goes through them."""

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path, tree_unflatten


def weights_of(model, size=1.0):
    """Random numbers of the sizes that trained models have. size: of the matrices."""
    rng = np.random.default_rng(151)
    out = []
    for name, x in tree_flatten(model.parameters()):
        if "norm" in name:
            value = 1 + 0.1 * rng.standard_normal(x.shape)
        elif name.endswith("A_log"):
            value = rng.uniform(-1, 1, x.shape)
        elif name.endswith("correction_bias"):
            value = 0.1 * rng.standard_normal(x.shape)
        elif name.endswith("dt_bias"):
            value = rng.uniform(-2, 0, x.shape)
        elif name.endswith(".bias"):
            value = 0.5 * rng.standard_normal(x.shape)
        elif name.endswith("sinks"):
            value = 1.5 * rng.standard_normal(x.shape)
        elif "conv1d" in name:
            value = 0.4 * rng.standard_normal(x.shape)
        elif "embed" in name:
            value = rng.standard_normal(x.shape)
        else:
            value = rng.standard_normal(x.shape) * size / np.sqrt(x.shape[-1])
        out.append((name, mx.array(value.astype(np.float32))))
    return tree_unflatten(out)


def with_dtype(model, dtype):
    casts = getattr(model, "cast_predicate", lambda name: True)

    def cast(name, v):
        return v.astype(dtype) if casts(name) and mx.issubdtype(v.dtype, mx.floating) else v

    model.update(tree_map_with_path(cast, model.parameters()))


def run(model, layer, ids, hidden):
    """Logits of all positions; the embedding and the layers' outputs go into `hidden`."""
    original = layer.__call__

    def tapped(self, x, *args, **kwargs):
        if not hidden:
            hidden.append(np.array(x[0]))
        out = original(self, x, *args, **kwargs)
        hidden.append(np.array(out[0]))
        return out

    layer.__call__ = tapped
    try:
        return np.array(model(mx.array([ids]))[0])
    finally:
        layer.__call__ = original


def outputs(model, layer, vocab, prompts, n_greedy, n_whole):
    """Of random prompts of so many tokens: last logits, the greedy continuation and how far the next best token was; of the
    first n_whole prompts all logits and hidden states, too."""
    rng, out = np.random.default_rng(7), {}
    for case, n in enumerate(prompts):
        ids, greedy, gap, hidden = rng.integers(3, vocab, n).tolist(), [], [], []
        logits = run(model, layer, ids, hidden)
        assert logits.dtype == np.float32
        last, more = logits[-1], list(ids)
        for _ in range(n_greedy):
            order = np.sort(last)
            greedy.append(int(np.argmax(last)))
            gap.append(order[-1] - order[-2])
            more.append(greedy[-1])
            last = run(model, layer, more, [])[-1]
        part = {"tokens": np.array(ids, np.int32), "last_logits": logits[-1], "greedy": np.array(greedy, np.int32),
                "gap": np.array(gap, np.float32)}
        if case < n_whole:
            part |= {"logits": logits, "hidden": np.stack(hidden)}
        out.update({f"case{case}.{k}": mx.array(v) for k, v in part.items()})
    return out
