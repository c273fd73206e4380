"""What the golden parts (ops_*.py) are written with: operands, the list of entries, and the file format.

Operand values are the functions of tests/support/op_table.h: a part says the same operands as its row, and the
row's test refuses a file made for others."""

import math

import torch

MASK = (1 << 64) - 1


def split_mix(x):
    """Steele et al. 2014: the output of state x."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def uniform(place, index, draw):
    """In [0, 1): draw 0 to 3 for element `index` of operand `place`."""
    counter = (place << 40) + 4 * index + draw + 1
    return (split_mix(counter * 0x9E3779B97F4A7C15 & MASK) >> 11) * 2.0 ** -53


def normal_value(place, index):
    total = uniform(place, index, 0) + uniform(place, index, 1) + uniform(place, index, 2) + uniform(place, index, 3)
    return (total - 2.0) * math.sqrt(3.0)


def apart_value(place, index):
    x = normal_value(place, index)
    return x + (0.1 if x >= 0 else -0.1)


class Operand:
    def __init__(self, text, shape, value, grad=True, integer=False):
        self.text, self.shape, self.value, self.grad, self.integer = text, list(shape), value, grad, integer

    def constant(self):
        return Operand(self.text, self.shape, self.value, False, self.integer)

    def __str__(self):
        return "%s[%s]" % (self.text, ", ".join(map(str, self.shape)))

    def tensor(self, place):
        count = math.prod(self.shape)
        values = [self.value(place, i) for i in range(count)]
        dtype = torch.int64 if self.integer else torch.float64
        tensor = torch.tensor(values, dtype=dtype).reshape(self.shape)
        return tensor.requires_grad_(self.grad and not self.integer)


def normal(*shape):
    return Operand("normal", shape, normal_value)


def positive(*shape):
    return Operand("positive", shape, lambda place, i: 0.5 + 1.5 * uniform(place, i, 0))


def probability(*shape):
    return Operand("probability", shape, lambda place, i: 0.05 + 0.9 * uniform(place, i, 0))


def apart(*shape):
    return Operand("apart", shape, apart_value)


def ids(limit, *shape):
    return Operand("ids(%d)" % limit, shape, lambda place, i: math.floor(uniform(place, i, 0) * limit), integer=True)


def mask(*shape):
    return Operand("mask", shape, lambda place, i: math.floor(uniform(place, i, 0) * 2), integer=True)


def given_ids(values, *shape):
    text = "given(%s)" % ", ".join(map(str, values))
    return Operand(text, shape, lambda place, i: values[i], integer=True)


def given_floats(values, *shape):
    text = "given(%s)" % ", ".join("%.17g" % value for value in values)
    return Operand(text, shape, lambda place, i: values[i])


ENTRIES = []
# The place of the gradient that comes in: values normal, the shape of the result.
SEED_PLACE = 99


def golden(*operands, name=None):
    """Makes a function of tensors an entry, under its own name or `name`. May be stacked."""

    def register(function):
        ENTRIES.append((name or function.__name__, operands, function))
        return function

    return register


def line(word, tensor):
    shape = ",".join(map(str, tensor.shape)) or "scalar"
    values = " ".join(repr(value) for value in tensor.detach().reshape(-1).tolist())
    return "%s %s %s" % (word, shape, values)


def text_of(entry):
    name, operands, function = entry
    tensors = [operand.tensor(place) for place, operand in enumerate(operands)]
    out = function(*tensors)
    seed = Operand("normal", out.shape, normal_value, False).tensor(SEED_PLACE)
    out.backward(seed)
    lines = ["entry " + name, "operands " + "; ".join(map(str, operands)), line("out", out)]
    for tensor in tensors:
        if tensor.requires_grad:
            grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            lines.append(line("grad", grad))
    return "\n".join(lines) + "\n"
