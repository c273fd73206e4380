#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace llm {

// What the command line of `train` decides. The defaults are those of the quick start: about three
// minutes on two cores.
struct Options {
  bool help = false;

  std::vector<std::string> data;  // files of one kind, joined in this order; see dataset.h
  int64_t vocabulary = 0;         // of token files; 0: bytes
  int64_t end_token = -1;         // behind each document of a token file; -1: none
  std::string out;                // folder of metrics.jsonl and report.html; must hold no run yet

  // A Hugging Face folder whose model is trained on; empty: a new model of the sizes below. With a
  // tokenizer.json there, text is of its tokens; see dataset.h.
  std::string init;

  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t ffn = 0;  // 0: 8/3 of dim, rounded up to a multiple of 32
  bool tied = true;
  double dropout = 0.0;

  int64_t steps = 1000;
  int64_t seq = 256;   // tokens of a row
  int64_t batch = 12;  // samples a step, over all ranks and micro-batches
  int64_t micro_batches = 1;
  int64_t token_budget = 0;  // tokens of a micro-batch, instead of micro_batches; 0: none
  double lr = 3e-3;
  double min_lr = 3e-4;
  int64_t warmup = 50;
  double weight_decay = 0.1;
  double clip = 1.0;    // 0: no clipping
  double z_loss = 0.0;  // weight of a second loss, see z_loss.h; 0: none
  uint64_t seed = 1;

  bool f64 = false;   // train in f64 (CPU only), for proofs; otherwise f32
  bool cuda = false;  // compute on CUDA devices
  bool checkpoint = true;
  bool reshard = true;
  int64_t threads = 1;  // of each rank

  int64_t eval_every = 100;   // steps between validations; 0: only at the end
  int64_t eval_windows = 48;  // windows of a validation on the way; the last one takes all
  int64_t generate = 400;     // bytes of text written at the end
  double temperature = 0.8;   // of that text; 0: the likeliest byte every time
  std::string prompt = "\n";
  int64_t log_every = 10;                      // steps between progress lines
  int64_t save_every = 0;                      // steps between saved states in out/states; 0: none
  int64_t keep = 2;                            // of which so many newest stay; 0: all
  std::string export_to;                       // a folder for the trained model; empty: none
  bool resume = false;                         // go on from the newest of them, if there is one
  absl::Duration timeout = absl::Seconds(60);  // for a peer that does not come or answer

  int64_t head_size() const { return dim / heads; }
  int64_t ffn_size() const { return ffn > 0 ? ffn : (dim * 8 / 3 + 31) / 32 * 32; }
};

// Reads the arguments behind the program's name: `--flag value` or `--flag=value`, in any order;
// `--data` takes all words up to the next flag and may be repeated. A dash inside a name counts as
// an underscore. With `--help` nothing else is checked.
//
// Errors: kInvalidArgument with one sentence that names the flag and what it takes: an unknown flag
//   (and the nearest known one), a missing, malformed or out-of-range value, a flag given twice,
//   sizes that do not go together, no --data or no --out.
absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments);

// The text of `--help`.
std::string HelpText(std::string_view program);

}  // namespace llm
