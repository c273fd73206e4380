"""Arithmetic, reductions, shapes and indices: what tests/autograd/ops_table_tensor_test.cc compares with."""

import torch

from golden import apart, golden, normal, positive

# Pairs of shapes that broadcast, by the name of the rows.
PAIRS = {
    "equal": ([3, 4], [3, 4]),
    "row": ([3, 4], [4]),
    "column": ([3, 4], [3, 1]),
    "scalar": ([2, 3], [1]),
    "middle": ([2, 3, 4], [2, 1, 4]),
    "both ways": ([3, 1], [1, 4]),
    "longer": ([4], [2, 3, 4]),
}


def pairs(first, second, function):
    for name, (a, b) in PAIRS.items():
        golden(first(*a), second(*b), name="%s %s" % (function.__name__, name))(function)


def add(a, b):
    return a + b


def sub(a, b):
    return a - b


def mul(a, b):
    return a * b


def div(a, b):
    return a / b


pairs(normal, normal, add)
pairs(normal, normal, sub)
pairs(normal, normal, mul)
pairs(normal, apart, div)


@golden(normal(3, 4))
def neg(x):
    return -x


@golden(normal(3, 4))
def square(x):
    return x.square()


@golden(normal(3, 4), name="pow 3")
def pow_3(x):
    return x ** 3


@golden(positive(3, 4), name="pow -1.5")
def pow_root(x):
    return x ** -1.5


@golden(normal(3, 4), name="sum rows")
def sum_rows(x):
    return x.sum(1)


@golden(normal(3, 4), name="sum columns")
def sum_columns(x):
    return x.sum(0, keepdim=True)


@golden(normal(2, 3, 4), name="sum outer and inner")
def sum_two(x):
    return x.sum([0, 2])


@golden(normal(2, 3, 4), name="sum middle")
def sum_middle(x):
    return x.sum(1)


@golden(normal(2, 3), name="sum all")
def sum_all(x):
    return x.sum([0, 1])


@golden(normal(2, 3, 4), name="mean inner")
def mean_inner(x):
    return x.mean(-1, keepdim=True)


@golden(normal(2, 3, 4), name="mean outer two")
def mean_two(x):
    return x.mean([0, 1])


@golden(normal(3, 5), name="max inner")
def max_inner(x):
    return x.max(1).values


@golden(normal(3, 5), name="max outer")
def max_outer(x):
    return x.max(0, keepdim=True).values


@golden(normal(2, 3, 4), name="max middle")
def max_middle(x):
    return x.max(1).values
