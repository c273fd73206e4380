#pragma once

#include <cstdint>

// The tables of inner loops. Every <name>_isa.cc is compiled once per instruction set and fills one
// table per set; kernels choose theirs through LoopsOf(device).
//
// [Note: what a loop file may use] The same source becomes several objects with different machine
// instructions. A function with external linkage that two of them share (an inline function, a
// template of std or of ours) would be merged by the linker into one copy, perhaps the one with
// AVX-512, and crash an old processor. So those files see only plain structs, raw pointers,
// builtins and names inside sherd::kernels::SHERD_ISA.
namespace sherd::kernels::internal {

// Loops come in fours, indexed by the DType values of f32, f64, bf16 and f16.
inline constexpr int kFloatTypes = 4;

// out (+)= f(a, b) over n adjacent elements.
using BinaryLoop = void (*)(const void* a, const void* b, void* out, int64_t n, bool add);
// out (+)= f(x).
using UnaryLoop = void (*)(const void* x, void* out, int64_t n, bool add);

struct SiluMulBackwardArgs {
  const void* grad;
  const void* gate;
  const void* up;
  void* grad_gate;  // null: skipped
  void* grad_up;    // null: skipped
  bool add_gate;
  bool add_up;
};

struct ElementwiseLoops {
  BinaryLoop add[kFloatTypes];
  BinaryLoop mul[kFloatTypes];
  void (*scale[kFloatTypes])(const void* x, double alpha, void* out, int64_t n, bool add);
  UnaryLoop cast[kFloatTypes][kFloatTypes];  // [from][to]
  UnaryLoop silu[kFloatTypes];
  BinaryLoop silu_backward[kFloatTypes];  // a is the gradient, b is x
  BinaryLoop silu_mul[kFloatTypes];
  void (*silu_mul_backward[kFloatTypes])(const SiluMulBackwardArgs& args, int64_t n);
};

// One function of one variable. The backward's a is the gradient, b what the derivative is computed
// from: x or the value.
struct FunctionLoops {
  UnaryLoop forward[kFloatTypes];
  BinaryLoop backward[kFloatTypes];
};

struct UnaryLoops {
  FunctionLoops exp, log, tanh, sigmoid, relu, sqrt, rsqrt, erf, gelu, gelu_tanh;
  void (*clamp[kFloatTypes])(const void* x, double low, double high, void* out, int64_t n);
  void (*clamp_backward[kFloatTypes])(const void* grad, const void* x, double low, double high,
                                      void* out, int64_t n, bool add);
};

// out[i] (+)= f(a[i * a_step], b[i * b_step]): a step of 0 repeats one element.
struct BroadcastArgs {
  const void* a;
  const void* b;
  void* out;
  int64_t n;
  int64_t a_step, b_step;  // 0 or 1
  bool add;
};

struct BroadcastLoops {
  using Loop = void (*)(const BroadcastArgs& args);
  Loop add[kFloatTypes];
  Loop sub[kFloatTypes];
  Loop mul[kFloatTypes];
  Loop div[kFloatTypes];
  // The same into f32 (f64 for f64).
  Loop wide_add[kFloatTypes];
  Loop wide_sub[kFloatTypes];
  Loop wide_mul[kFloatTypes];
  Loop wide_div[kFloatTypes];
};

struct ReduceLoops {
  using Loop = double (*)(const void* x, int64_t n);
  Loop sum[kFloatTypes];
  Loop sum_abs[kFloatTypes];
  Loop sum_squares[kFloatTypes];
  Loop max_abs[kFloatTypes];
};

// Rows [0, rows) from the pointers given; strides in elements.
struct RmsNormArgs {
  const void* x;
  const void* weight;
  void* out;
  void* inv_rms;  // f32, f64 for f64
  int64_t rows, cols, x_stride, out_stride;
  double eps;
};

struct RmsNormBackwardArgs {
  const void* grad;
  const void* x;
  const void* weight;
  const void* inv_rms;
  void* grad_x;          // null: skipped
  void* weight_partial;  // [cols] f32 (f64 for f64), added to; null: skipped
  int64_t rows, cols, grad_stride, x_stride, grad_x_stride;
  bool add_x;
};

// Classes [first, first + cols) of rows whose softmax may go over more.
struct CrossEntropyArgs {
  const void* logits;
  const int64_t* targets;  // among all classes; -1: ignored
  int64_t first;
  int64_t rows, cols, stride;
  // Forward: f64, one for each row. `logit_sum` may be null.
  double* row_lse;
  double* target_logit;  // written where the target is one of these classes
  double* logit_sum;
  // Backward.
  const void* lse;  // over all classes; f32, f64 for f64
  void* grad;
  int64_t grad_stride;
  double scale, z_slope;     // z_slope: 2 z
  double on_target, on_all;  // the target distribution: 1 - smoothing, and smoothing / classes
  bool add;
};

// Heads of one token.
struct RopeArgs {
  const void* x;
  void* out;
  const void* cos;
  const void* sin;
  int64_t heads, half, x_stride, out_stride;
  bool inverse, add;
};

struct RowLoops {
  void (*rms_norm[kFloatTypes])(const RmsNormArgs& args);
  void (*rms_norm_backward[kFloatTypes])(const RmsNormBackwardArgs& args);
  void (*cross_entropy[kFloatTypes])(const CrossEntropyArgs& args);
  void (*cross_entropy_backward[kFloatTypes])(const CrossEntropyArgs& args);
  void (*rope[kFloatTypes])(const RopeArgs& args);
};

// One row of Dropout: channels [0, n) of one position and head.
struct DropoutArgs {
  const void* x;
  void* out;
  uint64_t key, sample, counter_high;  // counter_high of channel 0
  uint32_t threshold;                  // keep when word >= threshold
  double scale;
  int64_t n;
  bool add;
};

// C = op(A) op(B) for one block of C; element (i, k) of A is a[i * a_row + k * a_col].
struct GemmArgs {
  const void* a;
  const void* b;
  void* c;
  void* workspace;
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col, c_row;
  bool add;
};

struct GemmLoops {
  int64_t block_m, block_n;  // the largest m and n a call takes
  int64_t workspace_bytes;
  void (*f64)(const GemmArgs& args);
  void (*bf16)(const GemmArgs& args);
  void (*bf16_to_f32)(const GemmArgs& args);
  void (*f16)(const GemmArgs& args);
  void (*f16_to_f32)(const GemmArgs& args);
};

// One operand of attention: element (t, h, d) of one batch entry at t * token + h * head + d.
struct HeadsView {
  void* data;
  int64_t token, head;
};

// All query heads of one key head of one run of tokens: a batch entry, or a document of one.
struct AttentionArgs {
  int64_t queries, keys, head_size, group;
  bool causal;
  double scale;
  HeadsView q, k, v, out;
  void* lse;  // [group, queries], heads `lse_head` elements apart
  int64_t lse_head;
  void* workspace;
  // Nobody sees a key outside of [key_begin, key_end), nor one whose mask is 0. Null: no mask.
  int64_t key_begin, key_end;
  const uint8_t* key_mask;
  // Dropout of probabilities, where `dropout` is true; the first_* place the run in its batch
  // entry.
  bool dropout;
  uint32_t threshold;  // keep when word >= threshold
  uint64_t random_key, sample;
  int64_t first_head, first_token;
  double keep_scale;
  // Backward only; null data: skipped.
  HeadsView grad, grad_q, grad_k, grad_v;
  bool add_q, add_k, add_v;
};

struct SoftmaxArgs {
  const void* x;
  void* out;
  int64_t rows, cols, x_stride, out_stride;
};

struct SoftmaxBackwardArgs {
  const void* grad;
  const void* y;
  void* grad_x;
  int64_t rows, cols, grad_stride, y_stride, grad_x_stride;
  bool add;
};

struct SoftmaxLoops {
  void (*softmax[kFloatTypes])(const SoftmaxArgs& args);
  void (*log_softmax[kFloatTypes])(const SoftmaxArgs& args);
  void (*softmax_backward[kFloatTypes])(const SoftmaxBackwardArgs& args);
  void (*log_softmax_backward[kFloatTypes])(const SoftmaxBackwardArgs& args);
};

struct LayerNormArgs {
  const void* x;
  const void* weight;
  const void* bias;
  void* out;
  void* mean;     // f32, f64 for f64
  void* inv_std;  // f32, f64 for f64
  int64_t rows, cols, x_stride, out_stride;
  double eps;
};

struct LayerNormBackwardArgs {
  const void* grad;
  const void* x;
  const void* weight;
  const void* mean;
  const void* inv_std;
  void* grad_x;          // null: skipped
  void* weight_partial;  // [cols] f32 (f64 for f64), added to; null: skipped
  void* bias_partial;    // as weight_partial
  int64_t rows, cols, grad_stride, x_stride, grad_x_stride;
  bool add_x;
};

struct LayerNormLoops {
  void (*forward[kFloatTypes])(const LayerNormArgs& args);
  void (*backward[kFloatTypes])(const LayerNormBackwardArgs& args);
};

struct AttentionLoops {
  int64_t (*workspace_bytes[kFloatTypes])(const AttentionArgs& args, bool backward);
  void (*forward[kFloatTypes])(const AttentionArgs& args);
  void (*backward[kFloatTypes])(const AttentionArgs& args);
};

// One operand of an optimizer's update: n adjacent elements of a float dtype, as its DType value.
struct UpdateOperand {
  void* data;  // null: the update has none
  int dtype;
};

struct AdamWArgs {
  UpdateOperand param, grad, m, v;
  double beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  double decay;      // 1 - lr * weight_decay
  double step_size;  // lr / bias_correction1
  double inv_bias2;  // 1 / bias_correction2
  double grad_scale;
};

struct SgdArgs {
  UpdateOperand param, grad, m;
  double lr, momentum, weight_decay, grad_scale;
  double old_scale, new_scale;  // m = old_scale m + new_scale g
  bool nesterov;
};

struct MomentumArgs {
  UpdateOperand grad, m, update;
  double momentum, grad_scale;
  bool nesterov;
};

struct UpdateLoops {
  void (*dropout[kFloatTypes])(const DropoutArgs& args);
  // Computed in f32 [0] or f64 [1], whatever is stored.
  void (*adamw[2])(const AdamWArgs& args, int64_t n);
  void (*sgd[2])(const SgdArgs& args, int64_t n);
  void (*momentum[2])(const MomentumArgs& args, int64_t n);
};

struct Loops {
  const ElementwiseLoops* elementwise;
  const ReduceLoops* reduce;
  const RowLoops* row;
  const GemmLoops* gemm;
  const AttentionLoops* attention;
  const UpdateLoops* update;
  const UnaryLoops* unary;
  const SoftmaxLoops* softmax;
  const LayerNormLoops* layer_norm;
  const BroadcastLoops* broadcast;
};

}  // namespace sherd::kernels::internal
