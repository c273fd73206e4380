#pragma once

#include "sherd/runtime/kernels/internal/backend.h"

namespace sherd::cuda {

// The kernels of a CUDA device. Each is defined in the file of its header's name in
// runtime/kernels, with the ending .cu. Threads: safe; work goes to the queue of the calling
// thread.
class Kernels final : public kernels::KernelBackend {
 public:
  void Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const kernels::AttentionOptions& options, const Tensor& out,
                 const Tensor& lse) const override;
  void AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& out, const Tensor& lse,
                         const kernels::AttentionOptions& options, const Tensor& grad_q,
                         kernels::Write write_q, const Tensor& grad_k, kernels::Write write_k,
                         const Tensor& grad_v, kernels::Write write_v) const override;
  void Broadcast(kernels::Arithmetic op, const Tensor& a, const Tensor& b, const Tensor& out,
                 kernels::Write write) const override;
  kernels::CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                           const kernels::CrossEntropyOptions& options,
                                           const Tensor& lse) const override;
  void CrossEntropyBackward(const Tensor& logits, const Tensor& targets,
                            const kernels::CrossEntropyOptions& options, const Tensor& lse,
                            double scale, const Tensor& grad_logits,
                            kernels::Write write) const override;
  std::unique_ptr<kernels::CrossEntropyPiecesBackend> MakeCrossEntropyPieces(
      const Tensor& targets, int64_t classes,
      const kernels::CrossEntropyOptions& options) const override;
  void Dropout(const Tensor& x, uint64_t key, std::span<const int64_t> row_samples, double p,
               const Tensor& out, kernels::Write write) const override;
  void Add(const Tensor& a, const Tensor& b, const Tensor& out,
           kernels::Write write) const override;
  void Mul(const Tensor& a, const Tensor& b, const Tensor& out,
           kernels::Write write) const override;
  void Scale(const Tensor& x, double alpha, const Tensor& out, kernels::Write write) const override;
  void Copy(const Tensor& x, const Tensor& out, kernels::Write write) const override;
  void Cast(const Tensor& x, const Tensor& out, kernels::Write write) const override;
  void Fill(const Tensor& out, double value) const override;
  void Silu(const Tensor& x, const Tensor& out) const override;
  void SiluBackward(const Tensor& grad, const Tensor& x, const Tensor& grad_x,
                    kernels::Write write) const override;
  void SiluMul(const Tensor& gate, const Tensor& up, const Tensor& out) const override;
  void SiluMulBackward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                       const Tensor& grad_gate, kernels::Write write_gate, const Tensor& grad_up,
                       kernels::Write write_up) const override;
  void Embedding(const Tensor& ids, const Tensor& table, const Tensor& out) const override;
  void EmbeddingBackward(const Tensor& grad, const Tensor& ids, const Tensor& grad_table,
                         kernels::Write write) const override;
  void IndexSelect(const Tensor& x, int dim, const Tensor& ids, const Tensor& out) const override;
  void IndexAdd(const Tensor& x, int dim, const Tensor& ids, const Tensor& out,
                kernels::Write write) const override;
  void Gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out) const override;
  void ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& out,
                  kernels::Write write) const override;
  void Where(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out,
             kernels::Write write) const override;
  void L2Normalize(const Tensor& x, double eps, const Tensor& out,
                   const Tensor& norms) const override;
  void L2NormalizeBackward(const Tensor& grad, const Tensor& x, const Tensor& norms, double eps,
                           const Tensor& grad_x, kernels::Write write) const override;
  void LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                 const Tensor& out, const Tensor& mean, const Tensor& inv_std) const override;
  void LayerNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& inv_std,
                         const kernels::LayerNormGradients& gradients) const override;
  void Matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
              const Tensor& out, kernels::Write write) const override;
  void MaxOver(const Tensor& x, int dim, const Tensor& values,
               const Tensor& indices) const override;
  void AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
                 const kernels::AdamWCoefficients& coefficients) const override;
  void SgdStep(const Tensor& param, const Tensor& grad, const Tensor& m,
               const kernels::SgdCoefficients& coefficients) const override;
  void MomentumStep(const Tensor& update, const Tensor& grad, const Tensor& m,
                    const kernels::MomentumCoefficients& coefficients) const override;
  kernels::PointwiseLossResult PointwiseLossSum(kernels::PointwiseLoss loss, const Tensor& x,
                                                const Tensor& targets,
                                                std::optional<double> ignored) const override;
  void PointwiseLossBackward(kernels::PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                             std::optional<double> ignored, double scale, const Tensor& grad_x,
                             kernels::Write write) const override;
  void Power(const Tensor& x, double exponent, const Tensor& out) const override;
  void PowerBackward(const Tensor& grad, const Tensor& x, double exponent, const Tensor& grad_x,
                     kernels::Write write) const override;
  void FillNormal(const Tensor& out, uint64_t key, int64_t first_element, double mean,
                  double stddev) const override;
  void FillUniform(const Tensor& out, uint64_t key, int64_t first_element, double low,
                   double high) const override;
  void ReduceEach(kernels::Reduction what, std::span<const Tensor> xs,
                  std::span<double> out) const override;
  void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out,
               const Tensor& inv_rms) const override;
  void RmsNormBackward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                       const Tensor& inv_rms, const Tensor& grad_x, kernels::Write write_x,
                       const Tensor& grad_weight, kernels::Write write_weight) const override;
  void Rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t first_position,
            bool inverse, const Tensor& out, kernels::Write write) const override;
  void Softmax(const Tensor& x, const Tensor& out) const override;
  void LogSoftmax(const Tensor& x, const Tensor& out) const override;
  void SoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                       kernels::Write write) const override;
  void LogSoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x,
                          kernels::Write write) const override;
  void SumOver(const Tensor& x, const Tensor& out, double scale,
               kernels::Write write) const override;
  void Unary(kernels::UnaryFunction function, const Tensor& x, const Tensor& out) const override;
  void UnaryBackward(kernels::UnaryFunction function, const Tensor& grad, const Tensor& saved,
                     const Tensor& grad_x, kernels::Write write) const override;
  void Clamp(const Tensor& x, double low, double high, const Tensor& out) const override;
  void ClampBackward(const Tensor& grad, const Tensor& x, double low, double high,
                     const Tensor& grad_x, kernels::Write write) const override;
};

}  // namespace sherd::cuda
