#include "sherd/autograd/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

void CheckRate(double rate, const char* name) {
  if (std::isfinite(rate) && rate >= 0.0) return;
  ThrowInvalidArgument(absl::StrCat(name, " is a finite rate of at least 0, got ", rate),
                       {.op = "schedule"});
}

void CheckSteps(int64_t value, const char* name, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  ThrowInvalidArgument(value < least
                           ? absl::StrCat(name, " is at least ", least, ", got ", value)
                           : absl::StrCat(name, " is ", value, ", more than the ", most, " steps"),
                       {.op = "schedule"});
}

void CheckDecay(double highest, double lowest, int64_t steps, int64_t warmup) {
  CheckRate(highest, "highest");
  CheckRate(lowest, "lowest");
  if (lowest > highest) {
    ThrowInvalidArgument(absl::StrCat("lowest ", lowest, " is above highest ", highest),
                         {.op = "schedule"});
  }
  CheckSteps(steps, "steps", 1, steps);
  CheckSteps(warmup, "warmup", 0, steps);
}

// The rate of the rise for the step after `made`.
double Rise(double highest, int64_t made, int64_t warmup) {
  return highest * static_cast<double>(made + 1) / static_cast<double>(warmup);
}

// Which part of the steps from `begin` to `end` is made: 0 to 1.
double PartMade(int64_t made, int64_t begin, int64_t end) {
  if (made <= begin) return 0.0;
  if (made >= end) return 1.0;
  return static_cast<double>(made - begin) / static_cast<double>(end - begin);
}

}  // namespace

Schedule::Schedule(double rate) : rate_([rate](int64_t) { return rate; }) {
  CheckRate(rate, "the learning rate");
}

Schedule ConstantSchedule(const ConstantOptions& o) {
  CheckRate(o.rate, "rate");
  CheckSteps(o.warmup, "warmup", 0, o.warmup);
  return [o](int64_t made) { return made < o.warmup ? Rise(o.rate, made, o.warmup) : o.rate; };
}

Schedule LinearSchedule(const DecayOptions& o) {
  CheckDecay(o.highest, o.lowest, o.steps, o.warmup);
  return [o](int64_t made) {
    if (made < o.warmup) return Rise(o.highest, made, o.warmup);
    return o.highest + (o.lowest - o.highest) * PartMade(made, o.warmup, o.steps);
  };
}

Schedule CosineSchedule(const DecayOptions& o) {
  CheckDecay(o.highest, o.lowest, o.steps, o.warmup);
  return [o](int64_t made) {
    if (made < o.warmup) return Rise(o.highest, made, o.warmup);
    const double turn = std::numbers::pi * PartMade(made, o.warmup, o.steps);
    return o.highest - 0.5 * (o.highest - o.lowest) * (1.0 - std::cos(turn));
  };
}

Schedule WarmupStableDecaySchedule(const WarmupStableDecayOptions& o) {
  CheckDecay(o.highest, o.lowest, o.steps, o.warmup);
  CheckSteps(o.decay, "decay", 0, o.steps);
  CheckSteps(o.warmup + o.decay, "warmup + decay", 0, o.steps);
  return [o](int64_t made) {
    if (made < o.warmup) return Rise(o.highest, made, o.warmup);
    return o.highest + (o.lowest - o.highest) * PartMade(made, o.steps - o.decay, o.steps);
  };
}

Schedule InverseSqrtSchedule(const InverseSqrtOptions& o) {
  CheckRate(o.highest, "highest");
  CheckSteps(o.warmup, "warmup", 1, o.warmup);
  return [o](int64_t made) {
    if (made < o.warmup) return Rise(o.highest, made, o.warmup);
    return o.highest * std::sqrt(static_cast<double>(o.warmup) / static_cast<double>(made));
  };
}

int64_t OptimizerSteps(const RunLength& run) {
  CheckSteps(run.micro_batches, "micro_batches", 0, run.micro_batches);
  CheckSteps(run.per_window, "per_window", 1, run.per_window);
  CheckSteps(run.epochs, "epochs", 0, run.epochs);
  return run.epochs * ((run.micro_batches + run.per_window - 1) / run.per_window);
}

}  // namespace sherd
