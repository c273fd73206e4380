#include "llm/batches.h"

#include <numeric>

#include "llm/text_data.h"

namespace llm {

Batch MakeBatch(std::span<const uint8_t> text, std::span<const int64_t> starts, int64_t seq,
                const sherd::Device& device) {
  const auto rows = static_cast<int64_t>(starts.size());
  const auto elems = static_cast<size_t>(rows * seq);
  const auto row = static_cast<size_t>(seq);
  std::vector<int64_t> tokens(elems, 0);
  std::vector<int64_t> labels(elems, kIgnored);
  for (size_t i = 0; i < starts.size(); ++i) {
    CopyWindow(text, starts[i], std::span(tokens).subspan(i * row, row),
               std::span(labels).subspan(i * row, row));
  }
  return {sherd::Tensor::FromHost<int64_t>(device, tokens, {rows, seq}),
          sherd::Tensor::FromHost<int64_t>(device, labels, {rows, seq}),
          {}};
}

BatchLoader::BatchLoader(std::span<const uint8_t> text, const Options& o, int rank, int size,
                         const sherd::Device& device)
    : text_(text),
      order_(static_cast<int64_t>(text.size()), o.seq, o.seed),
      device_(device),
      seq_(o.seq),
      batch_(o.batch),
      steps_(o.steps),
      rows_((o.batch + o.micro_batches * size - 1) / (o.micro_batches * size)),
      mine_(data::ShareOf(data::CutMicroBatches(o.batch, rows_), rank, size)) {}

std::optional<Batch> BatchLoader::operator()() {
  if (step_ == steps_) return std::nullopt;
  if (taken_ == mine_.size()) {
    taken_ = 0;
    ++step_;
    return std::nullopt;
  }
  const data::Range range = mine_[taken_++];
  std::vector<int64_t> samples(static_cast<size_t>(range.end - range.begin));
  std::iota(samples.begin(), samples.end(), step_ * batch_ + range.begin);
  std::vector<int64_t> starts;
  starts.reserve(samples.size());
  for (int64_t sample : samples) starts.push_back(order_.Start(sample));
  Batch batch = MakeBatch(text_, starts, seq_, device_);
  batch.samples = std::move(samples);
  return batch;
}

}  // namespace llm
