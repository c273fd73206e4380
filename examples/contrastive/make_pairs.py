#!/usr/bin/env python3
"""Makes pairs of package names and descriptions from what apt knows.

    make_pairs.py OUT [--negatives N] [--held_out N] [--from FILE]

Writes OUT/train.jsonl and OUT/held_out.jsonl, lines of {"query": name, "document": description}; with --negatives each
has that many descriptions of other packages of its section. One package of each source package counts, that of its name
if there is one, so that what is held out has no sibling in training; descriptions that come twice count once.
FILE is a list as `apt-cache dumpavail` prints it, which is asked otherwise. The same list makes the same pairs.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys

DULL = re.compile(r"transitional|dummy package|debug(ging)? symbols|^virtual package", re.IGNORECASE)


def packages(text):
    """The fields of each package that are needed."""
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Source|Section|Description(?:-en)?): (.*)$", block, re.MULTILINE))
        description = fields.get("Description-en", fields.get("Description"))
        if "Package" in fields and description and not DULL.search(description):
            name = fields["Package"]
            yield fields.get("Source", name).split(" ")[0], name, fields.get("Section", ""), description


def pairs(text):
    """One package of each source, with a description of its own, in an order of hashes."""
    chosen = {}
    for source, name, section, description in packages(text):
        if source not in chosen or name == source:
            chosen[source] = (name, section, description)
    seen, kept = set(), []
    for source in sorted(chosen, key=lambda s: hashlib.sha256(s.encode()).hexdigest()):
        name, section, description = chosen[source]
        if description.lower() not in seen:
            seen.add(description.lower())
            kept.append((name, section, description))
    return kept


def lines(kept, negatives):
    by_section = {}
    for i, (_, section, _) in enumerate(kept):
        by_section.setdefault(section, []).append(i)
    place = {i: k for of_section in by_section.values() for k, i in enumerate(of_section)}
    for i, (name, section, description) in enumerate(kept):
        line = {"query": name, "document": description}
        others = by_section[section]
        if negatives:
            following = [others[(place[i] + k) % len(others)] for k in range(1, min(negatives, len(others) - 1) + 1)]
            line["negatives"] = [kept[j][2] for j in following]
        yield json.dumps(line, ensure_ascii=False) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--negatives", type=int, default=0)
    parser.add_argument("--held_out", type=int, default=1000)
    parser.add_argument("--from", dest="file")
    options = parser.parse_args()
    if options.file:
        with open(options.file, encoding="utf-8") as file:
            text = file.read()
    else:
        text = subprocess.run(["apt-cache", "dumpavail"], check=True, text=True, stdout=subprocess.PIPE).stdout
    kept = pairs(text)
    if len(kept) < 2 * options.held_out:
        sys.exit("apt knows %d packages to make pairs of, fewer than twice --held_out %d; has `apt-get update` run?"
                 % (len(kept), options.held_out))
    os.makedirs(options.out, exist_ok=True)
    for name, part in (("held_out", kept[:options.held_out]), ("train", kept[options.held_out:])):
        with open(os.path.join(options.out, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(lines(part, options.negatives))
        print("%s: %d pairs" % (file.name, len(part)))


if __name__ == "__main__":
    main()
