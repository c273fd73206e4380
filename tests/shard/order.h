#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/module.h"
#include "sherd/runtime/core/events.h"
#include "sherd/shard/fully_shard.h"

namespace sherd::testing {

// What the model's thread did since the last call, as words of a letter and a unit: F and B for a
// forward or backward that opens, C for a recompute, U for a gather asked for, P for a reduction
// asked for, R for parameters freed; "0" for block0, "r" for the root, the
// last letter of any other name.
class Order {
 public:
  explicit Order(Module& model) : context_(ContextOf(model)) { context_->SetEvents(&log_); }
  ~Order() {
    context_->WaitReductions(0);  // which write to the log
    context_->SetEvents(nullptr);
  }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  std::string Take() {
    std::string words;
    for (const Event& event : log_.Read(std::exchange(from_, log_.position()))) {
      const char* letter = LetterOf(event);
      if (letter == nullptr) continue;
      const std::string unit = log_.NameOf(event.unit);
      absl::StrAppend(&words, words.empty() ? "" : " ", letter,
                      unit == "the root module" ? "r" : unit.substr(unit.size() - 1));
    }
    return words;
  }

 private:
  static const char* LetterOf(const Event& event) {
    if (event.kind == EventKind::kReshard) return "R";
    if (event.kind == EventKind::kScope && event.point == EventPoint::kBegin) {
      return event.phase == EventPhase::kBackward    ? "B"
             : event.phase == EventPhase::kRecompute ? "C"
                                                     : "F";
    }
    if (event.kind == EventKind::kCollective && event.point == EventPoint::kEnqueue) {
      return event.op == EventOp::kAllGather ? "U" : "P";
    }
    return nullptr;
  }
  EventLog log_;
  uint64_t from_ = 0;
  const std::shared_ptr<ShardContext> context_;
};

}  // namespace sherd::testing
