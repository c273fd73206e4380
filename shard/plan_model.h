#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "sherd/autograd/module.h"
#include "sherd/shard/plan.h"

namespace sherd {

// The units that FullyShard(block, ...) for each of `blocks`, in this order, and then
// FullyShard(model, ...) would make. Their other fields are those of `like`; `granule` is that of
// FullyShardOptions.
// Cost: no memory is needed for the parameters; nothing is sent.
// Errors: kInvalidArgument if a block is not below the model.
PlanModel PlanModelOf(const Module& model, std::span<const Module* const> blocks,
                      const PlanUnit& like = {},
                      const std::function<int64_t(const Parameter&)>& granule = {});

}  // namespace sherd
