"""Optimizers: what tests/autograd/optim_golden_test.cc compares with.

Each entry takes four steps over three parameters, [3, 4], [5] and [2, 2], whose gradients are the rows of the last
operand, one step each, and gives all their elements in one vector."""

import torch

from golden import golden, normal

OPERANDS = (normal(3, 4).constant(), normal(5).constant(), normal(2, 2).constant(), normal(4, 21).constant())


def steps(make, operands):
    parameters = [torch.nn.Parameter(operand.clone()) for operand in operands[:3]]
    optimizer = make(*parameters)
    for row in operands[3]:
        for parameter, piece in zip(parameters, row.split([12, 5, 4])):
            parameter.grad = piece.reshape(parameter.shape).clone()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).requires_grad_()


def entry(name, make):
    golden(*OPERANDS, name=name)(lambda *operands: steps(make, operands))


entry("adamw", lambda w, b, e: torch.optim.AdamW(
    [{"params": [w, e]}, {"params": [b], "weight_decay": 0.0}], lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3))
entry("adamw with groups", lambda w, b, e: torch.optim.AdamW(
    [{"params": [w]}, {"params": [b], "weight_decay": 0.5}, {"params": [e], "lr": 0.025, "weight_decay": 0.0}],
    lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3))
entry("sgd", lambda *all: torch.optim.SGD(all, lr=0.1))
entry("sgd with decay", lambda w, b, e: torch.optim.SGD(
    [{"params": [w, e]}, {"params": [b], "weight_decay": 0.0}], lr=0.1, weight_decay=0.3))
entry("sgd with momentum", lambda w, b, e: torch.optim.SGD(
    [{"params": [w, e]}, {"params": [b], "weight_decay": 0.0}], lr=0.1, momentum=0.9, weight_decay=0.3))
entry("sgd with dampening", lambda *all: torch.optim.SGD(all, lr=0.1, momentum=0.9, dampening=0.25))
entry("sgd with nesterov", lambda w, b, e: torch.optim.SGD(
    [{"params": [w]}, {"params": [b], "weight_decay": 0.5}, {"params": [e], "lr": 0.025}],
    lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3))
