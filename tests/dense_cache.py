"""A cache of one sequence in plain arrays, with a dense mask: attention by the rules of a spec's layer groups."""

import numpy as np


class DenseCache:
    """What a model needs of a cache and a step, both in one; keeps every token, and hides what a window hides."""

    def __init__(self, spec, room):
        self._windows = [spec.groups[spec.locate(layer)[0]].window or room for layer in range(spec.layers)]
        self._k = np.empty((spec.layers, spec.kv_heads, room, spec.head_dim), np.float32)
        self._v = np.empty((spec.layers, spec.kv_heads, room, spec.v_head_dim), np.float32)
        self._length = 0

    def extend(self, count):
        """Say that `count` new tokens come; the step is the cache itself."""
        self.positions = self._length + np.arange(count)
        self.qo_indptr = np.array([0, count])
        self._length += count
        return self

    def attend(self, layer, q, k, v, step):
        length = self._length
        self._k[layer][:, step.positions] = k.swapaxes(0, 1)
        self._v[layer][:, step.positions] = v.swapaxes(0, 1)
        keys, values = self._k[layer][:, None, :length], self._v[layer][:, None, :length]  # [kv_heads, 1, length, dim]
        queries = q.swapaxes(0, 1).reshape(len(keys), -1, *q.shape[::2])  # [kv_heads, query heads of each, tokens, dim]
        behind = step.positions[:, None] - np.arange(length)
        seen_by = (behind >= 0) & (behind < self._windows[layer])
        scores = np.where(seen_by, queries @ keys.swapaxes(2, 3) / np.float32(np.sqrt(q.shape[-1])), -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weight / weight.sum(-1, keepdims=True) @ values
        return seen.reshape(q.shape[1], len(q), -1).swapaxes(0, 1)
