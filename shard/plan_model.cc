#include "sherd/shard/plan_model.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

PlanModel PlanModelOf(const Module& model, std::span<const Module* const> blocks,
                      const PlanUnit& like,
                      const std::function<int64_t(const Parameter&)>& granule) {
  std::set<const void*> claimed;
  const auto unit_of = [&](const Module& module, const std::string& name) {
    PlanUnit unit = like;
    unit.name = name;
    unit.parameters.clear();
    for (const Parameter& p : module.parameters()) {
      if (!claimed.insert(&p.state()).second) continue;
      unit.parameters.push_back(
          {p.name(), p.shape(), p.dtype(), p.requires_grad(), granule ? granule(p) : 1});
    }
    return unit;
  };
  PlanModel plan;
  for (const Module* block : blocks) {
    const Module* above = block;
    while (above != nullptr && above != &model) above = above->parent();
    if (above == nullptr || block == &model)
      ThrowInvalidArgument(absl::StrCat("module '", block->path(), "' is not below the model"),
                           {.op = "plan"});
    plan.blocks.push_back(unit_of(*block, block->path()));
  }
  plan.root = unit_of(model, "root");
  return plan;
}

}  // namespace sherd
