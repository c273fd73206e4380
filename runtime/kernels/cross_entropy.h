#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// The negative log-likelihood of a softmax over logits, summed over rows.
namespace sherd::kernels {

class CrossEntropyPiecesBackend;

// What is summed for a row with logits x of V classes and target t, lse = log sum exp(x):
//   (1 - s) (lse - x[t]) + s (lse - mean(x)) + z lse^2
// Sources: Szegedy et al. 2016 for smoothing, s / V on every class, the target included, as
// PyTorch's label_smoothing; Chowdhery et al. 2022 (PaLM) for z.
struct CrossEntropyOptions {
  // Rows with this target have no loss and a gradient of zero.
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;  // s, in [0, 1]. Costs a second sum over the row.
  double z_loss = 0.0;           // z; keeps lse near 0, usually 1e-4
};

struct CrossEntropyResult {
  double loss_sum = 0.0;  // over the rows that count
  int64_t count = 0;      // rows whose target is not the ignored one
};

// Sums the loss over rows whose target is not ignored, in f64 in an order fixed by the shape, and
//   keeps each row's log of the sum of exponentials for the backward.
//
// Shapes: logits [N, V] (or more leading dimensions that merge), rows may be strided; targets N
//   elements, i32 or i64; lse [N] contiguous, f64 for f64, else f32.
// Errors: kInvalidArgument for a target outside [0, V) that is not `ignore_index`, naming its
//   index and value, before anything is written.
CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                const CrossEntropyOptions& options, const Tensor& lse);

// grad_logits (+)= scale * d loss / d logits; zero in ignored rows. Without smoothing and z that is
// scale * (softmax(logits) - onehot(targets)).
//
// Shapes: as CrossEntropy; `lse` as it wrote it. Errors: as CrossEntropy.
// REQUIRES: grad_logits has the dtype of logits; it is `logits` itself (with kOverwrite) or
//   overlaps no input.
void CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                          const CrossEntropyOptions& options, const Tensor& lse, double scale,
                          const Tensor& grad_logits, Write write = Write::kOverwrite);

// The same where the classes come piece by piece, so that [N, V] never exists as a whole.
//
// Memory: four numbers of 8 bytes for each row, on the host.
class CrossEntropyPieces {
 public:
  // Errors: as CrossEntropy; `classes` is V.
  CrossEntropyPieces(const Tensor& targets, int64_t classes, const CrossEntropyOptions& options);

  // Takes logits [N, n] of the classes [first, first + n). Each class once, in ascending order.
  void Add(const Tensor& logits, int64_t first);
  // Writes lse [N] and returns the loss. REQUIRES: all classes were added.
  CrossEntropyResult Finish(const Tensor& lse) const;
  // grad (+)= scale * d loss / d logits for the classes [first, first + n); needs no Add.
  void Backward(const Tensor& logits, int64_t first, const Tensor& lse, double scale,
                const Tensor& grad, Write write = Write::kOverwrite) const;

 private:
  const CrossEntropyOptions options_;
  const int64_t classes_;
  std::vector<int64_t> targets_;  // -1: ignored
  std::vector<double> lse_, target_logit_, logit_sum_;
  std::shared_ptr<CrossEntropyPiecesBackend> other_;  // does it all where it is not null
};

}  // namespace sherd::kernels
