#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace contrastive {

// What the command line decides.
struct Options {
  bool help = false;

  std::string pairs;     // a file of pairs to train on, see ReadPairs
  std::string held_out;  // of pairs to measure on
  std::string out;       // folder of metrics.jsonl and report.html; must hold no run yet

  // A sentence-transformers folder, or a Hugging Face one of a BERT encoder; empty: a new encoder
  // of the sizes below, with a vocabulary made of the pairs.
  std::string init;
  int64_t vocabulary = 4000;
  int64_t dim = 128;
  int64_t layers = 3;
  int64_t heads = 4;
  int64_t ffn = 512;
  double dropout = 0.1;  // of a new encoder and of one of --init

  int64_t seq = 0;      // tokens of a text, what is longer is cut; 0: what the folder says, or 64
  std::string pooling;  // mean, first, last, or a token of the texts; empty: the folder's, or mean

  int64_t steps = 300;
  int64_t batch = 64;   // pairs a step, over all ranks
  int64_t calls = 4;    // of the encoder on each rank in a step: its texts in order of their length
  bool cached = false;  // one call's activations in memory at a time, not all
  double temperature = 0.05;
  bool symmetric = false;
  double lr = 1e-4;
  double min_lr = 1e-5;
  int64_t warmup = 20;
  double weight_decay = 0.01;
  double clip = 1.0;
  uint64_t seed = 1;

  bool f64 = false;  // train in f64 (CPU only), for proofs; otherwise f32
  bool cuda = false;
  bool checkpoint = true;
  bool reshard = true;
  int64_t threads = 1;

  int64_t eval_every = 100;  // steps between measures on held-out pairs; 0: before and after
  int64_t log_every = 10;
  int64_t save_every = 0;
  int64_t keep = 2;
  std::string export_to;
  bool resume = false;
  absl::Duration timeout = absl::Seconds(60);
};

// Reads the arguments behind the program's name; see llm::ParseFlags.
// Errors: kInvalidArgument with one sentence that names the flag and what it takes.
absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments);

// The text of `--help`.
std::string HelpText(std::string_view program);

}  // namespace contrastive
