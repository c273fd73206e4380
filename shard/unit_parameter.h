#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/core/shape.h"
#include "sherd/shard/layout.h"

namespace sherd {

// One parameter of a unit, or of a planned one, where it need not exist. The name is for messages;
// one that is not trainable is gathered and never reduced.
struct UnitParameter {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  bool trainable = true;
  int64_t granule = 1;  // see LayoutEntry
};

// What a layout needs to know of them, in the same order.
inline std::vector<LayoutEntry> EntriesOf(const std::vector<UnitParameter>& parameters) {
  std::vector<LayoutEntry> entries;
  for (const UnitParameter& p : parameters)
    entries.push_back({p.shape.numel(), p.dtype, p.trainable, p.granule});
  return entries;
}

}  // namespace sherd
