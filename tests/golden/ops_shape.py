"""Biased and batched products, views and copies: what tests/autograd/ops_table_shape_test.cc compares with."""

import torch
import torch.nn.functional as F

from golden import golden, normal


@golden(normal(3, 4), normal(5, 4), normal(5), name="linear bias")
@golden(normal(2, 3, 4), normal(5, 4), normal(5), name="linear bias of three dimensions")
@golden(normal(4), normal(5, 4), normal(5), name="linear bias of a vector")
def linear(x, weight, bias):
    return F.linear(x, weight, bias)


@golden(normal(2, 3, 4), normal(2, 4, 5), name="matmul batches")
@golden(normal(2, 2, 3, 4), normal(2, 2, 4, 2), name="matmul two batch dimensions")
@golden(normal(2, 3, 4), normal(4, 5), name="matmul batch with one")
@golden(normal(3, 4), normal(2, 4, 5), name="matmul one with batch")
def matmul(a, b):
    return a @ b


@golden(normal(2, 4, 3), normal(2, 4, 5), name="matmul batches a transposed")
@golden(normal(2, 4, 3), normal(4, 5), name="matmul batch a transposed with one")
@golden(normal(4, 3), normal(2, 4, 5), name="matmul one transposed with batch")
def matmul_a(a, b):
    return a.transpose(-1, -2) @ b


@golden(normal(2, 3, 4), normal(2, 5, 4), name="matmul batches b transposed")
@golden(normal(2, 3, 4), normal(5, 4), name="matmul batch with one transposed")
@golden(normal(3, 4), normal(2, 5, 4), name="matmul one with batch transposed")
def matmul_b(a, b):
    return a @ b.transpose(-1, -2)


@golden(normal(2, 4, 3), normal(2, 5, 4), name="matmul batches both transposed")
def matmul_both(a, b):
    return a.transpose(-1, -2) @ b.transpose(-1, -2)


@golden(normal(2, 3, 4))
def transpose(x):
    return x.transpose(0, -1)


@golden(normal(2, 3, 4))
def permute(x):
    return x.permute(2, 0, 1)


@golden(normal(3, 1))
def expand(x):
    return x.expand(2, 3, 4)


@golden(normal(2, 3))
def pad(x):
    return F.pad(x, [1, 2, 0, 1], value=0.5)


@golden(normal(2, 3), normal(2, 3), name="stack outer")
def stack_0(a, b):
    return torch.stack([a, b])


@golden(normal(2, 3), normal(2, 3), name="stack inner")
def stack_2(a, b):
    return torch.stack([a, b], -1)
