#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/optim/optimizer.h"
#include "sherd/autograd/optim/schedule.h"
#include "sherd/shard/clip_grad.h"
#include "sherd/shard/loss_scaler.h"
#include "sherd/shard/loss_terms.h"
#include "sherd/shard/optimizer_in_backward.h"

namespace sherd {

// When a window's gradients are reduced. The sums are the same.
enum class WindowSync : uint8_t {
  // Each micro-batch is reduced over the axes that cut the gradients, the last one over all: least
  // memory, and the fewest bytes between the copies of a hybrid mesh.
  kCutEach,
  // Each micro-batch is reduced over all axes. Memory as kCutEach.
  kFullEach,
  // Nothing is sent before the last micro-batch. Memory: the whole gradients of the model.
  kLast,
  // As the caller's SetGradientSync says for each unit; what is left is reduced by Finish.
  kCaller,
};

// A window whose batches have nothing to learn on any rank: no labelled token, no weight.
enum class EmptyWindow : uint8_t {
  // Nothing is computed and Finish skips the step: no counter moves.
  kSkip,
  // The batches are handed out and their gradients are zeros; the optimizer steps, so that momentum
  // and decay go on, and counters move.
  kCount,
};

// A loss or a gradient norm that is not finite, without a loss scaler; the same on all ranks.
enum class NonFinite : uint8_t {
  // Finish throws, naming the first parameter; gradients are dropped and nothing has changed.
  kError,
  // Finish skips the step: no counter moves.
  kSkip,
  // The optimizer steps all the same.
  kStep,
};

// How samples are cut into steps.
struct AccumulationOptions {
  // The most micro-batches that a rank takes for one optimizer step.
  int64_t micro_batches = 1;
  WindowSync sync = WindowSync::kCutEach;
  // The losses of each micro-batch, in the order that Backward takes them.
  std::vector<LossTerm> losses = {{}};
  EmptyWindow empty = EmptyWindow::kSkip;
  // Of f16 training: seeds are multiplied by its scale and gradients divided by it; Finish tells it
  // the verdict of all ranks, and skips a step that overflowed. The caller's; outlives the
  // Accumulation.
  LossScaler* scaler = nullptr;
  // Steps units inside the last micro-batch's backward; the optimizer to give to Finish. The
  // caller's; outlives the Accumulation.
  OptimizerInBackward* in_backward = nullptr;
};

// What one step does with the summed gradients.
struct FinishOptions {
  // Largest norm of all gradients together; larger ones are scaled down to it. 0: no clipping.
  double clip = 0.0;
  NormType norm = NormType::kTwo;
  NonFinite non_finite = NonFinite::kError;
};

// Why a step was skipped.
enum class StepSkip : uint8_t {
  kNone,
  kNonFinite,  // of the loss or the norm: the scaler's overflow, or NonFinite::kSkip
  kEmpty,      // EmptyWindow::kSkip
};

// One optimizer step, the same on all ranks.
struct StepResult {
  int64_t step = 0;            // the optimizer steps made, with this one; counted from 1
  double loss = 0.0;           // what was optimised: the terms' means, times their weights, summed
  std::vector<double> losses;  // the mean of each term, without its weight
  int64_t items = 0;           // of the first term, over all ranks
  int64_t samples = 0;         // as its count told; 0 if it did not
  int64_t micro_batches = 0;   // that all ranks held together
  double grad_norm = 0.0;      // before clipping
  double learning_rate = 0.0;
  // Nothing was updated, the gradients were dropped, and `step` is the step that was not made.
  bool skipped = false;
  StepSkip why = StepSkip::kNone;
};

}  // namespace sherd
