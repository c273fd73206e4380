"""Losses and pooling: what tests/autograd/ops_table_loss_test.cc compares with."""

import torch
import torch.nn.functional as F

from golden import given_floats, given_ids, golden, ids, normal, probability

IGNORED = -100


def cross_entropy(logits, labels, smoothing=0.0, z=0.0):
    """The sum over labelled rows; z lse^2 is added over the same rows."""
    rows, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    loss = F.cross_entropy(rows, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return (loss + z * (torch.logsumexp(rows, -1)[labels != IGNORED] ** 2).sum()).reshape(1)


@golden(normal(4, 6), ids(6, 4), name="cross entropy")
@golden(normal(2, 3, 5), given_ids([1, -100, 4, 0, 2, -100], 2, 3), name="cross entropy with ignored labels")
def plain(logits, labels):
    return cross_entropy(logits, labels)


@golden(normal(2, 3, 5), given_ids([1, -100, 4, 0, 2, -100], 2, 3), name="label smoothing")
def smooth(logits, labels):
    return cross_entropy(logits, labels, smoothing=0.2)


@golden(normal(2, 3, 5), given_ids([1, -100, 4, 0, 2, -100], 2, 3), name="z-loss")
def z_loss(logits, labels):
    return cross_entropy(logits, labels, z=0.05)


@golden(normal(2, 3, 5), given_ids([1, -100, 4, 0, 2, -100], 2, 3), name="label smoothing and z-loss")
def both(logits, labels):
    return cross_entropy(logits, labels, smoothing=0.2, z=0.05)


@golden(normal(2, 4, 5), ids(5, 2, 4), name="causal loss that shifts inside")
def shift_inside(logits, labels):
    return cross_entropy(logits[:, :-1], labels[:, 1:])


@golden(normal(1, 6, 5), ids(5, 1, 6), name="causal loss of packed documents")
def packed(logits, labels):
    parts = [cross_entropy(logits[:, a:b - 1], labels[:, a + 1:b]) for a, b in ((0, 2), (2, 3), (3, 6)) if b - a > 1]
    return sum(parts)


@golden(normal(2, 3, 4), normal(7, 4), given_ids([1, -100, 4, 0, 6, -100], 2, 3), name="linear cross entropy")
def linear_cross_entropy(hidden, weight, labels):
    return cross_entropy(F.linear(hidden, weight), labels, smoothing=0.2, z=0.05)


@golden(normal(3, 4), probability(3, 4).constant(), name="several labels")
def several_labels(logits, labels):
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").reshape(1)


@golden(given_floats([40.0, -40.0, 800.0, -800.0], 2, 2), given_floats([1.0, 0.0, 0.0, 1.0], 2, 2).constant(),
        name="several labels far away")
def far_away(logits, labels):
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").reshape(1)


@golden(normal(2, 3), normal(2, 3).constant(), name="mse")
def mse(output, labels):
    return F.mse_loss(output, labels, reduction="sum").reshape(1)


@golden(normal(4, 1), normal(4).constant(), name="regression of one number")
def regression(output, labels):
    return F.mse_loss(output[:, 0], labels, reduction="sum").reshape(1)


@golden(normal(3, 3, 2), given_ids([1, 1, 0, 0, 1, 1, 1, 0, 1], 3, 3), name="last tokens")
def last_tokens(x, mask):
    return torch.stack([row[seen.nonzero().max()] for row, seen in zip(x, mask)])


@golden(normal(3, 3, 2), name="first tokens")
def first_tokens(x):
    return x[:, 0]


@golden(normal(3, 4, 2), normal(3, 2), given_ids([1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1], 3, 4), ids(3, 3),
        name="a classifier of sequences")
def classifier(hidden, weight, mask, labels):
    return cross_entropy(F.linear(last_tokens(hidden, mask), weight), labels)
