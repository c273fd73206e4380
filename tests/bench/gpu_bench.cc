// Times the kernels of a CUDA device beside what the device itself reaches: its copy rate and its
// largest matrix product, measured in the same run.
//
// Usage: gpu_bench [name filter]. Prints one JSON object a line: microseconds (median of 20 batches
// of calls), GB/s of what a kernel must read and write or TFLOP/s of what it must compute, and the
// share of the measured rate. Exit code 77 where there is no device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "sherd/runtime/cuda/cuda_device.h"
#include "sherd/runtime/kernels/attention.h"
#include "sherd/runtime/kernels/cross_entropy.h"
#include "sherd/runtime/kernels/dropout.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/embedding.h"
#include "sherd/runtime/kernels/layer_norm.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/optimizer_step.h"
#include "sherd/runtime/kernels/random.h"
#include "sherd/runtime/kernels/reduce.h"
#include "sherd/runtime/kernels/rms_norm.h"
#include "sherd/runtime/kernels/rope.h"
#include "sherd/runtime/kernels/softmax.h"

namespace sherd::kernels {
namespace {

class Bench {
 public:
  Bench(Device device, const char* filter) : device_(std::move(device)), filter_(filter) {}

  const Device& device() const { return device_; }

  Tensor Random(const Shape& shape, DType dtype) const {
    const Tensor x = Tensor::Empty(device_, dtype, shape);
    FillNormal(x, 7, 0, 0.0, 1.0);
    return x;
  }
  Tensor Ids(int64_t n, int64_t limit) const {
    std::vector<int64_t> ids(static_cast<size_t>(n));
    uint64_t state = 1;
    for (int64_t& id : ids) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      id = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(limit));
    }
    return Tensor::FromHost<int64_t>(device_, ids, {n});
  }

  // The median time of a call.
  double Seconds(const std::function<void()>& run) const {
    for (int i = 0; i < 3; ++i) run();
    const double once = std::max(Batch(run, 1), 1e-6);
    const int calls = static_cast<int>(std::clamp(2e-3 / once, 1.0, 100.0));
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) times.push_back(Batch(run, calls) / calls);
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    return times[10];
  }

  // Of bytes, or of floating-point operations.
  void Bytes(const std::string& name, double bytes, const std::function<void()>& run) {
    Row(name, bytes, "GB/s", 1e-9, copy_, run);
  }
  void Flop(const std::string& name, double flop, const std::function<void()>& run) {
    Row(name, flop, "TFLOP/s", 1e-12, matmul_, run);
  }

  // Measures what the rest is compared with.
  void MeasureDevice() {
    const Tensor a = Random({int64_t{1} << 28}, DType::kF32);
    const Tensor b = Random({int64_t{1} << 28}, DType::kF32);
    copy_ = 2.0 * static_cast<double>(a.bytes()) /
            Seconds([&] { device_.Copy(b.raw(), a.raw(), a.bytes()); });
    constexpr int64_t kSide = 8192;
    const Tensor x = Random({kSide, kSide}, DType::kBF16), w = Random({kSide, kSide}, DType::kBF16);
    const Tensor y = Random({kSide, kSide}, DType::kBF16);
    matmul_ = 2.0 * kSide * kSide * kSide / Seconds([&] { Matmul(x, false, w, true, y); });
    std::printf("{\"device\": \"%s\", \"copy_gb_s\": %.0f, \"matmul_bf16_tflop_s\": %.1f}\n",
                device_.backend()->Describe().c_str(), copy_ * 1e-9, matmul_ * 1e-12);
  }

 private:
  double Batch(const std::function<void()>& run, int calls) const {
    device_.backend()->queue().Synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) run();
    device_.backend()->queue().Synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void Row(const std::string& name, double amount, const char* unit, double scale, double of,
           const std::function<void()>& run) {
    if (name.find(filter_) == std::string::npos) return;
    const double seconds = Seconds(run);
    std::printf(
        "{\"kernel\": \"%s\", \"us\": %.1f, \"rate\": %.1f, \"unit\": \"%s\", "
        "\"share\": %.3f}\n",
        name.c_str(), seconds * 1e6, amount / seconds * scale, unit, amount / seconds / of);
    std::fflush(stdout);
  }

  const Device device_;
  const char* const filter_;
  double copy_ = 0.0;    // bytes a second
  double matmul_ = 0.0;  // operations a second
};

void BenchElementwise(Bench& bench, DType dtype) {
  const Shape shape = {8192, 8192};
  const Tensor a = bench.Random(shape, dtype), b = bench.Random(shape, dtype);
  const Tensor c = bench.Random(shape, dtype), d = bench.Random(shape, dtype);
  const Tensor wide = bench.Random(shape, dtype == DType::kF32 ? DType::kBF16 : DType::kF32);
  const auto bytes = static_cast<double>(a.bytes());
  const std::string in = " " + std::string(NameOf(dtype));
  bench.Bytes("copy" + in, 2 * bytes, [&] { Copy(a, b); });
  bench.Bytes("add" + in, 3 * bytes, [&] { Add(a, b, c); });
  bench.Bytes("scale" + in, 2 * bytes, [&] { Scale(a, 0.5, b); });
  bench.Bytes("cast" + in, bytes + static_cast<double>(wide.bytes()), [&] { Cast(a, wide); });
  bench.Bytes("silu_mul" + in, 3 * bytes, [&] { SiluMul(a, b, c); });
  bench.Bytes("silu_mul_backward" + in, 5 * bytes,
              [&] { SiluMulBackward(c, a, b, a, Write::kOverwrite, d, Write::kOverwrite); });
  bench.Bytes("sum_squares" + in, bytes, [&] { SumSquares(a); });
  const std::vector<int64_t> samples(8192, 1);
  bench.Bytes("dropout" + in, 2 * bytes, [&] { Dropout(a, 5, samples, 0.1, b); });
}

void BenchRows(Bench& bench, DType dtype, int64_t rows, int64_t cols) {
  const Shape shape = {rows, cols};
  const Tensor x = bench.Random(shape, dtype), y = bench.Random(shape, dtype);
  const Tensor z = bench.Random(shape, dtype), weight = bench.Random({cols}, dtype);
  const Tensor bias = bench.Random({cols}, dtype);
  const Tensor grad_weight = bench.Random({cols}, DType::kF32);
  const Tensor grad_bias = bench.Random({cols}, DType::kF32);
  const Tensor s = Tensor::Empty(bench.device(), DType::kF32, {rows});
  const Tensor s2 = Tensor::Empty(bench.device(), DType::kF32, {rows});
  const auto bytes = static_cast<double>(x.bytes());
  const std::string in = " " + std::string(NameOf(dtype)) + " " + shape.ToString();
  bench.Bytes("rms_norm" + in, 2 * bytes, [&] { RmsNorm(x, weight, 1e-5, y, s); });
  bench.Bytes("rms_norm_backward" + in, 3 * bytes, [&] {
    RmsNormBackward(y, x, weight, s, z, Write::kOverwrite, grad_weight, Write::kOverwrite);
  });
  bench.Bytes("layer_norm" + in, 2 * bytes, [&] { LayerNorm(x, weight, bias, 1e-5, y, s, s2); });
  bench.Bytes("layer_norm_backward" + in, 3 * bytes, [&] {
    LayerNormBackward(y, x, weight, s, s2, {.x = z, .weight = grad_weight, .bias = grad_bias});
  });
  bench.Bytes("softmax" + in, 2 * bytes, [&] { Softmax(x, y); });
}

void BenchModel(Bench& bench) {
  constexpr int64_t kRows = 8192, kVocabulary = 50304, kDim = 2048;
  {
    const Tensor logits = bench.Random({kRows, kVocabulary}, DType::kBF16);
    const Tensor grad = bench.Random({kRows, kVocabulary}, DType::kBF16);
    const Tensor lse = Tensor::Empty(bench.device(), DType::kF32, {kRows});
    const Tensor targets = bench.Ids(kRows, kVocabulary);
    const auto bytes = static_cast<double>(logits.bytes());
    bench.Bytes("cross_entropy bf16", bytes, [&] { CrossEntropy(logits, targets, {}, lse); });
    bench.Bytes("cross_entropy_backward bf16", 2 * bytes,
                [&] { CrossEntropyBackward(logits, targets, {}, lse, 1.0, grad); });
  }
  {
    const Tensor table = bench.Random({kVocabulary, kDim}, DType::kBF16);
    const Tensor rows = bench.Random({kRows, kDim}, DType::kBF16);
    const Tensor grad = bench.Random({kVocabulary, kDim}, DType::kF32);
    const Tensor ids = bench.Ids(kRows, kVocabulary);
    bench.Bytes("embedding bf16", 2.0 * static_cast<double>(rows.bytes()),
                [&] { Embedding(ids, table, rows); });
    bench.Bytes("embedding_backward bf16 to f32", static_cast<double>(rows.bytes() + grad.bytes()),
                [&] { EmbeddingBackward(rows, ids, grad); });
  }
  {
    const Tensor x = bench.Random({4, 2048, 16, 128}, DType::kBF16);
    const Tensor y = bench.Random({4, 2048, 16, 128}, DType::kBF16);
    const RopeTables tables = MakeRopeTables(bench.device(), DType::kF32, 2048, 128);
    bench.Bytes("rope bf16", 2.0 * static_cast<double>(x.bytes()),
                [&] { Rope(x, tables.cos, tables.sin, 0, false, y); });
  }
  {
    constexpr int64_t kParameters = int64_t{1} << 27;
    const Tensor p = bench.Random({kParameters}, DType::kF32);
    const Tensor g = bench.Random({kParameters}, DType::kF32);
    const Tensor m = Tensor::Zeros(bench.device(), DType::kF32, {kParameters});
    const Tensor v = Tensor::Zeros(bench.device(), DType::kF32, {kParameters});
    bench.Bytes("adamw f32", 7.0 * static_cast<double>(p.bytes()),
                [&] { AdamWStep(p, g, m, v, {.bias_correction1 = 0.5, .bias_correction2 = 0.5}); });
  }
}

void BenchMatmul(Bench& bench, int64_t rows, int64_t in, int64_t out) {
  const Tensor x = bench.Random({rows, in}, DType::kBF16);
  const Tensor w = bench.Random({out, in}, DType::kBF16);
  const Tensor y = bench.Random({rows, out}, DType::kBF16);
  const Tensor grad_w = bench.Random({out, in}, DType::kF32);
  const double flop = 2.0 * static_cast<double>(rows * in) * static_cast<double>(out);
  const std::string shape =
      " bf16 " + std::to_string(rows) + "x" + std::to_string(in) + "x" + std::to_string(out);
  bench.Flop("matmul x w^T" + shape, flop, [&] { Matmul(x, false, w, true, y); });
  bench.Flop("matmul dy w" + shape, flop, [&] { Matmul(y, false, w, false, x); });
  bench.Flop("matmul dy^T x add f32" + shape, flop,
             [&] { Matmul(y, true, x, false, grad_w, Write::kAdd); });
}

void BenchAttention(Bench& bench, int64_t batch, int64_t t, int64_t heads, int64_t kv, int64_t d) {
  const Tensor q = bench.Random({batch, t, heads, d}, DType::kBF16);
  const Tensor k = bench.Random({batch, t, kv, d}, DType::kBF16);
  const Tensor v = bench.Random({batch, t, kv, d}, DType::kBF16);
  const Tensor out = bench.Random(q.shape(), DType::kBF16);
  const Tensor grad = bench.Random(q.shape(), DType::kBF16);
  const Tensor grad_q = bench.Random(q.shape(), DType::kBF16);
  const Tensor grad_k = bench.Random(k.shape(), DType::kBF16);
  const Tensor grad_v = bench.Random(v.shape(), DType::kBF16);
  const Tensor lse = Tensor::Empty(bench.device(), DType::kF32, {batch, heads, t});
  const AttentionOptions options = {.causal = true, .scale = 0.088};
  const double flop = 4.0 * static_cast<double>(batch * heads * d) * static_cast<double>(t) *
                      static_cast<double>(t + 1) / 2.0;
  const std::string shape = " bf16 causal " + q.shape().ToString() + " kv " + std::to_string(kv);
  bench.Flop("attention" + shape, flop, [&] { Attention(q, k, v, options, out, lse); });
  bench.Flop("attention_backward" + shape, 2.5 * flop, [&] {
    AttentionBackward(grad, q, k, v, out, lse, options, grad_q, Write::kOverwrite, grad_k,
                      Write::kOverwrite, grad_v, Write::kOverwrite);
  });
}

int Run(const char* filter) {
  const absl::StatusOr<Device> device = OpenCuda({});
  if (!device.ok()) {
    std::printf("SKIP gpu_bench: %s\n", std::string(device.status().message()).c_str());
    return 77;
  }
  Bench bench(*device, filter);
  bench.MeasureDevice();
  for (DType dtype : {DType::kBF16, DType::kF32}) BenchElementwise(bench, dtype);
  for (DType dtype : {DType::kBF16, DType::kF32}) BenchRows(bench, dtype, 8192, 2048);
  BenchModel(bench);
  BenchMatmul(bench, 8192, 2048, 2048);
  BenchMatmul(bench, 8192, 2048, 11264);
  BenchMatmul(bench, 8192, 2048, 50304);
  BenchAttention(bench, 4, 2048, 16, 16, 128);
  BenchAttention(bench, 1, 8192, 16, 4, 128);
  BenchAttention(bench, 4, 2048, 32, 32, 64);
  return 0;
}

}  // namespace
}  // namespace sherd::kernels

int main(int argc, char** argv) {
  try {
    return sherd::kernels::Run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
}
