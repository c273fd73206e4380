#!/usr/bin/env python3
"""Byte-level tokenizers beside the package `tokenizers`, on 10,000 texts each: the same ids, and the same text back.

    bpe_compare_test.py <bpe_probe> <tokenizer.json>...     prints a line PASS, FAIL or SKIP for each
"""

import os
import struct
import subprocess
import sys

import bpe_texts

TEXTS = 10000


def compare(probe, name, texts, Tokenizer):
    reference = Tokenizer.from_file(name)
    data = [text.encode() for text in texts]
    out = subprocess.run([probe, name], input=b"".join(struct.pack("<I", len(d)) + d for d in data),
                         stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    tokens = 0
    for i, text in enumerate(texts):
        want = reference.encode(text, add_special_tokens=False).ids
        got = [int(word) for word in out[2 * i].split()]
        if got != want:
            return "text %r has ids %s, but the package says %s" % (text, got, want)
        decoded = bytes.fromhex(out[2 * i + 1]).decode("utf-8", errors="replace")
        if decoded != reference.decode(want, skip_special_tokens=False):
            return "text %r comes back as %r" % (text, decoded)
        tokens += len(want)
    print("%s: %d texts, %d characters, %d tokens" % (os.path.basename(name), len(texts), sum(map(len, texts)), tokens))
    return None


def main():
    probe, names = sys.argv[1], sys.argv[2:]
    try:
        from tokenizers import Tokenizer
    except ImportError:
        for name in names:
            print("SKIP tokens of %s: the package tokenizers is not installed" % os.path.basename(name))
        return
    texts = list(bpe_texts.difficult(TEXTS // 2, seed=2))
    texts += list(bpe_texts.found(TEXTS - len(texts)))
    # Where a machine has few texts, more of the other kind.
    texts += list(bpe_texts.difficult(TEXTS - len(texts), seed=3))
    for name in names:
        why = compare(probe, name, texts, Tokenizer)
        print("FAIL tokens of %s: %s" % (os.path.basename(name), why) if why else "PASS tokens of %s" % os.path.basename(name))


if __name__ == "__main__":
    main()
