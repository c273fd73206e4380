#include "sherd/autograd/nn/layers.h"

#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/norm.h"
#include "sherd/autograd/ops/transformer.h"

namespace sherd {

LinearLayer::LinearLayer(int64_t in, int64_t out, Initializer initializer, DType dtype, Bias bias)
    : weight_(RegisterParameter("weight", {out, in}, initializer, dtype)) {
  if (bias == Bias::kZero) {
    bias_ = RegisterParameter("bias", {out}, Initializer::Constant(0.0), dtype);
  }
}

Variable LinearLayer::operator()(const Variable& x) {
  return Call(
      *this,
      [](LinearLayer& self, const Variable& x) {
        return self.bias_.defined() ? Linear(x, self.weight_, self.bias_) : Linear(x, self.weight_);
      },
      x);
}

EmbeddingLayer::EmbeddingLayer(int64_t rows, int64_t channels, Initializer initializer, DType dtype)
    : weight_(RegisterParameter("weight", {rows, channels}, initializer, dtype)) {}

Variable EmbeddingLayer::operator()(const Variable& ids) {
  return Call(
      *this,
      [](EmbeddingLayer& self, const Variable& ids) { return EmbeddingLookup(ids, self.weight_); },
      ids);
}

RmsNormLayer::RmsNormLayer(int64_t channels, double eps, DType dtype)
    : weight_(RegisterParameter("weight", {channels}, Initializer::Constant(1.0), dtype)),
      eps_(eps) {}

Variable RmsNormLayer::operator()(const Variable& x) {
  return Call(
      *this,
      [](RmsNormLayer& self, const Variable& x) { return RmsNorm(x, self.weight_, self.eps_); }, x);
}

LayerNormLayer::LayerNormLayer(int64_t channels, double eps, DType dtype)
    : weight_(RegisterParameter("weight", {channels}, Initializer::Constant(1.0), dtype)),
      bias_(RegisterParameter("bias", {channels}, Initializer::Constant(0.0), dtype)),
      eps_(eps) {}

Variable LayerNormLayer::operator()(const Variable& x) {
  return Call(
      *this,
      [](LayerNormLayer& self, const Variable& x) {
        return LayerNorm(x, self.weight_, self.bias_, self.eps_);
      },
      x);
}

}  // namespace sherd
