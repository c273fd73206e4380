#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "data/order.h"
#include "data/samples.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/tensor.h"

namespace data {

struct LoaderOptions {
  int64_t window = 1;  // samples of an optimizer step, over all ranks together
  int64_t rows = 1;    // samples of a micro-batch; without meaning beside a token budget
  int64_t token_budget =
      0;               // if positive, a micro-batch takes samples, longest row x rows, up to it
  int64_t epochs = 1;  // times that each sample is visited
  uint64_t seed = 0;   // of the order; the same on all ranks
  int prefetch = 2;    // micro-batches made ahead, each of which holds its memory
};

// One micro-batch. Shapes: [B, T] i64, T the longest of its samples; the rest of shorter rows has
// token 0, label kIgnored, position 0 and segment 0.
struct Batch {
  sherd::Tensor tokens;
  sherd::Tensor labels;
  sherd::Tensor positions;
  sherd::Tensor segments;
  // [documents + 1] i64: where each piece begins among the B T tokens, and behind the last their
  // number, as kernels::AttentionOptions takes it; what is behind the pieces of a row is a piece of
  // its own. Undefined where no row has several pieces: causal attention needs no more then.
  sherd::Tensor cu_seqlens;
  std::vector<int64_t> samples;  // [B]: which sample each row is
};

// Makes a micro-batch of some samples. Errors: what Samples::Row throws.
Batch MakeBatch(const Samples& samples, std::span<const int64_t> which,
                const sherd::Device& device);

// Hands one rank its micro-batches of a run, made ahead by a thread; see Turns for which.
//
// A call returns nothing where a window ends on this rank, the next call goes on with the next one;
// behind the last window every call returns nothing.
//
// Threads: one caller; a thread "data loader" reads samples until destruction, which joins it.
// Ownership: `samples` outlives this object. REQUIRES: a window takes all that it is given, so
//   AccumulationOptions::micro_batches is more than LoaderOptions::window.
class Loader {
 public:
  // Errors: throws kInvalidArgument naming the option that is not positive, the rank outside
  //   [0, size), no samples, or the sample that is longer than the token budget.
  Loader(const Samples& samples, const LoaderOptions& options, int rank, int size,
         const sherd::Device& device);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Errors: throws what making this batch threw, and so does each later call until Restore.
  std::optional<Batch> operator()();

  // Where a run goes on: the window that was begun and not ended, else the next. The same on all
  // ranks between windows; it fits any number of ranks.
  std::string state() const;
  // Goes on at a state, of a run with any number of ranks. Errors: those of Order::Restore, with
  //   nothing changed.
  absl::Status Restore(const std::string& state);

 private:
  struct Made;
  class Worker;
  std::vector<Range> Cut(std::span<const int64_t> window) const;

  const Samples& samples_;
  const LoaderOptions options_;
  const int rank_;
  const int size_;
  const sherd::Device device_;
  const Order order_;
  Cursor at_;
  std::unique_ptr<Worker> worker_;  // none before the first call and after Restore
};

}  // namespace data
