#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "classify/options.h"
#include "sherd/autograd/loss/labels.h"
#include "sherd/autograd/loss/pooling.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/random.h"

namespace classify {

inline constexpr int64_t kVocabulary = 64, kClasses = 4, kPad = 0;
inline constexpr int64_t kFirst = 1;  // begins every sequence; encoders read the class there

struct Batch {
  sherd::Tensor tokens;          // [B, T] i64
  sherd::Tensor mask;            // [B, T] i64: 1 where there is a token
  sherd::LossLabels labels;      // [B] i64, perhaps on another device
  std::vector<int64_t> samples;  // [B]: each row's global number
};

// Samples [first, first + rows): the same whoever makes them. A class's own tokens are more
// frequent in its sequences; lengths vary. Encoders get padding behind the tokens, decoders every
// second time before them.
inline Batch MakeBatch(const Options& o, int64_t first, int64_t rows, const sherd::Device& device) {
  const auto draw = [&](int64_t sample, int64_t place, int64_t below) {
    const auto words = sherd::Philox4x32(
        static_cast<uint64_t>(o.seed), static_cast<uint64_t>(sample), static_cast<uint64_t>(place));
    return static_cast<int64_t>(words[0]) % below;
  };
  std::vector<int64_t> tokens(static_cast<size_t>(rows * o.seq), kPad), labels, samples;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t sample = first + row;
    const int64_t label = draw(sample, 0, kClasses);
    const int64_t length = o.seq / 2 + draw(sample, 1, o.seq / 2 + 1);
    const bool left = !o.encoder && sample % 2 == 1;
    const int64_t begin = row * o.seq + (left ? o.seq - length : 0);
    for (int64_t t = 0; t < length; ++t) {
      // Ids 2, 3, ... belong to class 0, 1, ... in turn; half the tokens are of the label's class.
      const int64_t groups = (kVocabulary - 2) / kClasses;
      const int64_t of =
          draw(sample, 3 * t + 2, 2) == 0 ? label : draw(sample, 3 * t + 3, kClasses);
      const int64_t id = 2 + draw(sample, 3 * t + 4, groups) * kClasses + of;
      tokens[static_cast<size_t>(begin + t)] = t == 0 ? kFirst : id;
    }
    labels.push_back(label);
    samples.push_back(sample);
  }
  const sherd::Device place =
      o.labels_on == 0 ? device : sherd::Device::Cpu({.index = static_cast<int>(o.labels_on)});
  const auto ids = sherd::Tensor::FromHost<int64_t>(device, tokens, {rows, o.seq});
  return {ids, sherd::MaskOfTokens(ids, kPad),
          sherd::Tensor::FromHost<int64_t>(place, labels, {rows}), std::move(samples)};
}

}  // namespace classify
