#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

namespace sherd {

// A learning rate that follows the optimizer steps made so far.
//
// Steps are those of the optimizer, not micro-batches, and skipped ones do not count; so a schedule
// depends neither on the number of ranks nor on how samples are cut, and its total includes short
// last windows (OptimizerSteps). A plain number is a constant schedule.
// A value; copies are cheap and safe to read from several threads.
class Schedule {
 public:
  // A constant. Errors: kInvalidArgument for a rate that is negative or not finite.
  Schedule(double rate);  // NOLINT: window->Finish(optimizer, 1e-3)
  // Yours: the rate of the next step, from the steps made.
  template <typename Rate>
  requires(std::invocable<const Rate&, int64_t> && !std::convertible_to<Rate, double>)
      Schedule(Rate rate)
      : rate_(std::move(rate)) {}  // NOLINT

  // The rate of the step that follows `steps_made` others: At(0) is that of the first step.
  double At(int64_t steps_made) const { return rate_(steps_made); }

 private:
  std::function<double(int64_t)> rate_;
};

// All schedules below begin with a linear rise over `warmup` steps, whose k-th step has k / warmup
// of the highest rate; so the first step is not lost to a rate of zero. Errors of all:
// kInvalidArgument naming what is negative, not finite or does not fit: lowest above highest, more
// warmup than steps.

struct ConstantOptions {
  double rate = 1e-3;
  int64_t warmup = 0;
};
Schedule ConstantSchedule(const ConstantOptions& options);

struct DecayOptions {
  double highest = 1e-3;
  double lowest = 0.0;  // once `steps` are made, and after them
  int64_t steps = 0;    // of the whole run, the rise included
  int64_t warmup = 0;
};
// highest + (lowest - highest) * p, where p is the part made of the steps behind the rise: from
// 1e-3 over 100 steps, 9e-4 after 10.
Schedule LinearSchedule(const DecayOptions& options);
// highest - (highest - lowest) * (1 - cos(pi p)) / 2.
// Source: Loshchilov and Hutter 2017, "SGDR".
Schedule CosineSchedule(const DecayOptions& options);

struct WarmupStableDecayOptions {
  double highest = 1e-3;
  double lowest = 0.0;
  int64_t steps = 0;   // of the whole run
  int64_t warmup = 0;  // the first of them
  int64_t decay = 0;   // the last of them: linear from highest to lowest
};
// Source: Hu et al. 2024, "MiniCPM".
Schedule WarmupStableDecaySchedule(const WarmupStableDecayOptions& options);

struct InverseSqrtOptions {
  double highest = 1e-3;
  // The rise, and the scale of the fall: 4 times as many steps halve the rate. At least 1.
  int64_t warmup = 1;
};
// highest * sqrt(warmup / steps_made) behind the rise.
// Source: Vaswani et al. 2017, "Attention Is All You Need".
Schedule InverseSqrtSchedule(const InverseSqrtOptions& options);

struct RunLength {
  int64_t micro_batches = 0;  // of one rank in an epoch: the most that any rank has
  int64_t per_window = 1;     // AccumulationOptions::micro_batches
  int64_t epochs = 1;
};
// Optimizer steps of a run whose windows do not reach over the end of an epoch: the short last
// window of each is a step too. 10 micro-batches, 4 to a window, 2 epochs: 6.
// Errors: kInvalidArgument for a negative number, or no micro-batch in a window.
int64_t OptimizerSteps(const RunLength& run);

}  // namespace sherd
