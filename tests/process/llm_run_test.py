#!/usr/bin/env python3
"""Whole runs of the language model's program: what they show and write, and that launches agree.

    llm_run_test.py <sherd_train_llm>      prints PASS, FAIL or SKIP per check

SHERD_TEST_FULL=1 compares 20 steps instead of 6.
"""

import array
import json
import math
import os
import random
import re
import shutil

from llm_runs import expect, main, mpirun, needs, read_metrics, small, torchrun

PROGRESS = re.compile(r"step +(\d+)/30  loss \d\.\d{4}(  val \d\.\d{4})?  [\d.]+[kM]? tok/s  \|g\| [\d.]+  "
                      r"peak [\d.]+ [KM]iB  left \d+s")
STEPS = 20 if os.environ.get("SHERD_TEST_FULL") else 6
LIMITS = {"f32": 1e-5, "f64": 1e-12}


def whole_run(runs):
    """A run learns, shows lines fit for a log, and writes metrics and a page that loads nothing."""
    records, out = runs.train("whole", "--steps", "30", "--eval_every", "10", "--log_every", "15",
                              "--generate", "40", "--prompt", "the ", "--lr", "1e-2")
    expect(len(records) == 30, "%d steps" % len(records))
    expect(records[-1]["loss"] < 0.75 * records[0]["loss"], "loss %s -> %s" % (records[0]["loss"], records[-1]["loss"]))
    expect(abs(records[0]["loss"] - math.log(256)) < 0.2, "the first loss is %s" % records[0]["loss"])
    # Every row has 32 labels but the text's last one.
    expect(0 <= 30 * 12 * 32 - records[-1]["tokens"] < 32, "%d tokens" % records[-1]["tokens"])
    expect(all(r["samples"] == 12 and r["micro_batches"] == 1 and r["scaled_by"] == "window" for r in records),
           "another effective batch than 12 samples in one micro-batch")
    expect("12 x 32 bytes a step (up to 12 rows x 1 rank x 1 micro-batch)" in out, "the first line is: " + out[:300])
    validated = [r["step"] for r in records if "validation_loss" in r]
    expect(validated == [10, 20, 30], "validation at %s" % validated)
    expect([r["peak_bytes"] for r in records] == sorted(r["peak_bytes"] for r in records), "the peak falls")
    rate = [r["learning_rate"] for r in records]
    # 30 steps, 3 of them the rise; the lowest rate, a tenth, would be that of the 31st.
    last = 1e-2 - 0.5 * 9e-3 * (1 - math.cos(math.pi * 26 / 27))
    expect(max(rate) == rate[2] == 1e-2 and abs(rate[-1] - last) < 1e-12, "learning rates %s" % rate)

    expect(all(c == "\n" or ord(c) >= 32 for c in out), "control characters on stdout")
    shown = [int(m.group(1)) for m in map(PROGRESS.fullmatch, out.split("\n")) if m]
    expect(shown == [1, 10, 15, 20, 30], "progress lines of steps %s in: %s" % (shown, out))
    last = re.search(r"\nvalidation loss (\S+) nats per byte\nbyte bigram     (\S+) nats per byte, .*\n"
                     r"report          (\S+)\n$", out)
    expect(last, "the last lines are: " + out[-300:])
    expect(abs(float(last.group(1)) - records[-1]["validation_loss"]) < 1e-4, "another validation loss")
    with open(last.group(3), encoding="utf-8") as file:
        page = file.read()
    loads = re.search(r"(?i)https?:(?!//www\.w3\.org/)|\bsrc\s*=|@import|url\(|<link|fetch\(", page)
    expect(not loads, "the page loads something: %s" % (loads and page[loads.start() - 20:loads.end() + 40]))
    expect(last.group(1) in page and page.rstrip().endswith("</html>"), "the page is not whole")


def repeats(runs):
    """The same command gives the same bits."""
    losses = [[r["loss"] for r in runs.train("repeat%d" % i, "--steps", "3", "--dropout", "0.1")[0]] for i in (1, 2)]
    expect(losses[0] == losses[1], "%s and %s" % tuple(losses))
    other = [r["loss"] for r in runs.train("repeat3", "--steps", "3", "--dropout", "0.1", "--seed", "2")[0]]
    expect(other != losses[0], "the seed does not matter")
    dry = [r["loss"] for r in runs.train("repeat4", "--steps", "3")[0]]
    expect(dry != losses[0], "dropout does not matter")


def difference(a, b):
    return max(abs(x["loss"] - y["loss"]) / abs(x["loss"]) for x, y in zip(a, b))


def two_losses(runs):
    """A second loss is logged beside the first, is trained, and does not depend on ranks."""
    common = ["--steps", "8", "--dtype", "f64", "--z_loss", "0.1"]
    alone = runs.train("z1", *common)[0]
    expect(alone[-1]["z_loss"] < alone[0]["z_loss"], "z losses %s" % [r["z_loss"] for r in alone])
    expect(abs(alone[0]["z_loss"] - math.log(256) ** 2) < 2, "the first is %s" % alone[0]["z_loss"])
    without = runs.train("z0", "--steps", "8", "--dtype", "f64")[0]
    expect("z_loss" not in without[0] and without[-1]["loss"] != alone[-1]["loss"], "the weight does not matter")


def token_file(runs):
    """A token file of ragged documents, packed, with two losses: the same on ranks and however it is split."""
    draw, tokens = random.Random(2), array.array("H")
    for _ in range(200):
        token = draw.randrange(1, 300)
        for _ in range(draw.randrange(3, 60)):
            tokens.append(token)
            token = token * 5 % 299 + 1
        tokens.append(0)
    path = runs.path("tokens.bin")
    with open(path, "wb") as file:
        file.write(tokens.tobytes())
    same_on_ranks(runs, "tokens", path, ["--vocab", "300", "--end_token", "0"], math.log(300), "token")


def json_lines(runs):
    """JSON lines of ragged samples with labels of their own, and two losses, likewise."""
    draw, lines = random.Random(3), []
    for i in range(150):
        ids = [draw.randrange(97, 105) for _ in range(draw.randrange(2, 33))]
        if i % 3 == 0:
            lines.append({"text": bytes(ids).decode()})
        else:
            lines.append({"tokens": ids, "labels": [-100 if j < i % 5 else ids[j - 1] for j in range(len(ids))]})
    path = runs.file("samples.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    same_on_ranks(runs, "samples", path, [], math.log(256), "byte")


def same_on_ranks(runs, name, path, flags, first_loss, unit):
    """Trains on one process and on ranks, cut in several ways; losses and tokens must be the same."""
    common = ["--data", path, *small("--steps", "25", "--dtype", "f64", "--z_loss", "0.01", "--dropout", "0.1", "--lr",
                                     "1e-2", *flags)]
    expected = None
    for number, (ranks, how) in enumerate([(1, []), (1, ["--token_budget", "70"]), (2, ["--token_budget", "100"]),
                                           (3, ["--micro_batches", "2"])]):
        if ranks > 1 and shutil.which("mpirun") is None:
            continue
        folder = runs.path("%s%d" % (name, number))
        code, out, err = runs.run([*common, *how, "--out", folder], mpirun(ranks) if ranks > 1 else ())
        expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
        expect("nats per %s\n" % unit in out, "the last lines are: " + out[-300:])
        records = read_metrics(folder)
        if expected is None:
            expected = records
            expect(abs(records[0]["loss"] - first_loss) < 0.2, "the first loss is %s" % records[0]["loss"])
            expect(records[-1]["loss"] < 0.8 * records[0]["loss"], "the last is %s" % records[-1]["loss"])
        for key in ("tokens", "samples"):
            expect([r[key] for r in records] == [r[key] for r in expected], "%s differ on %d ranks" % (key, ranks))
        apart = max(abs(a[k] / b[k] - 1) for a, b in zip(records, expected) for k in ("loss", "z_loss"))
        print("  %s %d ranks %s: %.1e" % (name, ranks, " ".join(how), apart), flush=True)
        expect(len(records) == 25 and apart < 1e-11, "losses differ by %.1e" % apart)


def losses_agree(dtype, name, launcher, tools, *flags):
    """A check that a launch has the losses of a plain process."""
    common = ["--dtype", dtype, "--dropout", "0.1", "--steps", str(STEPS)]

    def check(runs):
        if ("plain", dtype) not in plain:
            plain["plain", dtype] = runs.train("plain_" + dtype, *common)[0]
        records = runs.train(("%s_%s" % (name, dtype)).replace(" ", "_"), *common, *flags, launcher=launcher)[0]
        expect(len(records) == len(plain["plain", dtype]) == STEPS, "%d steps" % len(records))
        apart = difference(plain["plain", dtype], records)
        print("  %s %s: %.1e" % (dtype, name, apart), flush=True)
        expect(apart <= LIMITS[dtype], "losses differ by %.1e" % apart)
        last = abs(records[-1]["validation_loss"] / plain["plain", dtype][-1]["validation_loss"] - 1)
        expect(last <= LIMITS[dtype], "validation losses differ by %.1e" % last)

    check.__doc__ = "%s has the losses of a plain process in %s" % (name, dtype)
    return needs(*tools)(check)


plain = {}

if __name__ == "__main__":
    agreements = []
    for kind in ("f32", "f64"):
        for ranks in (1, 2, 3, 4):
            agreements.append(losses_agree(kind, "mpirun -np %d" % ranks, mpirun(ranks), ["mpirun"]))
        agreements.append(losses_agree(kind, "torchrun with 2 processes", torchrun(2), ["torchrun"]))
        agreements.append(losses_agree(kind, "mpirun -np 2 with 3 micro-batches and everything kept", mpirun(2),
                                       ["mpirun"], "--micro_batches", "3", "--checkpoint", "off", "--reshard", "off"))
        # 6 micro-batches for 4 ranks, 4 for 5: some ranks have fewer, one has none.
        agreements.append(losses_agree(kind, "mpirun -np 4 with uneven micro-batches", mpirun(4), ["mpirun"],
                                       "--micro_batches", "2"))
        agreements.append(losses_agree(kind, "mpirun -np 5 with an idle rank", mpirun(5), ["mpirun"]))
    main([whole_run, repeats, two_losses, token_file, json_lines] + agreements)
