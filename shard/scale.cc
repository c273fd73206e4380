#include "sherd/shard/scale.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/context.h"
#include "sherd/shard/unit.h"

namespace sherd {
namespace {

constexpr char kOp[] = "scale";

}  // namespace

const ScaleOwner::Owned* ScaleOwner::Find(const Unit& root) const {
  const auto it = std::find_if(owned_.begin(), owned_.end(),
                               [&](const Owned& owned) { return owned.root == &root; });
  return it != owned_.end() ? &*it : nullptr;
}

void ScaleOwner::Report(ScaleBy owner, const std::string& text) {
  if (reported(owner)) return;
  reported_ |= 1u << static_cast<int>(owner);
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
  if (reported(ScaleBy::kUnitDivisor)) return 1.0 / context_.size();  // without making the text
  Report(ScaleBy::kUnitDivisor,
         absl::StrCat(
             "scale: gradients are divided by the number of ranks (", context_.size(), ")",
             by == ScaleBy::kAuto ? ", as no Accumulation exists (kAuto)" : " (kUnitDivisor)"));
  return 1.0 / context_.size();
}

}  // namespace sherd
