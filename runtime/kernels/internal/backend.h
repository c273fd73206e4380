#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/attention.h"
#include "sherd/runtime/kernels/broadcast.h"
#include "sherd/runtime/kernels/cross_entropy.h"
#include "sherd/runtime/kernels/layer_norm.h"
#include "sherd/runtime/kernels/optimizer_step.h"
#include "sherd/runtime/kernels/pointwise_loss.h"
#include "sherd/runtime/kernels/reduce.h"
#include "sherd/runtime/kernels/unary.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// What CrossEntropyPieces does, on a device that is not the CPU.
class CrossEntropyPiecesBackend {
 public:
  virtual ~CrossEntropyPiecesBackend() = default;
  virtual void Add(const Tensor& logits, int64_t first) = 0;
  virtual CrossEntropyResult Finish(const Tensor& lse) const = 0;
  virtual void Backward(const Tensor& logits, int64_t first, const Tensor& lse, double scale,
                        const Tensor& grad, Write write) const = 0;
};

// The arithmetic of a device that is not the CPU: a function for each of this folder's, of the same
// name and contract, which calls it when its output lives there.
//
// All are pure, so that a backend without one of them does not compile. A call may return before
// the device has computed; functions that return numbers wait. An id that is out of range is an
// error of a later call that waits, and is skipped until then.
class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // attention.h
  virtual void Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionOptions& options, const Tensor& out,
                         const Tensor& lse) const = 0;
  virtual void AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& out, const Tensor& lse,
                                 const AttentionOptions& options, const Tensor& grad_q,
                                 Write write_q, const Tensor& grad_k, Write write_k,
                                 const Tensor& grad_v, Write write_v) const = 0;
  // broadcast.h
  virtual void Broadcast(Arithmetic op, const Tensor& a, const Tensor& b, const Tensor& out,
                         Write write) const = 0;
  // cross_entropy.h
  virtual CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                          const CrossEntropyOptions& options,
                                          const Tensor& lse) const = 0;
  virtual void CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                                    const CrossEntropyOptions& options, const Tensor& lse,
                                    double scale, const Tensor& grad_logits, Write write) const = 0;
  virtual std::unique_ptr<CrossEntropyPiecesBackend> MakeCrossEntropyPieces(
      const Tensor& targets, int64_t classes, const CrossEntropyOptions& options) const = 0;
  // dropout.h
  virtual void Dropout(const Tensor& x, uint64_t key, std::span<const int64_t> row_samples,
                       double p, const Tensor& out, Write write) const = 0;
  // elementwise.h
  virtual void Add(const Tensor& a, const Tensor& b, const Tensor& out, Write write) const = 0;
  virtual void Mul(const Tensor& a, const Tensor& b, const Tensor& out, Write write) const = 0;
  virtual void Scale(const Tensor& x, double alpha, const Tensor& out, Write write) const = 0;
  virtual void Copy(const Tensor& x, const Tensor& out, Write write) const = 0;
  virtual void Cast(const Tensor& x, const Tensor& out, Write write) const = 0;
  virtual void Fill(const Tensor& out, double value) const = 0;
  virtual void Silu(const Tensor& x, const Tensor& out) const = 0;
  virtual void SiluBackward(const Tensor& grad, const Tensor& x, const Tensor& grad_x,
                            Write write) const = 0;
  virtual void SiluMul(const Tensor& gate, const Tensor& up, const Tensor& out) const = 0;
  virtual void SiluMulBackward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                               const Tensor& grad_gate, Write write_gate, const Tensor& grad_up,
                               Write write_up) const = 0;
  // embedding.h
  virtual void Embedding(const Tensor& ids, const Tensor& table, const Tensor& out) const = 0;
  virtual void EmbeddingBackward(const Tensor& grad, const Tensor& ids, const Tensor& grad_table,
                                 Write write) const = 0;
  // indexing.h
  virtual void IndexSelect(const Tensor& x, int dim, const Tensor& ids,
                           const Tensor& out) const = 0;
  virtual void IndexAdd(const Tensor& x, int dim, const Tensor& ids, const Tensor& out,
                        Write write) const = 0;
  virtual void Gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out) const = 0;
  virtual void ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& out,
                          Write write) const = 0;
  virtual void Where(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out,
                     Write write) const = 0;
  // l2_normalize.h
  virtual void L2Normalize(const Tensor& x, double eps, const Tensor& out,
                           const Tensor& norms) const = 0;
  virtual void L2NormalizeBackward(const Tensor& grad, const Tensor& x, const Tensor& norms,
                                   double eps, const Tensor& grad_x, Write write) const = 0;
  // layer_norm.h
  virtual void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                         const Tensor& out, const Tensor& mean, const Tensor& inv_std) const = 0;
  virtual void LayerNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                 const Tensor& mean, const Tensor& inv_std,
                                 const LayerNormGradients& gradients) const = 0;
  // matmul.h
  virtual void Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                      const Tensor& out, Write write) const = 0;
  // max_over.h
  virtual void MaxOver(const Tensor& x, int dim, const Tensor& values,
                       const Tensor& indices) const = 0;
  // optimizer_step.h
  virtual void AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
                         const AdamWCoefficients& coefficients) const = 0;
  virtual void SgdStep(const Tensor& param, const Tensor& grad, const Tensor& m,
                       const SgdCoefficients& coefficients) const = 0;
  virtual void MomentumStep(const Tensor& update, const Tensor& grad, const Tensor& m,
                            const MomentumCoefficients& coefficients) const = 0;
  // pointwise_loss.h
  virtual PointwiseLossResult PointwiseLossSum(PointwiseLoss loss, const Tensor& x,
                                               const Tensor& targets,
                                               std::optional<double> ignored) const = 0;
  virtual void PointwiseLossBackward(PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                                     std::optional<double> ignored, double scale,
                                     const Tensor& grad_x, Write write) const = 0;
  // power.h
  virtual void Power(const Tensor& x, double exponent, const Tensor& out) const = 0;
  virtual void PowerBackward(const Tensor& grad, const Tensor& x, double exponent,
                             const Tensor& grad_x, Write write) const = 0;
  // random.h
  virtual void FillNormal(const Tensor& out, uint64_t key, int64_t first_element, double mean,
                          double stddev) const = 0;
  virtual void FillUniform(const Tensor& out, uint64_t key, int64_t first_element, double low,
                           double high) const = 0;
  // reduce.h
  virtual void ReduceEach(Reduction what, std::span<const Tensor> xs,
                          std::span<double> out) const = 0;
  // rms_norm.h
  virtual void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out,
                       const Tensor& inv_rms) const = 0;
  virtual void RmsNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                               const Tensor& inv_rms, const Tensor& grad_x, Write write_x,
                               const Tensor& grad_weight, Write write_weight) const = 0;
  // rope.h
  virtual void Rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t first_position,
                    bool inverse, const Tensor& out, Write write) const = 0;
  // softmax.h
  virtual void Softmax(const Tensor& x, const Tensor& out) const = 0;
  virtual void LogSoftmax(const Tensor& x, const Tensor& out) const = 0;
  virtual void SoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                               Write write) const = 0;
  virtual void LogSoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                                  Write write) const = 0;
  // sum_over.h
  virtual void SumOver(const Tensor& x, const Tensor& out, double scale, Write write) const = 0;
  // unary.h
  virtual void Unary(UnaryFunction function, const Tensor& x, const Tensor& out) const = 0;
  virtual void UnaryBackward(UnaryFunction function, const Tensor& grad, const Tensor& saved,
                             const Tensor& grad_x, Write write) const = 0;
  virtual void Clamp(const Tensor& x, double low, double high, const Tensor& out) const = 0;
  virtual void ClampBackward(const Tensor& grad, const Tensor& x, double low, double high,
                             const Tensor& grad_x, Write write) const = 0;
};

// The arithmetic of the device a tensor lives on; null for a CPU.
inline const KernelBackend* BackendOf(const Tensor& x) {
  const DeviceBackend* const backend = x.device().backend();
  return backend == nullptr ? nullptr : &backend->kernels();
}

}  // namespace sherd::kernels
