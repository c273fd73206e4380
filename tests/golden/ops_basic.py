"""The ops of a decoder: what tests/autograd/ops_table_basic_test.cc compares with."""

import math

import torch
import torch.nn.functional as F

from golden import given_ids, golden, normal


@golden(normal(3, 4), normal(3, 4))
def add(a, b):
    return a + b


@golden(normal(3, 4), normal(3, 4))
def mul(a, b):
    return a * b


@golden(normal(3, 4))
def scale(x):
    return -1.75 * x


@golden(normal(3, 5))
def silu(x):
    return F.silu(x)


@golden(normal(3, 5), normal(3, 5))
def silu_mul(gate, up):
    return F.silu(gate) * up


@golden(normal(3, 4), normal(5, 4), name="linear")
@golden(normal(2, 3, 4), normal(5, 4), name="linear of three dimensions")
@golden(normal(4), normal(5, 4), name="linear of a vector")
@golden(normal(4, 4), normal(4, 4), name="linear of a square")
def linear(x, weight):
    return F.linear(x, weight)


@golden(normal(3, 4), normal(4, 2))
def matmul(a, b):
    return a @ b


@golden(normal(4, 3), normal(4, 2), name="matmul a transposed")
def matmul_a(a, b):
    return a.T @ b


@golden(normal(3, 4), normal(2, 4), name="matmul b transposed")
def matmul_b(a, b):
    return a @ b.T


@golden(normal(4, 3), normal(2, 4), name="matmul both transposed")
def matmul_both(a, b):
    return a.T @ b.T


@golden(given_ids([4, 1, 4, 0, 4, 1], 2, 3), normal(5, 3))
def embedding(ids, table):
    return F.embedding(ids, table)


def rms(x, weight, eps):
    return x / torch.sqrt(torch.mean(x * x, -1, keepdim=True) + eps) * weight


@golden(normal(3, 4), normal(4))
def rms_norm(x, weight):
    return rms(x, weight, 1e-5)


@golden(normal(2, 2, 4), normal(4), name="rms_norm of three dimensions")
def rms_norm_3(x, weight):
    return rms(x, weight, 0.1)


def rotate(x, first):
    tokens, half = x.shape[1], x.shape[3] // 2
    position = torch.arange(first, first + tokens, dtype=torch.float64)
    inverse = torch.tensor([10000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    turn = torch.polar(torch.ones(tokens, half, dtype=torch.float64), torch.outer(position, inverse))
    pairs = torch.complex(x[..., :half], x[..., half:]) * turn[None, :, None, :]
    return torch.cat([pairs.real, pairs.imag], -1)


@golden(normal(2, 3, 2, 4))
def rope(x):
    return rotate(x, 0)


@golden(normal(1, 2, 2, 4), name="rope from a later position")
def rope_later(x):
    return rotate(x, 6)


def attend(q, k, v, scale, causal):
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = scale * torch.einsum("bthd,bshd->bhts", q, k)
    if causal:
        t, s = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(t, s).tril(s - t) == 0, -math.inf)
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores, -1), v)


@golden(normal(2, 4, 2, 4), normal(2, 4, 2, 4), normal(2, 4, 2, 4), name="attention causal")
@golden(normal(1, 2, 1, 4), normal(1, 5, 1, 4), normal(1, 5, 1, 4), name="attention causal with earlier keys")
@golden(normal(1, 3, 4, 2), normal(1, 3, 2, 2), normal(1, 3, 2, 2), name="attention with grouped queries")
def attention(q, k, v):
    return attend(q, k, v, 0.5, True)


@golden(normal(1, 3, 2, 4), normal(1, 5, 2, 4), normal(1, 5, 2, 4), name="attention not causal")
def attention_all(q, k, v):
    return attend(q, k, v, 0.5, False)


@golden(normal(2, 6))
def reshape(x):
    return x.reshape(3, 2, 2)


@golden(normal(4, 3), name="slice of the first dimension")
def slice_0(x):
    return x[1:3]


@golden(normal(4, 3), name="slice of the last dimension")
def slice_1(x):
    return x[:, 2:3]


@golden(normal(2, 7), name="split with an unused part")
def split(x):
    first, _, last = x.split([3, 1, 3], 1)
    return first * last


@golden(normal(2, 1, 3), normal(2, 2, 3), normal(2, 3, 3))
def concat(a, b, c):
    return torch.cat([a, b, c], 1)


@golden(normal(1, 3), normal(2, 3), name="concat of the first dimension")
def concat_0(a, b):
    return torch.cat([a, b])


@golden(normal(2, 3))
def sum(x):
    return (x * x).sum().reshape(1)


@golden(normal(4), name="sum beside another use")
def sum_and_silu(x):
    return torch.cat([x.sum().reshape(1), F.silu(x)])


@golden(normal(5, 2), name="overlapping slices")
def overlapping(x):
    return x[0:3] * x[2:5]


@golden(normal(2, 3, 5), given_ids([1, -100, 4, 0, 2, -100], 2, 3), name="causal_lm with ignored labels")
def causal_lm(logits, labels):
    return F.cross_entropy(logits.reshape(-1, 5), labels.reshape(-1), reduction="sum").reshape(1)


@golden(normal(3, 4), given_ids([1, 3, 0], 3), name="causal_lm of i32 labels")
def causal_lm_ignored(logits, labels):
    return F.cross_entropy(logits, labels, ignore_index=3, reduction="sum").reshape(1)
