#pragma once

#include <cstdint>

#include "sherd/autograd/module.h"

namespace sherd {

// Whether a linear layer adds a learned bias, which is 0 at first.
enum class Bias : uint8_t { kNone, kZero };

// A linear layer: x W^T + b. Parameters: "weight" [out, in] and, with one, "bias" [out].
//
// Cost: 2 rows in out FLOPs a call, twice that in backward; keeps x for the weight's gradient.
class LinearLayer : public Module {
 public:
  LinearLayer(int64_t in, int64_t out, Initializer initializer, DType dtype = DType::kF32,
              Bias bias = Bias::kNone);
  // Shapes: x [..., in], result [..., out]. Errors: kInvalidArgument naming x and the weight.
  Variable operator()(const Variable& x);
  const Parameter& weight() const { return weight_; }
  // Undefined where there is none.
  const Parameter& bias() const { return bias_; }

 private:
  Parameter weight_;
  Parameter bias_;
};

// A table of learned rows. Parameter: "weight" [rows, channels].
//
// Its backward adds into the whole table, so a row that occurs k times gets k contributions.
class EmbeddingLayer : public Module {
 public:
  EmbeddingLayer(int64_t rows, int64_t channels, Initializer initializer,
                 DType dtype = DType::kF32);
  // Shapes: ids any shape of i32 or i64, result ids' shape and channels.
  Variable operator()(const Variable& ids);
  // Ties a head to the table: Linear(h, embedding.weight()) inside the call that owns both.
  const Parameter& weight() const { return weight_; }

 private:
  Parameter weight_;
};

// RMS normalisation with a learned scale, 1 at first. Parameter: "weight" [channels].
class RmsNormLayer : public Module {
 public:
  explicit RmsNormLayer(int64_t channels, double eps = 1e-5, DType dtype = DType::kF32);
  // Shapes: x and result [..., channels].
  Variable operator()(const Variable& x);
  const Parameter& weight() const { return weight_; }

 private:
  Parameter weight_;
  double eps_;
};

// Layer normalisation with a learned scale, 1 at first, and a learned shift, 0 at first.
// Parameters: "weight" and "bias" [channels].
class LayerNormLayer : public Module {
 public:
  explicit LayerNormLayer(int64_t channels, double eps = 1e-5, DType dtype = DType::kF32);
  // Shapes: x and result [..., channels].
  Variable operator()(const Variable& x);
  const Parameter& weight() const { return weight_; }
  const Parameter& bias() const { return bias_; }

 private:
  Parameter weight_;
  Parameter bias_;
  double eps_;
};

}  // namespace sherd
