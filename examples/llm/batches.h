#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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

// Makes a batch of the windows of `text` that begin at `starts`, filled up to `rows` with rows
// without labels. REQUIRES: starts.size() <= rows.
Batch MakeBatch(std::span<const uint8_t> text, std::span<const int64_t> starts, int64_t rows,
                int64_t seq, const sherd::Device& device);

// Hands one rank its share of the micro-batches of a run, in order, and nothing after the last.
//
// Step s takes the samples [(s - 1) batch, s batch) of one order. They are cut into micro-batches
// first and over the ranks second, so the samples of a step do not depend on either.
class BatchLoader {
 public:
  // Ownership: `text` outlives this object. REQUIRES: CheckBatch(options, size) is OK.
  BatchLoader(std::span<const uint8_t> text, const Options& options, int rank, int size,
              const sherd::Device& device);

  // Rows of each batch.
  int64_t rows() const { return rows_; }
  std::optional<Batch> operator()();

 private:
  const std::span<const uint8_t> text_;
  const SampleOrder order_;
  const sherd::Device device_;
  const int64_t seq_;
  const int64_t rows_;
  const int64_t skip_;  // samples from one micro-batch of this rank to the next
  const int64_t end_;   // samples of the run
  int64_t next_;        // the first sample of the next batch
};

}  // namespace llm
