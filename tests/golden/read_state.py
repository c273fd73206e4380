#!/usr/bin/env python3
"""Writes what is in a saved state, one tensor or count a line, without the library that saved it.

    read_state.py <state>                     prints the lines of values.txt
    read_state.py <state> --check values.txt  prints PASS, or FAIL with the first line that differs

Reads the manifest with Python's json, cuts the pieces out of the ranks' files by the header of each, and checks
their checksums (CRC-32C, a table of its own).
"""

import json
import os
import struct
import sys


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def numbers(dtype, data):
    if dtype == "bf16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    code, size = {"f32": ("f", 4), "f64": ("d", 8)}[dtype]
    return list(struct.unpack("<%d%s" % (len(data) // size, code), data))


def piece(folder, rank, key):
    """The bytes of one tensor of a rank's file."""
    with open(os.path.join(folder, "rank-%05d.safetensors" % rank), "rb") as file:
        content = file.read()
    size, = struct.unpack("<Q", content[:8])
    begin, end = json.loads(content[8:8 + size])[key]["data_offsets"]
    return content[8 + size + begin:8 + size + end]


def lines(folder):
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    assert manifest["format"] == "sherd-state" and manifest["format_version"] == 1
    block = manifest["block_bytes"]
    for name, parameter in sorted(manifest["parameters"].items()):
        for key, tensor in sorted(parameter["tensors"].items()):
            values = []
            for at in tensor["pieces"]:
                data = piece(folder, at["rank"], key + ":" + name)
                sums = [crc32c(data[i:i + block]) for i in range(0, len(data), block)]
                assert sums == at["crc32c"], "checksum of %s of %s" % (key, name)
                assert at["begin"] == len(values)
                values += numbers(tensor["dtype"], data)
                assert at["begin"] + at["count"] == len(values)
            yield "%s of %s: %s" % (key, name, " ".join("%r" % v for v in values))
        for key, count in sorted(parameter["counts"].items()):
            yield "%s of %s: %d" % (key, name, count)


def check(folder, name):
    with open(name, encoding="utf-8") as file:
        written = file.read().splitlines()
    got = list(lines(folder))
    for mine, other in zip(got + [""] * len(written), written + [""] * len(got)):
        if mine != other:
            return "FAIL the golden state read by hand: '%s', but values.txt has '%s'" % (mine, other)
    return "PASS the golden state read by hand"


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[2] == "--check":
        print(check(sys.argv[1], sys.argv[3]))
    else:
        print("\n".join(lines(sys.argv[1])))
