#pragma once

#include <cstdint>
#include <span>

namespace sherd {

// The defaults are those of torch.cuda.amp.GradScaler.
struct LossScalerOptions {
  // The first scale. A power of two loses no bits.
  double init_scale = 65536.0;
  // What the scale is multiplied with after growth_interval good steps in a row.
  double growth_factor = 2.0;
  // What the scale is multiplied with after a step whose gradients overflowed.
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

// What a scaler knows, to be saved and set again.
struct LossScalerState {
  double scale = 65536.0;
  int64_t good_steps = 0;  // since the scale last changed
};

// Keeps the gradients of f16 training in the range of f16: the loss is multiplied by a scale before
// its backward, the optimizer divides by it, and the scale follows the overflows.
//
// A plain object: whoever seeds a backward multiplies by scale(), whoever steps multiplies the
// gradients by grad_scale(), and once a step every rank calls Update with the same verdict. So the
// scale is the same on all ranks without a message. bf16 and f32 need none of this.
// Threads: one at a time.
// Source: Micikevicius et al. 2018, "Mixed Precision Training".
class LossScaler {
 public:
  // Errors: kInvalidArgument for a scale that is not a positive number of f32's range, a growth
  //   factor not above 1, a backoff factor not between 0 and 1, or an interval below 1.
  explicit LossScaler(LossScalerOptions options = {});

  // What the seed of a backward is multiplied with.
  double scale() const { return state_.scale; }
  // What undoes it: of a step's gradients, before their norm is compared with anything.
  double grad_scale() const { return 1.0 / state_.scale; }

  // Whether gradients overflowed, from the parts of their norm that all ranks have summed (see
  // clip_grad.h): one infinity or NaN on any rank reaches every rank, also one with no elements.
  static bool FoundInf(std::span<const double> agreed_parts);

  // After each step. With `found_inf`, which must be the verdict of all ranks, the step is to be
  // skipped and the scale backs off; after growth_interval good steps in a row it grows. It stays
  // within the normal numbers of f32, so that it can always be multiplied and divided with.
  void Update(bool found_inf);

  // For saved states. Errors: kInvalidArgument for a scale that is not positive or out of range, or
  // a negative count; the scaler stays as it was.
  const LossScalerState& state() const { return state_; }
  void Restore(const LossScalerState& state);
  // As given.
  const LossScalerOptions& options() const { return options_; }

 private:
  const LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace sherd
