#!/usr/bin/env python3
"""The engine from Python, through ctypes alone: c_ctypes_test.py <module.so>

Ranks are threads; a layer y = W x with one weight of 7 elements is trained for a step and compared with plain loops.
Prints a line PASS or FAIL for each check.
"""

import ctypes as c
import sys
import threading

F64 = 1
OK, INVALID, FAILED = 0, 3, 9


class Parameter(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_int32), ("rank", c.c_int32), ("shape", c.POINTER(c.c_int64)),
                ("frozen", c.c_int32), ("granule", c.c_int64)]


class Buffer(c.Structure):
    _fields_ = [("data", c.POINTER(c.c_double)), ("elems", c.c_int64), ("offset", c.c_int64), ("dtype", c.c_int32)]


lib = c.CDLL(sys.argv[1])
lib.sherd_error_text.restype = c.c_char_p
for name in ("sherd_store_free", "sherd_world_free", "sherd_unit_free"):
    getattr(lib, name).argtypes = [c.c_void_p]
    getattr(lib, name).restype = None
lib.sherd_unit_create.argtypes = [c.c_void_p, c.c_char_p, c.POINTER(Parameter), c.c_int32, c.c_void_p,
                                  c.POINTER(c.c_void_p)]
for name in ("sherd_unit_unshard", "sherd_unit_begin_backward"):
    getattr(lib, name).argtypes = [c.c_void_p, c.c_int64]
for name in ("sherd_unit_reshard", "sherd_unit_end_backward", "sherd_unit_clear_gradients", "sherd_world_finish"):
    getattr(lib, name).argtypes = [c.c_void_p]
for name in ("sherd_unit_local", "sherd_unit_full", "sherd_unit_local_gradient"):
    getattr(lib, name).argtypes = [c.c_void_p, c.c_int32, c.POINTER(Buffer)]
lib.sherd_unit_gradient.argtypes = [c.c_void_p, c.c_int32, c.POINTER(Buffer), c.POINTER(c.c_int32)]
lib.sherd_world_join_store.argtypes = [c.c_void_p, c.c_int32, c.c_int32, c.c_void_p, c.POINTER(c.c_void_p)]


def check(name, what, want):
    print(f"PASS {name}" if what == want else f"FAIL {name}: got {what!r}, want {want!r}")


def call(name, *arguments):
    code = getattr(lib, name)(*arguments)
    if code != OK:
        raise RuntimeError(f"{name}: {code}: {lib.sherd_error_text().decode()}")


def train(store, rank, size, out):
    world, unit, add = c.c_void_p(), c.c_void_p(), c.c_int32()
    call("sherd_world_join_store", store, rank, size, None, c.byref(world))
    shape = (c.c_int64 * 1)(7)
    parameter = Parameter(b"weight", F64, 1, shape, 0, 0)
    call("sherd_unit_create", world, b"layer", c.byref(parameter), 1, None, c.byref(unit))
    local, full, gradient = Buffer(), Buffer(), Buffer()
    call("sherd_unit_local", unit, 0, c.byref(local))
    for k in range(local.elems):
        local.data[k] = 1.0 / (1 + local.offset + k)
    pieces = []
    for step in range(2):
        call("sherd_unit_unshard", unit, step)
        call("sherd_unit_full", unit, 0, c.byref(full))
        y = sum(full.data[k] * (k + rank) for k in range(full.elems))
        call("sherd_unit_reshard", unit)
        call("sherd_unit_begin_backward", unit, step)  # the loss is y^2 / 2
        call("sherd_unit_gradient", unit, 0, c.byref(gradient), c.byref(add))
        for k in range(gradient.elems):
            gradient.data[k] = y * (k + rank)
        call("sherd_unit_end_backward", unit)
        call("sherd_unit_local_gradient", unit, 0, c.byref(gradient))
        for k in range(local.elems):
            local.data[k] -= 0.001 * gradient.data[k]
        call("sherd_unit_clear_gradients", unit)
        pieces = [(local.offset + k, local.data[k]) for k in range(local.elems)]
    out[rank] = pieces
    call("sherd_world_finish", world)
    lib.sherd_unit_free(unit)
    lib.sherd_world_free(world)


def plain(size):
    weight = [1.0 / (1 + k) for k in range(7)]
    for _ in range(2):
        ys = [sum(weight[k] * (k + r) for k in range(7)) for r in range(size)]
        weight = [weight[k] - 0.001 * sum(ys[r] * (k + r) for r in range(size)) for k in range(7)]
    return weight


def main():
    for size in (1, 2, 3):
        store, out = c.c_void_p(), {}
        call("sherd_store_create", c.byref(store))
        ranks = [threading.Thread(target=train, args=(store, rank, size, out)) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        lib.sherd_store_free(store)
        got = sorted(item for pieces in out.values() for item in pieces)
        check(f"{size} ranks own each element once", [k for k, _ in got], list(range(7)))
        close = all(abs(a - b) <= 1e-14 for (_, a), b in zip(got, plain(size)))
        check(f"two steps with {size} ranks equal plain loops", close, True)
    buffer = Buffer()
    check("a null handle is an error", lib.sherd_unit_local(None, 0, c.byref(buffer)), INVALID)
    check("its text is there", lib.sherd_error_text(), b"the unit is NULL")
    texts = []
    other = threading.Thread(target=lambda: texts.append(lib.sherd_error_text()))
    other.start()
    other.join()
    check("another thread has its own", texts, [b""])


main()
