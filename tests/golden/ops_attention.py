"""Masked attention and scaled rotary positions: what tests/autograd/ops_table_attention_test.cc compares with."""

import math

import torch

from golden import golden, normal


def attend(q, k, v, seen, causal):
    """Softmax over the keys that `seen` [B, S] and causality leave, written out; zeros where none is left."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = 0.5 * torch.einsum("bthd,bshd->bhts", q, k)
    visible = seen[:, None, None, :].expand_as(scores)
    if causal:
        t, s = scores.shape[2:]
        visible = visible & (torch.arange(s)[None, :] <= torch.arange(t)[:, None] + (s - t))
    weights = torch.where(visible, torch.exp(scores), torch.zeros_like(scores))
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total == 0, torch.ones_like(total), total)
    return torch.einsum("bhts,bshd->bthd", weights, v)


MASK = torch.tensor([[0, 1, 1, 1, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]]) != 0
PADDED = [normal(3, 5, 4, 2), normal(3, 5, 2, 2), normal(3, 5, 2, 2)]


@golden(*PADDED, name="a key mask, causal")
def key_mask_causal(q, k, v):
    return attend(q, k, v, MASK, True)


@golden(*PADDED, name="a key mask")
def key_mask(q, k, v):
    return attend(q, k, v, MASK, False)


@golden(normal(3, 2, 2, 4), normal(3, 4, 2, 4), normal(3, 4, 2, 4), name="key lengths")
def key_lengths(q, k, v):
    return attend(q, k, v, torch.arange(4)[None, :] < torch.tensor([4, 2, 0])[:, None], False)


def packed(q, k, v, causal):
    parts = [attend(q[:, a:b], k[:, a:b], v[:, a:b], torch.ones(1, b - a) != 0, causal)
             for a, b in ((0, 2), (2, 3), (3, 7))]
    return torch.cat(parts + [torch.zeros_like(q[:, 7:])], 1)


@golden(normal(1, 8, 4, 2), normal(1, 8, 2, 2), normal(1, 8, 2, 2), name="packed documents, causal")
def packed_causal(q, k, v):
    return packed(q, k, v, True)


@golden(normal(1, 8, 4, 2), normal(1, 8, 2, 2), normal(1, 8, 2, 2), name="packed documents")
def packed_all(q, k, v):
    return packed(q, k, v, False)


THETA = 10000.0
CHANNELS = 16
POSITIONS = 1500  # of the tables
FIRST = 1490  # the position of the first token


def rotate(x, frequencies, factor=1.0):
    """Rotates pairs (i, i + D/2) of x [B, T, H, D]."""
    angle = (FIRST + torch.arange(x.shape[1], dtype=torch.float64))[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = factor * torch.cos(angle)[None, :, None], factor * torch.sin(angle)[None, :, None]
    a, b = x.split(CHANNELS // 2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def plain(theta=THETA):
    return [1.0 / theta ** (2 * i / CHANNELS) for i in range(CHANNELS // 2)]


@golden(normal(1, 3, 2, CHANNELS), name="rope scaled linear")
def linear(x):
    return rotate(x, [f / 8.0 for f in plain()])


@golden(normal(1, 3, 2, CHANNELS), name="rope scaled dynamic")
def dynamic(x):
    grown = THETA * (4.0 * POSITIONS / 512 - 3.0) ** (CHANNELS / (CHANNELS - 2))
    return rotate(x, plain(grown))


@golden(normal(1, 3, 2, CHANNELS), name="rope scaled dynamic within the trained length")
def dynamic_short(x):
    return rotate(x, plain())


@golden(normal(1, 3, 2, CHANNELS), name="rope scaled llama3")
def llama3(x):
    low, high, length, factor = 1.0, 4.0, 8192, 8.0
    frequencies = []
    for f in plain(500000.0):
        turns = length * f / (2 * math.pi)  # within the trained length
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        frequencies.append(keep * f + (1.0 - keep) * f / factor)
    return rotate(x, frequencies)


def yarn_frequencies(factor, length, fast, slow):
    """Pairs that turn often within the trained length keep their frequency, others are interpolated."""
    def pair(turns):
        return CHANNELS * math.log(length / (2 * math.pi * turns)) / (2 * math.log(THETA))
    first, last = max(0, math.floor(pair(fast))), min(CHANNELS - 1, math.ceil(pair(slow)))
    out = []
    for i, f in enumerate(plain()):
        share = min(1.0, max(0.0, (i - first) / (last - first)))
        out.append((1.0 - share) * f + share * f / factor)
    return out


@golden(normal(1, 3, 2, CHANNELS), name="rope scaled yarn")
def yarn(x):
    return rotate(x, yarn_frequencies(4.0, 1024, 32.0, 1.0), 0.1 * math.log(4.0) + 1.0)


@golden(normal(1, 3, 2, CHANNELS), name="rope scaled yarn with options of its own")
def yarn_options(x):
    return rotate(x, yarn_frequencies(16.0, 4096, 20.0, 2.0), 1.25)
