#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "sherd/autograd/loss/loss_sum.h"

namespace sherd {

// What the sum of a loss over a window is divided by.
enum class Divisor : uint8_t {
  // Its items on all ranks: labelled tokens, or what the loss's Count says.
  kItems,
  // The samples that the count tells, however many items each has.
  kSamples,
  // The micro-batches that all ranks hold together. The loss of each then stands for itself: a mean
  // of means, say, or a router's balance. Depends on how samples are split, by definition.
  kMicroBatches,
  // The weights that the count tells: of a loss that has multiplied its items with them.
  kWeights,
  // LossTerm::divisor, of a loss without a prior count: a router's balance, say, that stands for
  // itself in each micro-batch and is to be averaged over a number that the caller states.
  kGiven,
};

// One loss of a step, with a denominator of its own.
struct LossTerm {
  std::string name = "loss";  // for messages and metrics
  Divisor divide_by = Divisor::kItems;
  // Multiplies the mean in the total. Positive.
  double weight = 1.0;
  // Of kGiven: what the sum over all ranks and micro-batches is divided by. Positive.
  double divisor = 0.0;
  // The loss talks to the other ranks (shard/gather_rows.h), so every rank has to compute it in
  // every micro-batch. A batch without items is then handed out too, and ranks that hold different
  // numbers of micro-batches are an error on all of them.
  bool collective = false;
};

// What a batch holds of one loss, known from its labels before the forward. A callable that returns
// a plain number tells what the loss is divided by, and nothing else.
struct BatchCount {
  // Compared with what the losses report; -1: not told, so nothing is compared.
  int64_t items = -1;
  int64_t samples = -1;  // -1: not told
  double weight = -1.0;  // not negative; -1: not told

  // Whether there is nothing to learn in it.
  bool nothing() const { return items == 0 || samples == 0 || weight == 0.0; }
};

namespace internal {

// A number is what the term is divided by.
template <typename Number>
BatchCount ToBatchCount(Divisor divide_by, const Number& told) {
  if constexpr (std::is_convertible_v<const Number&, BatchCount>) {
    return told;
  } else {
    static_assert(std::is_arithmetic_v<Number>, "a count returns a number, or a sherd::BatchCount");
    if (divide_by == Divisor::kWeights) return {.weight = static_cast<double>(told)};
    static_assert(std::is_integral_v<Number> || std::is_floating_point_v<Number>);
    if (divide_by == Divisor::kSamples) return {.samples = static_cast<int64_t>(told)};
    return {.items = static_cast<int64_t>(told)};
  }
}

// What the loss's Count says of the batch's labels, or what a callable returns of the batch.
template <typename Count, typename Batch>
BatchCount CountBatch(Divisor divide_by, const Count& count, const Batch& batch) {
  if constexpr (requires { count.Count(batch.labels); }) {
    return {.items = count.Count(batch.labels)};
  } else {
    return ToBatchCount(divide_by, count(batch));
  }
}

}  // namespace internal
}  // namespace sherd
