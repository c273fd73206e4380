#include "sherd/runtime/kernels/attention.h"

#include <algorithm>

#include "sherd/runtime/base/error.h"
#include "tests/runtime/cuda_support.h"

// Attention on an emulated CUDA device beside the CPU's, which kernels_attention_test compares with
// the definition.
namespace sherd::kernels::test {
namespace {

using testing::MoveTo;

struct Problem {
  int64_t b, t, s, heads, key_heads, d;
  bool causal;
  std::vector<int64_t> mask = {}, lengths = {}, cu_seqlens = {};
  double dropout = 0.0;
};

Tensor Integers(const Device& cpu, DType dtype, const std::vector<int64_t>& x, const Shape& shape) {
  if (x.empty()) return {};
  if (dtype == DType::kI64) return Tensor::FromHost<int64_t>(cpu, x, shape);
  return Tensor::FromHost<int32_t>(cpu, std::vector<int32_t>(x.begin(), x.end()), shape);
}

// Operands and options of a problem; on the CPU, or the same on the other device.
struct Operands {
  Tensor q, k, v, grad, grad_q, grad_k, grad_v;
  AttentionOptions options;
  std::vector<int64_t> samples;
};

// NaN in the keys of every row that nobody sees.
void Poison(const Problem& p, Values& x) {
  for (int64_t b = 0; b < p.b; ++b) {
    for (int64_t s = 0; s < p.s; ++s) {
      const bool hidden = (!p.mask.empty() && p.mask[static_cast<size_t>(b * p.s + s)] == 0) ||
                          (!p.lengths.empty() && s >= p.lengths[static_cast<size_t>(b)]) ||
                          (!p.cu_seqlens.empty() && b * p.s + s >= p.cu_seqlens.back());
      const int64_t row = p.key_heads * p.d;
      for (int64_t i = 0; i < row && hidden; ++i) {
        x[(b * p.s + s) * row + i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
  }
}

void MakeOperands(const Device& cpu, const Problem& p, DType dtype, Lay lay, Operands& x) {
  const Shape q_shape = {p.b, p.t, p.heads, p.d}, k_shape = {p.b, p.s, p.key_heads, p.d};
  Values k = RandomValues(dtype, k_shape, 2), v = RandomValues(dtype, k_shape, 3);
  Poison(p, k);
  Poison(p, v);
  x.q = ToTensor(cpu, RandomValues(dtype, q_shape, 1), lay);
  x.k = ToTensor(cpu, k, lay);
  x.v = ToTensor(cpu, v, lay);
  x.grad = ToTensor(cpu, RandomValues(dtype, q_shape, 4), lay);
  x.grad_q = ToTensor(cpu, RandomValues(dtype, q_shape, 5), lay);
  x.grad_k = ToTensor(cpu, RandomValues(dtype, k_shape, 6), lay);
  x.grad_v = ToTensor(cpu, RandomValues(dtype, k_shape, 7), lay);
  for (int64_t b = 0; b < p.b; ++b) x.samples.push_back(1000 + 3 * b);
  x.options = {.causal = p.causal,
               .scale = 1.0 / std::sqrt(static_cast<double>(p.d)),
               .key_mask = Integers(cpu, DType::kI64, p.mask, {p.b, p.s}),
               .key_lengths = Integers(cpu, DType::kI32, p.lengths, {p.b}),
               .cu_seqlens = Integers(cpu, p.b == 1 ? DType::kI32 : DType::kI64, p.cu_seqlens,
                                      {static_cast<int64_t>(p.cu_seqlens.size())}),
               .dropout = p.dropout,
               .random_key = 77,
               .row_samples = x.samples};
}

Operands OnGpu(const Operands& x) {
  Operands y = x;
  for (Tensor* tensor : {&y.q, &y.k, &y.v, &y.grad, &y.grad_q, &y.grad_k, &y.grad_v,
                         &y.options.key_mask, &y.options.key_lengths, &y.options.cu_seqlens}) {
    if (tensor->defined()) *tensor = MoveTo(Gpu(), *tensor);
  }
  y.options.row_samples = y.samples;
  return y;
}

// out, lse and the three gradients.
Results Attend(const Operands& x, Write write, const Tensor& out) {
  const Tensor lse =
      Tensor::Zeros(x.q.device(), WideOf(x.q.dtype()), {x.q.dim(0), x.q.dim(2), x.q.dim(1)});
  Attention(x.q, x.k, x.v, x.options, out, lse);
  AttentionBackward(x.grad, x.q, x.k, x.v, out, lse, x.options, x.grad_q, write, x.grad_k, write,
                    x.grad_v, write);
  return {HostValues(out), HostValues(lse), HostValues(x.grad_q), HostValues(x.grad_k),
          HostValues(x.grad_v)};
}

// The distance over the length, of vectors that are finite.
double RelativeError(const std::vector<double>& got, const std::vector<double>& want) {
  double distance = 0.0, length = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i]) && got[i] == want[i]) continue;
    distance += (got[i] - want[i]) * (got[i] - want[i]);
    length += want[i] * want[i];
  }
  return distance == 0.0 ? 0.0 : std::sqrt(distance / length);
}

// Of a vector, and of an element. 16-bit probabilities are rounded before they are multiplied.
struct Tolerance {
  double vector, element;
};
Tolerance ToleranceFor(DType dtype) {
  if (dtype == DType::kBF16) return {8e-3, 4e-2};
  if (dtype == DType::kF16) return {1.2e-3, 6e-3};
  return {dtype == DType::kF64 ? 1e-14 : 2e-6, 5 * ToleranceOf(dtype)};
}

void Check(const Problem& p, DType dtype, Write write, Lay lay) {
  const Device cpu = Device::Cpu();
  Operands x;
  MakeOperands(cpu, p, dtype, lay, x);
  const Operands y = OnGpu(x);
  const Tensor out = ToTensor(
      cpu, Like({dtype, x.q.shape(), std::vector<double>(static_cast<size_t>(x.q.numel()))}), lay);
  const Tensor gpu_out = MoveTo(Gpu(), out);
  const Results want = Attend(x, write, out), got = Attend(y, write, gpu_out);
  EXPECT_EQ(Gpu().allocator().stats()[MemoryCategory::kWorkspace].current_bytes, 0);
  const std::string what = Describe(dtype, write, x.q.shape()) + " " + x.k.shape().ToString() +
                           (p.causal ? " causal" : "") + (lay == Lay::kPadded ? " padded" : "");
  const char* const names[] = {"out", "lse", "grad_q", "grad_k", "grad_v"};
  for (size_t r = 0; r < want.size(); ++r) {
    ExpectNear(got[r], want[r], ToleranceFor(dtype).element, what + ": " + names[r]);
    EXPECT_LE(RelativeError(got[r], want[r]), ToleranceFor(dtype).vector) << what << names[r];
  }
}

void CheckAll(const Problem& p) {
  for (DType dtype : kFloats) {
    Check(p, dtype, Write::kOverwrite, Lay::kContiguous);
    Check(p, dtype, Write::kAdd, Lay::kPadded);
  }
}

TEST(CudaAttentionTest, AgreesWithTheCpu) {
  CheckAll({1, 1, 1, 1, 1, 1, true});
  CheckAll({2, 5, 5, 3, 3, 7, true});
  CheckAll({2, 65, 65, 4, 2, 8, true});
  CheckAll({1, 130, 130, 2, 1, 64, true});
  CheckAll({1, 70, 70, 1, 1, 80, false});
  CheckAll({1, 66, 66, 3, 1, 32, false});
}

TEST(CudaAttentionTest, KeysMayOutnumberQueriesAndTheReverse) {
  for (bool causal : {true, false}) {
    CheckAll({1, 70, 150, 2, 2, 16, causal});
    CheckAll({1, 3, 90, 2, 1, 16, causal});
    CheckAll({1, 150, 70, 2, 2, 16, causal});
  }
}

// Rows of `keys`: all but the first, all but the last n, with holes, of one key, of none.
std::vector<int64_t> Masks(int64_t keys) {
  std::vector<int64_t> mask;
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t s = 0; s < keys; ++s) {
      const bool see[5] = {s >= keys / 2 + 3, s < keys / 2 + 3, s % 3 != 1 && s % 7 != 2,
                           s == keys / 2, false};
      mask.push_back(see[row] ? 1 + s : 0);
    }
  }
  return mask;
}

TEST(CudaAttentionTest, NobodySeesMaskedKeysWhateverLiesInThem) {
  for (bool causal : {true, false}) {
    CheckAll({5, 9, 9, 2, 1, 8, causal, Masks(9)});
    CheckAll({5, 70, 70, 1, 1, 17, causal, Masks(70)});
    CheckAll({5, 20, 140, 1, 1, 8, causal, Masks(140)});
  }
}

TEST(CudaAttentionTest, KeyLengthsCutEachRow) {
  for (bool causal : {true, false}) {
    CheckAll({4, 130, 130, 1, 1, 20, causal, {}, {130, 65, 1, 0}});
    CheckAll({5, 40, 40, 1, 1, 8, causal, Masks(40), {40, 20, 33, 20, 40}});
  }
}

TEST(CudaAttentionTest, PackedDocumentsSeeOnlyThemselves) {
  for (bool causal : {true, false}) {
    CheckAll({1, 9, 9, 2, 1, 8, causal, {}, {}, {0, 1, 4, 4, 9}});
    CheckAll({1, 200, 200, 2, 1, 20, causal, {}, {}, {0, 70, 71, 190}});
    // Documents end with their row; the rest is in none.
    CheckAll({2, 70, 70, 2, 2, 16, causal, {}, {}, {0, 30, 70, 101, 120}});
    CheckAll({2, 10, 10, 1, 1, 4, causal, {}, {}, {0}});
  }
}

TEST(CudaAttentionTest, PackedDocumentsHaveTheBitsOfEachAlone) {
  for (DType dtype : kFloats) {
    const Values x = RandomValues(dtype, {1, 150, 2, 16}, 1);
    Values y = RandomValues(dtype, {1, 150, 1, 16}, 2);
    const auto run = [&](int64_t begin, int64_t end, const AttentionOptions& options) {
      const Device cpu = Device::Cpu();
      const Tensor q = MoveTo(Gpu(), ToTensor(cpu, x)).Slice(1, begin, end);
      const Tensor k = MoveTo(Gpu(), ToTensor(cpu, y)).Slice(1, begin, end);
      const Tensor out = Tensor::Empty(Gpu(), dtype, q.shape());
      const Tensor lse = Tensor::Empty(Gpu(), WideOf(dtype), {1, 2, end - begin});
      Attention(q, k, k, options, out, lse);
      return HostValues(out);
    };
    std::vector<double> alone = run(0, 67, {.causal = true, .scale = 0.25});
    const std::vector<double> rest = run(67, 150, {.causal = true, .scale = 0.25});
    alone.insert(alone.end(), rest.begin(), rest.end());
    const Tensor ends = MoveTo(Gpu(), Integers(Device::Cpu(), DType::kI32, {0, 67, 150}, {3}));
    EXPECT_EQ(run(0, 150, {.causal = true, .scale = 0.25, .cu_seqlens = ends}), alone);
    // What lies in one reaches no other.
    y[10] = std::numeric_limits<double>::quiet_NaN();
    const std::vector<double> bad =
        run(0, 150, {.causal = true, .scale = 0.25, .cu_seqlens = ends});
    EXPECT_TRUE(std::isnan(bad[0]));
    EXPECT_TRUE(
        std::equal(rest.begin(), rest.end(), bad.end() - static_cast<int64_t>(rest.size())));
  }
}

TEST(CudaAttentionTest, DropsProbabilitiesByTheWordsOfTheirCoordinates) {
  for (bool causal : {true, false}) {
    CheckAll({2, 9, 9, 4, 2, 8, causal, {}, {}, {}, 0.4});
    CheckAll({1, 130, 130, 2, 1, 20, causal, {}, {}, {}, 0.1});
    CheckAll({5, 20, 20, 2, 1, 8, causal, Masks(20), {}, {}, 0.3});
    CheckAll({2, 90, 90, 2, 1, 8, causal, {}, {}, {0, 3, 73, 101, 160}, 0.3});
  }
}

TEST(CudaAttentionTest, LargeHeads) {
  CheckAll({1, 67, 67, 2, 1, 128, true});
  CheckAll({1, 40, 70, 1, 1, 256, true});
  CheckAll({1, 40, 40, 1, 1, 133, true});
}

TEST(CudaAttentionTest, TheSameCallHasTheSameBits) {
  for (DType dtype : kFloats) {
    Operands x;
    MakeOperands(Device::Cpu(), {2, 100, 100, 4, 2, 32, true}, dtype, Lay::kContiguous, x);
    Results runs[2];
    for (Results& run : runs) {
      const Operands y = OnGpu(x);
      run = Attend(y, Write::kAdd, Tensor::Empty(Gpu(), dtype, y.q.shape()));
    }
    for (size_t r = 0; r < runs[0].size(); ++r) EXPECT_TRUE(SameBits(runs[0][r], runs[1][r])) << r;
  }
}

TEST(CudaAttentionTest, UndefinedGradientsAreSkipped) {
  for (DType dtype : kFloats) {
    Operands x;
    MakeOperands(Device::Cpu(), {1, 70, 70, 2, 1, 8, true}, dtype, Lay::kContiguous, x);
    const Tensor out = Tensor::Empty(Gpu(), dtype, x.q.shape());
    const Results all = Attend(OnGpu(x), Write::kOverwrite, out);
    for (int kept = 0; kept < 3; ++kept) {
      const Operands y = OnGpu(x);
      const Tensor lse = MoveTo(Gpu(), Tensor::Zeros(Device::Cpu(), WideOf(dtype), {1, 2, 70}));
      Attention(y.q, y.k, y.v, y.options, out, lse);
      const Tensor none;
      const Tensor* const grads[] = {&y.grad_q, &y.grad_k, &y.grad_v};
      const auto grad = [&](int i) { return i == kept ? *grads[i] : none; };
      AttentionBackward(y.grad, y.q, y.k, y.v, out, lse, y.options, grad(0), Write::kOverwrite,
                        grad(1), Write::kOverwrite, grad(2), Write::kOverwrite);
      EXPECT_EQ(HostValues(*grads[kept]), all[static_cast<size_t>(2 + kept)]) << kept;
    }
  }
}

TEST(CudaAttentionTest, NothingToSee) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      Check({2, 5, 0, 2, 1, 8, true}, dtype, write, Lay::kContiguous);
      Check({2, 0, 5, 2, 1, 8, true}, dtype, write, Lay::kContiguous);
      Check({0, 5, 5, 2, 1, 8, false}, dtype, write, Lay::kContiguous);
    }
  }
}

TEST(CudaAttentionTest, OperandsOfOtherStridesAreCopied) {
  for (DType dtype : kFloats) {
    Operands x;
    MakeOperands(Device::Cpu(), {1, 20, 20, 2, 2, 8, true}, dtype, Lay::kContiguous, x);
    const Results want =
        Attend(OnGpu(x), Write::kOverwrite, Tensor::Empty(Gpu(), dtype, x.q.shape()));
    Operands y = OnGpu(x);
    for (Tensor* tensor : {&y.q, &y.k, &y.v, &y.grad}) {
      const Tensor turned = Tensor::Empty(Gpu(), dtype, {1, 20, 8, 2}).Transpose(2, 3);
      Copy(*tensor, turned);
      *tensor = turned;
    }
    const Results got = Attend(y, Write::kOverwrite, Tensor::Empty(Gpu(), dtype, y.q.shape()));
    for (size_t r = 0; r < want.size(); ++r) EXPECT_TRUE(SameBits(got[r], want[r])) << r;
  }
}

// 4 bytes for each query and head, and nothing of T x S.
TEST(CudaAttentionTest, KeepsNoScores) {
  Operands x;
  MakeOperands(Device::Cpu(), {1, 300, 300, 2, 1, 8, true}, DType::kBF16, Lay::kContiguous, x);
  const Operands y = OnGpu(x);
  Gpu().allocator().ResetPeaks();
  Attend(y, Write::kOverwrite, Tensor::Empty(Gpu(), DType::kBF16, y.q.shape()));
  EXPECT_LE(Gpu().allocator().stats()[MemoryCategory::kWorkspace].peak_bytes, 300 * 2 * 4 + 64);
}

TEST(CudaAttentionTest, TheHostWaitsForNothing) {
  Operands x;
  MakeOperands(Device::Cpu(), {2, 40, 40, 2, 1, 8, true, {}, {}, {0, 12, 60}}, DType::kBF16,
               Lay::kContiguous, x);
  const Operands y = OnGpu(x);
  const Tensor out = Tensor::Empty(Gpu(), DType::kBF16, y.q.shape());
  const Tensor lse = Tensor::Empty(Gpu(), DType::kF32, {2, 2, 40});
  emulated::ResetStatistics();
  Attention(y.q, y.k, y.v, y.options, out, lse);
  const emulated::Statistics counts = emulated::ReadStatistics();
  EXPECT_EQ(counts.synchronisations, 0);
  EXPECT_EQ(counts.launches, 2);  // the documents' tiles, and attention
}

TEST(CudaAttentionTest, LengthsThatAreWrongAreNamedByTheNextWait) {
  Operands x;
  MakeOperands(Device::Cpu(), {2, 5, 5, 1, 1, 4, true}, DType::kF32, Lay::kContiguous, x);
  const auto error = [&](const std::vector<int64_t>& lengths,
                         const std::vector<int64_t>& ends) -> std::string {
    Operands y = x;
    y.options.key_lengths = Integers(Device::Cpu(), DType::kI64, lengths, {2});
    y.options.cu_seqlens =
        Integers(Device::Cpu(), DType::kI32, ends, {static_cast<int64_t>(ends.size())});
    y = OnGpu(y);
    try {
      Attend(y, Write::kOverwrite, Tensor::Empty(Gpu(), DType::kF32, y.q.shape()));
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const auto expect = [&](const std::vector<int64_t>& lengths, const std::vector<int64_t>& ends,
                          const std::string& part) {
    const std::string text = error(lengths, ends);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect({5, 6}, {}, "[attention] length 6 at index 1 is outside [0, 6)");
  expect({-1, 5}, {}, "length -1 at index 0 is outside [0, 6)");
  expect({}, {0, 4, 3}, "length -1 at index 2");
  expect({}, {1, 4}, "length 1 at index 0 is outside [0, 1)");
  expect({}, {0, 11}, "length 11 at index 1 is outside [0, 11)");
  expect({5, 4}, {}, "no error");
}

TEST(CudaAttentionTest, LargeScoresDoNotOverflow) {
  for (DType dtype : kFloats) {
    const Values q = RandomValues(dtype, {1, 80, 1, 8}, 1, 60.0);
    const Tensor x = MoveTo(Gpu(), ToTensor(Device::Cpu(), q));
    const Tensor out = Tensor::Empty(Gpu(), dtype, x.shape());
    const Tensor lse = Tensor::Empty(Gpu(), WideOf(dtype), {1, 1, 80});
    for (double scale : {1.0, -1.0, 0.0}) {
      Attention(x, x, x, {.causal = true, .scale = scale}, out, lse);
      for (double value : HostValues(out)) EXPECT_TRUE(std::isfinite(value)) << scale;
    }
  }
}

TEST(CudaAttentionTest, NanReachesTheQueriesThatSeeItAndNoOther) {
  for (DType dtype : kFloats) {
    const Values values = RandomValues(dtype, {1, 80, 1, 8}, 1);
    Values bad = values;
    bad[70 * 8 + 3] = std::numeric_limits<double>::quiet_NaN();
    const Tensor x = MoveTo(Gpu(), ToTensor(Device::Cpu(), values));
    const Tensor k = MoveTo(Gpu(), ToTensor(Device::Cpu(), bad));
    const Tensor out = Tensor::Empty(Gpu(), dtype, x.shape());
    const Tensor lse = Tensor::Empty(Gpu(), WideOf(dtype), {1, 1, 80});
    Attention(x, k, x, {.causal = true, .scale = 1.0}, out, lse);
    const std::vector<double> got = HostValues(out);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 8 >= 70) << i;
  }
}

}  // namespace
}  // namespace sherd::kernels::test
