"""Functions of one variable, softmax and layer norm: what tests/autograd/ops_table_numeric_test.cc compares with."""

import torch
import torch.nn.functional as F

from golden import apart, given_floats, golden, normal, positive


@golden(normal(3, 5))
def gelu(x):
    return F.gelu(x)


@golden(given_floats([-6, -3.5, -1.25, -0.01, 0, 0.3, 2, 5.5], 2, 4), name="gelu far out")
def gelu_far(x):
    return F.gelu(x)


@golden(normal(3, 5), name="gelu tanh")
@golden(given_floats([-6, -3.5, -1.25, -0.01, 0, 0.3, 2, 5.5], 2, 4), name="gelu tanh far out")
def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


@golden(apart(3, 5))
def relu(x):
    return F.relu(x)


@golden(given_floats([-1, 0, 2, -0.5], 4), name="relu at zero")
def relu_at_zero(x):
    return F.relu(x)


@golden(normal(3, 5))
def sigmoid(x):
    return torch.sigmoid(x)


@golden(normal(3, 5))
def tanh(x):
    return torch.tanh(x)


@golden(normal(3, 5))
def erf(x):
    return torch.erf(x)


@golden(normal(3, 5))
def exp(x):
    return torch.exp(x)


@golden(positive(3, 5))
def log(x):
    return torch.log(x)


@golden(positive(3, 5))
def sqrt(x):
    return torch.sqrt(x)


@golden(positive(3, 5))
def rsqrt(x):
    return torch.rsqrt(x)


@golden(given_floats([-2, -0.5, -0.25, 0.25, 0.75, 1, 1.5, 3], 2, 4))
def clamp(x):
    return torch.clamp(x, -0.5, 1.0)


@golden(given_floats([-2, -0.5, 0.25, 4], 4), name="clamp below")
def clamp_below(x):
    return torch.clamp(x, min=-0.5)


@golden(normal(3, 5))
@golden(normal(2, 3, 4), name="softmax of three dimensions")
@golden(normal(6), name="softmax of a vector")
def softmax(x):
    return F.softmax(x, dim=-1)


@golden(given_floats([-300, 0, 700, 699, 1, -1e4, -1e4, -1e4], 2, 4), name="softmax of large elements")
def softmax_large(x):
    return F.softmax(x, dim=-1)


@golden(normal(3, 5))
@golden(normal(2, 3, 4), name="log_softmax of three dimensions")
@golden(given_floats([-300, 0, 700, 699, 1, -1e4, -1e4, -1e4], 2, 4), name="log_softmax of large elements")
def log_softmax(x):
    return F.log_softmax(x, dim=-1)


@golden(normal(3, 5), normal(5), normal(5))
@golden(normal(2, 3, 4), normal(4), normal(4), name="layer_norm of three dimensions")
@golden(normal(5), normal(5), normal(5), name="layer_norm of a vector")
def layer_norm(x, weight, bias):
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


@golden(normal(3, 5), normal(5), name="layer_norm without bias")
def layer_norm_weight(x, weight):
    return F.layer_norm(x, weight.shape, weight, None, 0.1)


@golden(normal(3, 5), normal(5), name="layer_norm without weight")
def layer_norm_bias(x, bias):
    return F.layer_norm(x, bias.shape, None, bias, 1e-5)


@golden(normal(3, 5), name="layer_norm without either")
def layer_norm_plain(x):
    return F.layer_norm(x, (5,), None, None, 1e-5)
