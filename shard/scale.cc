#include "sherd/shard/scale.h"

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

const ScaleOwner::Owned* ScaleOwner::Find(const Unit& root) const {
  const auto it = std::find_if(owned_.begin(), owned_.end(),
                               [&](const Owned& owned) { return owned.root == &root; });
  return it != owned_.end() ? &*it : nullptr;
}

void ScaleOwner::Report(ScaleBy owner, const std::string& text) {
  const uint32_t bit = 1u << static_cast<int>(owner);
  if ((reported_ & bit) != 0) return;
  reported_ |= bit;
  if (context_.rank() != 0 || !context_.log()) return;
  context_.log()({LogLevel::kInfo, context_.rank(), text});
}

void ScaleOwner::Acquire(const Unit& root, ScaleBy by, const std::string& window_name) {
  if (by == ScaleBy::kCaller) {
    return Report(by, "scale: gradients are sums, which the caller divides (kCaller)");
  }
  const Owned* const owned = Find(root);
  if (owned != nullptr || by == ScaleBy::kUnitDivisor) {
    ThrowFailedPrecondition(
        absl::StrCat("gradients of '", root.name(), "' are divided by ",
                     owned != nullptr ? owned->by : "the number of ranks (kUnitDivisor)",
                     " and cannot be by ", window_name, " too: keep one of them"),
        {.op = kOp});
  }
  owned_.push_back({&root, window_name});
  Report(ScaleBy::kWindow,
         absl::StrCat("scale: gradients are divided by the windows of ", window_name,
                      by == ScaleBy::kAuto ? ", while it exists (kAuto)" : " (kWindow)"));
}

void ScaleOwner::Release(const Unit& root, const std::string& window_name) noexcept {
  owned_.erase(std::remove_if(owned_.begin(), owned_.end(),
                              [&](const Owned& owned) {
                                return owned.root == &root && owned.by == window_name;
                              }),
               owned_.end());
}

double ScaleOwner::SeedFactor(const Unit& root, ScaleBy by) {
  if (windows_ > 0) return 1.0;
  if (by == ScaleBy::kCaller) {
    Report(by, "scale: gradients are sums, which the caller divides (kCaller)");
    return 1.0;
  }
  const Owned* const owned = Find(root);
  if (owned != nullptr || by == ScaleBy::kWindow) {
    ThrowFailedPrecondition(
        absl::StrCat("gradients of '", root.name(), "' are divided by ",
                     owned != nullptr ? owned->by : "windows (kWindow), and there is none",
                     ": give the loss to window->Backward"),
        {.op = kOp});
  }
  Report(ScaleBy::kUnitDivisor,
         absl::StrCat(
             "scale: gradients are divided by the number of ranks (", context_.size(), ")",
             by == ScaleBy::kAuto ? ", as no Accumulation exists (kAuto)" : " (kUnitDivisor)"));
  return 1.0 / context_.size();
}

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
