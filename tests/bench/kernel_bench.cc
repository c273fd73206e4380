// Times every kernel on a few shapes and prints GFLOP/s or GB/s.
//
// Usage: kernel_bench [--threads=N] [name filter]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/base/thread_pool.h"
#include "sherd/runtime/cpu/isa.h"
#include "sherd/runtime/kernels/attention.h"
#include "sherd/runtime/kernels/broadcast.h"
#include "sherd/runtime/kernels/cross_entropy.h"
#include "sherd/runtime/kernels/dropout.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/embedding.h"
#include "sherd/runtime/kernels/indexing.h"
#include "sherd/runtime/kernels/l2_normalize.h"
#include "sherd/runtime/kernels/layer_norm.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/max_over.h"
#include "sherd/runtime/kernels/optimizer_step.h"
#include "sherd/runtime/kernels/random.h"
#include "sherd/runtime/kernels/reduce.h"
#include "sherd/runtime/kernels/rms_norm.h"
#include "sherd/runtime/kernels/rope.h"
#include "sherd/runtime/kernels/softmax.h"
#include "sherd/runtime/kernels/sum_over.h"
#include "sherd/runtime/kernels/unary.h"

namespace sherd::kernels {
namespace {

struct Bench {
  Device device;
  const char* filter = "";

  Tensor Random(const Shape& shape, DType dtype = DType::kF32) const {
    const Tensor x = Tensor::Empty(device, dtype, shape);
    FillNormal(x, 7, 0, 0.0, 1.0);
    return x;
  }

  // Seconds: of this process with one thread, so that neighbours do not count; else of the clock.
  double Now() const {
    timespec now;
    clock_gettime(device.pool().threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  // Prints the best of many runs: `amount` FLOP (or bytes) a run, as giga `unit` a second.
  void Time(const std::string& name, double amount, const char* unit,
            const std::function<void()>& run) const {
    if (name.find(filter) == std::string::npos) return;
    run();
    double best = 1e9;
    const double start = Now();
    for (int i = 0; i < 3 || Now() - start < 0.3; ++i) {
      const double before = Now();
      run();
      best = std::min(best, Now() - before);
    }
    std::printf("%-44s %9.1f us %9.1f G%s\n", name.c_str(), best * 1e6, amount / best * 1e-9, unit);
  }
};

void BenchMatmul(const Bench& bench, DType dtype, int64_t rows, int64_t in, int64_t out) {
  const double flop =
      2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const Tensor x = bench.Random({rows, in}, dtype), w = bench.Random({out, in}, dtype);
  const Tensor y = bench.Random({rows, out}, dtype);
  const Tensor grad_x = bench.Random({rows, in}, dtype);
  const Tensor grad_w = bench.Random({out, in}, dtype == DType::kF64 ? dtype : DType::kF32);
  const std::string shape = std::string(NameOf(dtype)) + " " + std::to_string(rows) + "x" +
                            std::to_string(in) + "x" + std::to_string(out);
  bench.Time("matmul x w^T " + shape, flop, "FLOP/s", [&] { Matmul(x, false, w, true, y); });
  bench.Time("matmul dy w " + shape, flop, "FLOP/s", [&] { Matmul(y, false, w, false, grad_x); });
  bench.Time("matmul dy^T x " + shape, flop, "FLOP/s", [&] { Matmul(y, true, x, false, grad_w); });
  bench.Time("matmul dy^T x add " + shape, flop, "FLOP/s",
             [&] { Matmul(y, true, x, false, grad_w, Write::kAdd); });
}

void BenchAttention(const Bench& bench, DType dtype, int64_t b, int64_t t, int64_t heads, int64_t d,
                    bool causal) {
  const Shape shape = {b, t, heads, d};
  const Tensor q = bench.Random(shape, dtype), k = bench.Random(shape, dtype);
  const Tensor v = bench.Random(shape, dtype), out = bench.Random(shape, dtype);
  const Tensor grad = bench.Random(shape, dtype), grad_q = bench.Random(shape, dtype);
  const Tensor grad_k = bench.Random(shape, dtype), grad_v = bench.Random(shape, dtype);
  const Tensor lse =
      Tensor::Empty(bench.device, dtype == DType::kF64 ? dtype : DType::kF32, {b, heads, t});
  const AttentionOptions options = {.causal = causal, .scale = 0.125};
  const double pairs = static_cast<double>(t) * static_cast<double>(causal ? t + 1 : 2 * t) / 2;
  const double flop = 4.0 * static_cast<double>(b * heads * d) * pairs;
  const std::string name =
      std::string(NameOf(dtype)) + " " + shape.ToString() + (causal ? " causal" : "");
  bench.Time("attention " + name, flop, "FLOP/s", [&] { Attention(q, k, v, options, out, lse); });
  bench.Time("attention backward " + name, 2.5 * flop, "FLOP/s", [&] {
    AttentionBackward(grad, q, k, v, out, lse, options, grad_q, Write::kOverwrite, grad_k,
                      Write::kOverwrite, grad_v, Write::kOverwrite);
  });
}

// What masks, documents and dropout cost, beside causal attention of the same shape; FLOP of the
// pairs that are seen.
void BenchMaskedAttention(const Bench& bench, DType dtype) {
  const int64_t b = 4, t = 512, heads = 4, d = 64, document = 128;
  const Shape shape = {b, t, heads, d};
  const Tensor q = bench.Random(shape, dtype), k = bench.Random(shape, dtype);
  const Tensor v = bench.Random(shape, dtype), out = bench.Random(shape, dtype);
  const Tensor grad = bench.Random(shape, dtype), grad_q = bench.Random(shape, dtype);
  const Tensor grad_k = bench.Random(shape, dtype), grad_v = bench.Random(shape, dtype);
  const Tensor lse = Tensor::Empty(bench.device, DType::kF32, {b, heads, t});
  const auto ids = [&](int64_t n, const Shape& of, const auto& value) {
    std::vector<int64_t> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = value(i);
    return Tensor::FromHost<int64_t>(bench.device, values, of);
  };
  const auto time = [&](const std::string& name, double pairs, const AttentionOptions& options) {
    const double flop = 4.0 * static_cast<double>(heads * d) * pairs;
    const std::string what = std::string(NameOf(dtype)) + " " + shape.ToString() + " " + name;
    bench.Time("attention " + what, flop, "FLOP/s", [&] { Attention(q, k, v, options, out, lse); });
    bench.Time("attention backward " + what, 2.5 * flop, "FLOP/s", [&] {
      AttentionBackward(grad, q, k, v, out, lse, options, grad_q, Write::kOverwrite, grad_k,
                        Write::kOverwrite, grad_v, Write::kOverwrite);
    });
  };
  const auto causal = [](int64_t n) { return 0.5 * static_cast<double>(n) * (n + 1.0); };
  const std::vector<int64_t> samples = {0, 1, 2, 3};
  time("causal", b * causal(t), {.scale = 0.125});
  time("mask with holes", b * causal(t),
       {.scale = 0.125, .key_mask = ids(b * t, {b, t}, [](int64_t i) { return i % 64 != 5; })});
  time("half padding", b * causal(t / 2),
       {.scale = 0.125, .key_mask = ids(b * t, {b, t}, [&](int64_t i) { return i % t >= t / 2; })});
  const int64_t documents = b * t / document;
  time("documents of 128", static_cast<double>(documents) * causal(document),
       {.scale = 0.125, .cu_seqlens = ids(documents + 1, {documents + 1}, [&](int64_t i) {
                          return i * document;
                        })});
  time("dropout", b * causal(t),
       {.scale = 0.125, .dropout = 0.1, .random_key = 7, .row_samples = samples});
}

void BenchElementwise(const Bench& bench, DType dtype) {
  const Shape shape = {2048, 688};
  const Tensor a = bench.Random(shape, dtype), b = bench.Random(shape, dtype);
  const Tensor c = bench.Random(shape, dtype), d = bench.Random(shape, dtype);
  const Tensor e = bench.Random(shape, dtype);
  const double bytes = static_cast<double>(a.bytes());
  const std::string name(NameOf(dtype));
  bench.Time("copy " + name, 2 * bytes, "B/s", [&] { Copy(a, c); });
  bench.Time("fill " + name, bytes, "B/s", [&] { Fill(c, 0.0); });
  bench.Time("add " + name, 3 * bytes, "B/s", [&] { Add(a, b, c); });
  bench.Time("accumulate " + name, 3 * bytes, "B/s", [&] { Copy(a, c, Write::kAdd); });
  bench.Time("scale " + name, 2 * bytes, "B/s", [&] { Scale(a, 0.5, c); });
  bench.Time("cast to f32 " + name, bytes + 4.0 * static_cast<double>(a.numel()), "B/s",
             [&, to = bench.Random(shape)] { Cast(a, to); });
  bench.Time("cast to bf16 " + name, bytes + 2.0 * static_cast<double>(a.numel()), "B/s",
             [&, to = bench.Random(shape, DType::kBF16)] { Cast(a, to); });
  bench.Time("cast to f16 " + name, bytes + 2.0 * static_cast<double>(a.numel()), "B/s",
             [&, to = bench.Random(shape, DType::kF16)] { Cast(a, to); });
  bench.Time("silu " + name, 2 * bytes, "B/s", [&] { Silu(a, c); });
  bench.Time("silu_mul " + name, 3 * bytes, "B/s", [&] { SiluMul(a, b, c); });
  bench.Time("silu_mul backward " + name, 5 * bytes, "B/s",
             [&] { SiluMulBackward(a, b, c, d, Write::kOverwrite, e, Write::kOverwrite); });
  for (const auto& [function, what] :
       {std::pair{UnaryFunction::kGelu, "gelu "}, std::pair{UnaryFunction::kGeluTanh, "gelu_tanh "},
        std::pair{UnaryFunction::kExp, "exp "}, std::pair{UnaryFunction::kTanh, "tanh "}}) {
    bench.Time(what + name, 2 * bytes, "B/s", [&] { Unary(function, a, c); });
    bench.Time(std::string(what) + "backward " + name, 3 * bytes, "B/s",
               [&] { UnaryBackward(function, a, b, c); });
  }
  bench.Time("sum " + name, bytes, "B/s", [&] { Sum(a); });
  bench.Time("sum_squares " + name, bytes, "B/s", [&] { SumSquares(a); });
  bench.Time("max_abs " + name, bytes, "B/s", [&] { MaxAbs(a); });
}

void BenchRepeated(const Bench& bench, DType dtype) {
  const Shape shape = {2048, 688};
  const Tensor x = bench.Random(shape, dtype), out = bench.Random(shape, dtype);
  const Tensor row = bench.Random({1, 688}, dtype), column = bench.Random({2048, 1}, dtype);
  const Tensor turned = bench.Random({688, 2048}, dtype);
  const double bytes = static_cast<double>(x.bytes());
  const std::string name(NameOf(dtype));
  bench.Time("copy of a transposed " + name, 2 * bytes, "B/s",
             [&] { Copy(turned.Transpose(0, 1), out); });
  bench.Time("add a row " + name, 2 * bytes, "B/s",
             [&] { Broadcast(Arithmetic::kAdd, x, row, out); });
  bench.Time("multiply with a column " + name, 2 * bytes, "B/s",
             [&] { Broadcast(Arithmetic::kMul, x, column, out); });
  bench.Time("divide " + name, 3 * bytes, "B/s", [&] { Broadcast(Arithmetic::kDiv, x, x, out); });
  bench.Time("sum of columns " + name, bytes, "B/s", [&] { SumOver(x, row); });
  bench.Time("sum of rows " + name, bytes, "B/s", [&] { SumOver(x, column); });
  std::vector<int64_t> rows(2048);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i * 7 % 1024);
  const Tensor ids = Tensor::FromHost<int64_t>(bench.device, rows, {2048});
  bench.Time("index_select " + name, 2 * bytes, "B/s", [&] { IndexSelect(x, 0, ids, out); });
  bench.Time("index_add " + name, 2 * bytes, "B/s", [&] { IndexAdd(x, 0, ids, out); });
  const Tensor values = bench.Random({2048}, dtype);
  const Tensor places = Tensor::Empty(bench.device, DType::kI64, {2048});
  bench.Time("max of rows " + name, bytes, "B/s", [&] { MaxOver(x, 1, values, places); });
  const Tensor norms =
      Tensor::Empty(bench.device, dtype == DType::kF64 ? dtype : DType::kF32, {2048});
  bench.Time("l2_normalize " + name, 2 * bytes, "B/s", [&] { L2Normalize(x, 1e-12, out, norms); });
}

void BenchRows(const Bench& bench, DType dtype) {
  const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
  const std::string name(NameOf(dtype));
  const Tensor x = bench.Random({2048, 512}, dtype), weight = bench.Random({512}, dtype);
  const Tensor y = bench.Random({2048, 512}, dtype), z = bench.Random({2048, 512}, dtype);
  const Tensor inv = Tensor::Empty(bench.device, wide, {2048}), grad_w = bench.Random({512}, dtype);
  const double bytes = static_cast<double>(x.bytes());
  bench.Time("rms_norm " + name, 2 * bytes, "B/s", [&] { RmsNorm(x, weight, 1e-5, y, inv); });
  bench.Time("rms_norm backward " + name, 3 * bytes, "B/s", [&] {
    RmsNormBackward(y, x, weight, inv, z, Write::kOverwrite, grad_w, Write::kOverwrite);
  });
  const Tensor mean = Tensor::Empty(bench.device, wide, {2048}),
               grad_b = bench.Random({512}, dtype);
  bench.Time("layer_norm " + name, 2 * bytes, "B/s",
             [&] { LayerNorm(x, weight, weight, 1e-5, y, mean, inv); });
  const LayerNormGradients gradients = {.x = z, .weight = grad_w, .bias = grad_b};
  bench.Time("layer_norm backward " + name, 3 * bytes, "B/s",
             [&] { LayerNormBackward(y, x, weight, mean, inv, gradients); });
  bench.Time("softmax " + name, 2 * bytes, "B/s", [&] { Softmax(x, y); });
  bench.Time("softmax backward " + name, 3 * bytes, "B/s", [&] { SoftmaxBackward(x, y, z); });
  bench.Time("log_softmax " + name, 2 * bytes, "B/s", [&] { LogSoftmax(x, y); });
  const RopeTables tables = MakeRopeTables(bench.device, wide, 256, 64);
  const Tensor heads = x.Reshape({8, 256, 8, 64}), rotated = y.Reshape({8, 256, 8, 64});
  bench.Time("rope " + name, 2 * bytes, "B/s",
             [&] { Rope(heads, tables.cos, tables.sin, 0, false, rotated); });
  std::vector<int64_t> samples(8);
  std::iota(samples.begin(), samples.end(), 0);
  bench.Time("dropout " + name, 2 * bytes, "B/s",
             [&] { Dropout(heads, 3, samples, 0.1, rotated); });
  const Tensor logits = bench.Random({2048, 8192}, dtype), grad = bench.Random({2048, 8192}, dtype);
  std::vector<int64_t> targets(2048);
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int64_t>(i * 7919 % 8192);
  const Tensor ids = Tensor::FromHost<int64_t>(bench.device, targets, {2048});
  const double logit_bytes = static_cast<double>(logits.bytes());
  bench.Time("cross_entropy " + name, logit_bytes, "B/s",
             [&] { CrossEntropy(logits, ids, {}, inv); });
  const CrossEntropyOptions smooth = {.label_smoothing = 0.1, .z_loss = 1e-4};
  bench.Time("cross_entropy smoothed " + name, logit_bytes, "B/s",
             [&] { CrossEntropy(logits, ids, smooth, inv); });
  bench.Time("cross_entropy backward " + name, 2 * logit_bytes, "B/s",
             [&] { CrossEntropyBackward(logits, ids, {}, inv, 1.0, grad); });
  const Tensor table = bench.Random({8192, 512}, dtype);
  bench.Time("embedding " + name, 2 * bytes, "B/s", [&] { Embedding(ids, table, y); });
  bench.Time("embedding backward add " + name, 3 * bytes, "B/s",
             [&] { EmbeddingBackward(y, ids, table, Write::kAdd); });
}

void BenchUpdates(const Bench& bench, DType dtype) {
  const std::string name(NameOf(dtype));
  const Shape shape = {1 << 20};
  const Tensor p = bench.Random(shape, dtype), g = bench.Random(shape, dtype);
  const Tensor m = bench.Random(shape, dtype), v = bench.Random(shape, dtype);
  Fill(v, 1.0);
  bench.Time("adamw " + name, 7.0 * static_cast<double>(p.bytes()), "B/s",
             [&] { AdamWStep(p, g, m, v, {}); });
  bench.Time("fill_normal " + name, static_cast<double>(p.bytes()), "B/s",
             [&] { FillNormal(p, 1, 0, 0.0, 1.0); });
}

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

void Run(const Bench& bench) {
  std::printf("%s, %d threads\n", std::string(NameOf(cpu::IsaOf(bench.device))).c_str(),
              bench.device.pool().threads());
  for (DType dtype : kFloats) {
    BenchMatmul(bench, dtype, 2048, 256, 256);
    BenchMatmul(bench, dtype, 2048, 256, 688);
    BenchMatmul(bench, dtype, 2048, 688, 256);
    if (dtype == DType::kF64) continue;
    BenchMatmul(bench, dtype, 2048, 512, 1376);
    BenchMatmul(bench, dtype, 2048, 512, 8192);
    BenchMatmul(bench, dtype, 17, 65, 33);
  }
  for (DType dtype : kFloats) {
    BenchAttention(bench, dtype, 8, 256, 4, 32, true);
    BenchAttention(bench, dtype, 8, 256, 4, 64, true);
    BenchAttention(bench, dtype, 2, 256, 4, 64, false);
    BenchAttention(bench, dtype, 1, 2048, 2, 128, true);
    if (dtype != DType::kF64) BenchMaskedAttention(bench, dtype);
  }
  for (DType dtype : kFloats) {
    BenchElementwise(bench, dtype);
    BenchRepeated(bench, dtype);
    BenchRows(bench, dtype);
    BenchUpdates(bench, dtype);
  }
}

}  // namespace
}  // namespace sherd::kernels

int main(int argc, char** argv) {
  int threads = 1;
  sherd::kernels::Bench bench;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      threads = std::atoi(argv[i] + 10);
    } else {
      bench.filter = argv[i];
    }
  }
  bench.device = sherd::Device::Cpu({.threads = threads});
  sherd::kernels::Run(bench);
  return 0;
}
