"""What comparisons of tokenizers with other packages share."""

import os
import struct
import subprocess


def probe(program, kind, argument, texts):
    """The two lines that tokenizer_probe writes for each text."""
    data = [text.encode() for text in texts]
    out = subprocess.run([program, kind, argument], input=b"".join(struct.pack("<I", len(d)) + d for d in data),
                         stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    assert len(out) == 2 * len(texts) + 1, "%d lines of %d texts" % (len(out), len(texts))
    return zip(out[::2], out[1::2])


def integers(line):
    return [int(word) for word in line.split()]


def label(name):
    """A file, or the folder that it is the only one of."""
    base = os.path.basename(name)
    return base if base != "tokenizer.json" else os.path.basename(os.path.dirname(name)) + "/" + base


def report(what, why):
    print("FAIL %s: %s" % (what, why) if why else "PASS %s" % what)
