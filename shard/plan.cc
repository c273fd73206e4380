#include "sherd/shard/plan.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/internal/plan_run.h"

namespace sherd {
namespace {

[[noreturn]] void Refuse(const std::string& what) { ThrowInvalidArgument(what, {.op = "plan"}); }

void CheckUnit(const PlanUnit& unit) {
  const std::string name = absl::StrCat("unit '", unit.name, "': ");
  if (unit.calls < 1) Refuse(absl::StrCat(name, "calls is 1 or more, got ", unit.calls));
  if (unit.prefetch < 0) Refuse(absl::StrCat(name, "prefetch is 0 or more, got ", unit.prefetch));
  if (unit.activation_bytes < 0 || !(unit.forward_flops >= 0.0))
    Refuse(absl::StrCat(name, "activations and flops are 0 or more, got ", unit.activation_bytes,
                        " and ", unit.forward_flops));
}

void CheckLink(const char* name, const PlanLink& link) {
  if (link.bytes_per_second >= 0.0 && link.latency_seconds >= 0.0) return;
  Refuse(absl::StrCat(name, " has ", link.bytes_per_second, " bytes/s and a latency of ",
                      link.latency_seconds, " s; both are 0 or more"));
}

void CheckOptions(const PlanOptions& options) {
  if (options.shard_ranks < 1 || options.replicate_ranks < 1) {
    Refuse(absl::StrCat("a mesh of ", options.shard_ranks, " x ", options.replicate_ranks,
                        " ranks; both are 1 or more"));
  }
  if (options.micro_batches < 1)
    Refuse(absl::StrCat("micro_batches is 1 or more, got ", options.micro_batches));
  if (options.tokens < 0 || !(options.flops_per_second >= 0.0) || options.optimizer_states < 0)
    Refuse("tokens, flops_per_second and optimizer_states are 0 or more");
  CheckLink("shard_link", options.shard_link);
  CheckLink("replicate_link", options.replicate_link);
}

struct NamedPhase {
  const char* name;
  const PlanPhase* phase;
};

std::array<NamedPhase, 4> PhasesOf(const Plan& plan) {
  return {{{"init", &plan.init},
           {"forward", &plan.forward},
           {"backward", &plan.backward},
           {"step", &plan.step}}};
}

void AppendMemory(const Plan& plan, std::string* text) {
  absl::StrAppendFormat(text, "%-22s", "peak bytes of a rank");
  for (const NamedPhase& p : PhasesOf(plan)) absl::StrAppendFormat(text, " %18s", p.name);
  for (int c = 0; c < kMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    if (plan.peak_bytes(category) == 0) continue;
    absl::StrAppendFormat(text, "\n%-22s", std::string(NameOf(category)));
    for (const NamedPhase& p : PhasesOf(plan))
      absl::StrAppendFormat(text, " %18d", (*p.phase)[category]);
  }
  absl::StrAppendFormat(text, "\n%-22s", "total");
  for (const NamedPhase& p : PhasesOf(plan))
    absl::StrAppendFormat(text, " %18d", p.phase->total_peak_bytes);
  text->append("\n");
}

void AppendCollectives(const Plan& plan, std::string* text) {
  absl::StrAppendFormat(text, "%-10s %-16s %8s %18s %18s %12s\n", "phase", "collective", "count",
                        "bytes", "sent bytes", "seconds");
  for (const NamedPhase& p : PhasesOf(plan)) {
    for (size_t op = 0; op < p.phase->collectives.size(); ++op) {
      const PlanCollectives& c = p.phase->collectives[op];
      if (c.count == 0) continue;
      absl::StrAppendFormat(text, "%-10s %-16s %8d %18d %18d %12.6f\n", p.name,
                            std::string(NameOf(static_cast<EventOp>(op))), c.count, c.bytes,
                            c.sent_bytes, c.seconds);
    }
  }
}

}  // namespace

int64_t Plan::peak_bytes(MemoryCategory category) const {
  int64_t most = 0;
  for (const NamedPhase& p : PhasesOf(*this)) most = std::max(most, (*p.phase)[category]);
  return most;
}

int64_t Plan::total_peak_bytes() const {
  int64_t most = 0;
  for (const NamedPhase& p : PhasesOf(*this)) most = std::max(most, p.phase->total_peak_bytes);
  return most;
}

std::string Plan::ToString() const {
  std::string text = absl::StrFormat("%d parameters on %d ranks\n", parameters, ranks);
  AppendMemory(*this, &text);
  AppendCollectives(*this, &text);
  absl::StrAppendFormat(&text, "%-10s %12s %12s %12s\n", "phase", "seconds", "compute", "exposed");
  for (const NamedPhase& p : PhasesOf(*this)) {
    absl::StrAppendFormat(&text, "%-10s %12.6f %12.6f %12.6f\n", p.name, p.phase->seconds,
                          p.phase->compute_seconds, p.phase->exposed_seconds);
  }
  absl::StrAppendFormat(&text, "a step takes %.6f s\n", step_seconds());
  return text;
}

Plan MakePlan(const PlanModel& model, const PlanOptions& options) {
  CheckOptions(options);
  for (const PlanUnit& unit : model.blocks) CheckUnit(unit);
  CheckUnit(model.root);
  if (model.root.calls != 1) Refuse("the root is called once in a forward");
  Plan plan = internal::PlanRun(model, options).Run();
  plan.ranks = options.shard_ranks * options.replicate_ranks;
  const auto count = [&](const PlanUnit& unit) {
    for (const UnitParameter& p : unit.parameters) plan.parameters += p.shape.numel();
  };
  for (const PlanUnit& unit : model.blocks) count(unit);
  count(model.root);
  return plan;
}

}  // namespace sherd
