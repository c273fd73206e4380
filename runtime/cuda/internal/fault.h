#pragma once

#include <cstdint>

// What kernels find wrong in data: an id out of range. They skip it and note the first one here;
// the next call that waits for the device throws it.
namespace sherd::cuda {

enum class FaultOp : int32_t {
  kNone,
  kEmbedding,
  kEmbeddingBackward,
  kCrossEntropy,
  kIndexSelect,
  kIndexAdd,
  kGather,
  kScatterAdd,
  kPointwiseLoss,
  kAttention,
};

// In device memory, one for each device.
struct Fault {
  FaultOp op = FaultOp::kNone;  // kNone: all is well
  int32_t padding = 0;
  int64_t value = 0;  // what stood there
  int64_t limit = 0;  // [0, limit) would have been right
  int64_t place = 0;  // the index of the element that holds it
};

}  // namespace sherd::cuda
