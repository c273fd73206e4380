#include "sherd/shard/window_scale.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/internal/sharded_module.h"

namespace sherd {
namespace {

constexpr char kOp[] = "scale";

// Gradients that were scaled before a window owns them would be scaled twice.
void CheckHoldsNothing(const Module& model, const std::string& name) {
  for (const internal::ShardedModule* sharded : internal::CollectSharded(model)) {
    Unit& unit = sharded->unit();
    for (int i = 0; i < unit.parameters(); ++i) {
      if (!unit.gradients_pending() && !unit.HeldGradient(i).defined()) continue;
      ThrowFailedPrecondition(
          absl::StrCat("parameter '", unit.parameter_name(i), "' of unit '", unit.name(),
                       "' holds a gradient, which ", name,
                       " would divide once more: step and clear it, or call Recover(), first"),
          {.op = kOp});
    }
  }
}

}  // namespace

WindowScale::WindowScale(const Module& model, CallSite site)
    : name_(absl::StrCat("the Accumulation of '", internal::PathOf(&model), "' made at ", site.file,
                         ":", site.line)) {
  const std::vector<internal::ShardedModule*> all = internal::CollectSharded(model);
  try {
    for (const internal::ShardedModule* sharded : all) {
      if (std::find(contexts_.begin(), contexts_.end(), sharded->context()) == contexts_.end()) {
        contexts_.push_back(sharded->context());
      }
      const internal::ShardedModule& root = sharded->root();
      const ScaleBy by = sharded->scale();
      const auto known = std::find_if(roots_.begin(), roots_.end(),
                                      [&](const Root& r) { return r.unit == &root.unit(); });
      if (known != roots_.end()) continue;
      root.context()->scale().Acquire(root.unit(), by, name_);
      roots_.push_back({root.context(), &root.unit()});
      divides_ = by != ScaleBy::kCaller;
    }
    if (divides_) CheckHoldsNothing(model, name_);
  } catch (...) {
    Release();
    throw;
  }
}

WindowScale::~WindowScale() { Release(); }

void WindowScale::Release() noexcept {
  for (const Root& root : roots_) root.context->scale().Release(*root.unit, name_);
}

void WindowScale::Count(int change) const {
  for (const std::shared_ptr<ShardContext>& context : contexts_) {
    context->scale().windows_ += change;
  }
}

}  // namespace sherd
