#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/order.h"
#include "llm/options.h"
#include "llm/sample_order.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/tensor.h"

namespace llm {

// Labels with this value have no loss.
inline constexpr int64_t kIgnored = -100;

// Rows of text, one sample each.
struct Batch {
  sherd::Tensor tokens;          // [B, T] i64
  sherd::Tensor labels;          // [B, T] i64: the token after each
  std::vector<int64_t> samples;  // [B]: each row's global number in the run
};

// Makes a batch of the windows of `text` that begin at `starts`.
Batch MakeBatch(std::span<const uint8_t> text, std::span<const int64_t> starts, int64_t seq,
                const sherd::Device& device);

// Hands one rank its share of the micro-batches of a run, in order.
//
// Step s takes the samples [(s - 1) batch, s batch) of one order. They are cut into micro-batches
// of equal rows first, the last of which may be shorter, and those go round the ranks second; so
// the samples of a step depend on neither, and ranks may have fewer than others, or none. A call
// returns nothing where a step ends on this rank, and the next call goes on with the next step;
// behind the last one every call returns nothing.
class BatchLoader {
 public:
  // Ownership: `text` outlives this object. REQUIRES: a window takes all that it is given, so
  // AccumulationOptions::micro_batches is more than Options::micro_batches.
  BatchLoader(std::span<const uint8_t> text, const Options& options, int rank, int size,
              const sherd::Device& device);

  // The most rows of a batch.
  int64_t rows() const { return rows_; }
  std::optional<Batch> operator()();

 private:
  const std::span<const uint8_t> text_;
  const SampleOrder order_;
  const sherd::Device device_;
  const int64_t seq_;
  const int64_t batch_;
  const int64_t steps_;
  const int64_t rows_;
  const std::vector<data::Range> mine_;  // of each step's samples
  int64_t step_ = 0;
  size_t taken_ = 0;  // of mine_
};

}  // namespace llm
