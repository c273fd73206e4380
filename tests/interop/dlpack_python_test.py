#!/usr/bin/env python3
"""Other libraries read our DLPack structs, and we read theirs: dlpack_python_test.py <module.so>

The structs are declared here a second time, from the published header, so that both sides would have to be wrong alike.
Prints a line PASS, FAIL or SKIP for each check.
"""

import ctypes as c
import sys

F32, F64, BF16, F16, I32, I64 = range(6)
NAMES = ["float32", "float64", "bfloat16", "float16", "int32", "int64"]


class Array(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


DELETER = c.CFUNCTYPE(None, c.c_void_p)


class Managed(c.Structure):
    _fields_ = [("array", Array), ("context", c.c_void_p), ("deleter", DELETER)]


class Versioned(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", DELETER),
                ("flags", c.c_uint64), ("array", Array)]


class Seen(c.Structure):
    _fields_ = [("ndim", c.c_int64), ("shape", c.c_int64 * 6), ("dtype", c.c_int64)]


api = c.pythonapi
api.PyCapsule_New.restype = c.py_object
api.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
api.PyCapsule_GetPointer.restype = c.c_void_p
api.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
api.PyCapsule_SetName.argtypes = [c.py_object, c.c_char_p]
module = c.CDLL(sys.argv[1])
module.ExportTensor.restype = c.c_void_p
module.ExportTensor.argtypes = [c.c_int32, c.c_int32, c.c_int32, c.POINTER(c.c_int64)]
module.ImportTensor.argtypes = [c.c_void_p, c.c_int32, c.c_int32, c.POINTER(Seen), c.POINTER(c.c_double), c.c_double,
                                c.c_char_p, c.c_int64]
NAMES_OF_CAPSULES = {0: (b"dltensor", b"used_dltensor"), 1: (b"dltensor_versioned", b"used_dltensor_versioned")}


class Ours:
    """A tensor of ours as a library expects to meet one."""

    def __init__(self, dtype, transposed, versioned):
        self.released = c.c_int64(0)
        self.versioned = versioned
        self.pointer = module.ExportTensor(dtype, transposed, versioned, c.byref(self.released))

    def __dlpack__(self, **_):
        self.name = c.c_char_p(NAMES_OF_CAPSULES[self.versioned][0])  # the capsule keeps the pointer only
        return api.PyCapsule_New(self.pointer, self.name, None)

    def __dlpack_device__(self):
        return (1, 0)


def take(capsule, versioned, read_only=False, set_first=0.0):
    """What we see of another library's capsule: (dtype, shape, values), or the error's text."""
    name, used = NAMES_OF_CAPSULES[versioned]
    pointer = api.PyCapsule_GetPointer(capsule, name)
    seen, values, text = Seen(), (c.c_double * 64)(), c.create_string_buffer(300)
    if module.ImportTensor(pointer, versioned, read_only, c.byref(seen), values, set_first, text, 300) != 0:
        return text.value.decode()
    api.PyCapsule_SetName(capsule, used)
    shape = tuple(seen.shape[:seen.ndim])
    count = 1
    for extent in shape:
        count *= extent
    return seen.dtype, shape, list(values[:count])


def check(name, what, want):
    print(f"PASS {name}" if what == want else f"FAIL {name}: got {what!r}, want {want!r}")


def layout(versioned):
    ours = Ours(BF16, 1, versioned)
    struct = (Versioned if versioned else Managed).from_address(ours.pointer)
    a = struct.array
    values = (c.c_uint16 * 6).from_address(a.data + a.byte_offset)
    got = (a.device_type, a.device_id, a.ndim, a.code, a.bits, a.lanes, a.shape[:2], a.strides[:2],
           [v for v in values])
    bits = [0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0]  # bfloat16 of 0 to 5
    if versioned:
        got += (struct.major, struct.minor, struct.flags)
    want = (1, 0, 2, 4, 16, 1, [3, 2], [1, 3], bits) + ((1, 0, 0) if versioned else ())
    check(f"fields of the {'versioned ' if versioned else ''}struct", got, want)
    before = ours.released.value
    struct.deleter(ours.pointer)
    check(f"deleter of the {'versioned ' if versioned else ''}struct", (before, ours.released.value), (0, 1))


def foreign_struct(versioned, **changes):
    """A struct made here: [2, 2] of f64 in a buffer of 5, from its second element on."""
    calls = []
    buffer = (c.c_double * 5)(9, 1, 2, 3, 4)
    shape = (c.c_int64 * 2)(2, 2)
    struct = (Versioned if versioned else Managed)()
    struct.deleter = DELETER(lambda _: calls.append(1))
    if versioned:
        struct.major, struct.minor, struct.flags = changes.get("major", 1), 3, changes.get("flags", 0)
    a = struct.array
    a.data, a.device_type, a.ndim = c.addressof(buffer), changes.get("device", 1), 2
    a.code, a.bits, a.lanes = changes.get("code", 2), changes.get("bits", 64), changes.get("lanes", 1)
    a.shape, a.byte_offset = shape, changes.get("offset", 8)
    if "strides" in changes:
        a.strides = (c.c_int64 * 2)(*changes["strides"])
    seen, values, text = Seen(), (c.c_double * 64)(), c.create_string_buffer(300)
    code = module.ImportTensor(c.addressof(struct), versioned, changes.get("accept", 0), c.byref(seen), values, 0.0,
                               text, 300)
    return (code, len(calls), list(values[:4])) if code == 0 else (code, len(calls), text.value.decode())


def foreign():
    for versioned in (0, 1):
        kind = "versioned" if versioned else "unversioned"
        check(f"a {kind} struct without strides, with an offset", foreign_struct(versioned), (0, 1, [1, 2, 3, 4]))
        check(f"a {kind} struct with strides", foreign_struct(versioned, strides=(1, 2)), (0, 1, [1, 3, 2, 4]))
        for changes, part in [(dict(code=1, bits=8), "code 1 of 8 bits"), (dict(lanes=4), "4 lanes"),
                              (dict(device=2), "device type 2"), (dict(offset=12), "multiple of an element"),
                              (dict(strides=(2, -1)), "negative stride -1")]:
            code, deleted, text = foreign_struct(versioned, **changes)
            check(f"a {kind} struct with {changes} is refused and stays the caller's",
                  (code, deleted, part in text), (-1, 0, True))
    check("another major version is refused", foreign_struct(1, major=2)[:2], (-1, 0))
    check("read-only memory is refused", foreign_struct(1, flags=1)[:2], (-1, 0))
    check("read-only memory is accepted when asked", foreign_struct(1, flags=1, accept=1)[:2], (0, 1))


def library(name, versioned):
    """Both ways through an array library; `versioned` if it speaks version 1."""
    xp = __import__(name)
    capsule_name = f"{name} {xp.__version__}{', versioned' if versioned else ''}"
    for dtype in (F32, F64, F16, I32, I64, BF16):
        if not hasattr(xp, NAMES[dtype]):
            continue
        for transposed in (0, 1):
            ours = Ours(dtype, transposed, versioned)
            theirs = xp.from_dlpack(ours)
            got = (str(theirs.dtype).split(".")[-1], theirs.tolist())
            want = [[0, 1, 2], [3, 4, 5]]
            check(f"{capsule_name} reads our {NAMES[dtype]}{' transposed' if transposed else ''}", got,
                  (NAMES[dtype], [list(row) for row in zip(*want)] if transposed else want))
            if dtype == F64 and not transposed and name == "torch":
                theirs[0, 0] = 7.0
                again = (c.c_double * 6).from_address(theirs.data_ptr())[0]
                check(f"{capsule_name} writes into our memory", again, 7.0)
            before = ours.released.value
            del theirs
            check(f"{capsule_name} lets go of our {NAMES[dtype]}", (before, ours.released.value), (0, 1))
        made = xp.arange(12).reshape(3, 4)
        made = made.to(getattr(xp, NAMES[dtype])) if name == "torch" else made.astype(getattr(xp, NAMES[dtype]))
        for what, part in [("whole", made), ("a part with strides", made[1:, ::2])]:
            arguments = {"max_version": (1, 0)} if versioned else {}
            got = take(part.__dlpack__(**arguments), versioned)
            want = (dtype, tuple(part.shape), [float(v) for row in part.tolist() for v in row])
            check(f"we read {capsule_name} {NAMES[dtype]}, {what}", got, want)
        if dtype == F64:
            arguments = {"max_version": (1, 0)} if versioned else {}
            take(made.__dlpack__(**arguments), versioned, set_first=42.0)
            check(f"we write into {capsule_name}", float(made[0, 0]), 42.0)
    if name == "numpy" and versioned:
        fixed = xp.zeros((2, 2))
        fixed.flags.writeable = False
        got = take(fixed.__dlpack__(max_version=(1, 0)), 1)
        check("numpy's read-only array is refused", "read-only" in got, True)
        got = take(fixed.__dlpack__(max_version=(1, 0)), 1, read_only=True)
        check("numpy's read-only array is read when asked", got, (F64, (2, 2), [0.0] * 4))


def main():
    for versioned in (0, 1):
        layout(versioned)
    foreign()
    for name in ("numpy", "torch"):
        try:
            xp = __import__(name)
        except ImportError:
            print(f"SKIP {name}: is not installed for {sys.executable}")
            continue
        library(name, 0)
        if name == "numpy" and tuple(int(part) for part in xp.__version__.split(".")[:2]) >= (2, 1):
            library(name, 1)


main()
