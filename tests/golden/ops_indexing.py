"""Indices, choices and normalised rows: what tests/autograd/ops_table_indexing_test.cc compares with."""

import torch
import torch.nn.functional as F

from golden import given_ids, golden, ids, mask, normal

REPEATED = [4, 1, 4, 0, 4, 1]


@golden(normal(5, 3), given_ids(REPEATED, 6), name="index_select rows")
def select_rows(x, index):
    return x.index_select(0, index)


@golden(normal(2, 5), given_ids(REPEATED, 6), name="index_select columns")
def select_columns(x, index):
    return x.index_select(1, index)


@golden(normal(2, 5, 3), given_ids(REPEATED, 6), name="index_select middle")
def select_middle(x, index):
    return x.index_select(1, index)


@golden(normal(5, 3), given_ids(REPEATED, 2, 3), name="gather_rows")
def gather_rows(x, index):
    return x[index]


@golden(normal(6, 3), given_ids(REPEATED, 6), name="scatter_rows")
def scatter_rows(x, index):
    return torch.zeros(5, 3, dtype=x.dtype).index_add(0, index, x)


@golden(normal(2, 3, 2), given_ids(REPEATED, 2, 3), name="scatter_rows of two dimensions")
def scatter_rows_2(x, index):
    return torch.zeros(5, 2, dtype=x.dtype).index_add(0, index.reshape(-1), x.reshape(6, 2))


@golden(normal(3, 4), ids(4, 3, 5), name="gather inner")
def gather_inner(x, index):
    return x.gather(1, index)


@golden(normal(4, 3), ids(4, 6, 2), name="gather outer")
def gather_outer(x, index):
    return x.gather(0, index)


@golden(normal(2, 4, 3), ids(4, 2, 5, 3), name="gather middle")
def gather_middle(x, index):
    return x.gather(1, index)


@golden(normal(3, 4), ids(4, 2, 5), normal(2, 5), name="scatter_add inner")
def scatter_inner(x, index, source):
    return x.scatter_add(1, index, source)


@golden(normal(4, 3), ids(4, 6, 3), normal(6, 3), name="scatter_add outer")
def scatter_outer(x, index, source):
    return x.scatter_add(0, index, source)


@golden(mask(3, 4), normal(3, 4), normal(3, 4), name="where")
@golden(mask(3, 4), normal(4), normal(3, 1), name="where broadcast")
@golden(mask(3, 1), normal(3, 4), normal(1), name="where broadcast mask")
def where(chosen, a, b):
    return torch.where(chosen != 0, a, b)


@golden(normal(3, 5))
def l2_normalize(x):
    return F.normalize(x, dim=-1)


@golden(normal(3, 5), name="l2_normalize below eps")
def l2_below(x):
    return F.normalize(x, dim=-1, eps=100.0)


@golden(normal(3, 5), normal(3, 5))
def cosine_similarity(a, b):
    return F.cosine_similarity(a, b, dim=-1)


@golden(normal(3, 1, 5), normal(2, 5), name="cosine_similarity of all pairs")
def cosine_pairs(a, b):
    return F.cosine_similarity(a, b, dim=-1)
