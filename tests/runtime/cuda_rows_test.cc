#include <optional>

#include "sherd/runtime/kernels/l2_normalize.h"
#include "sherd/runtime/kernels/layer_norm.h"
#include "sherd/runtime/kernels/rms_norm.h"
#include "sherd/runtime/kernels/rope.h"
#include "sherd/runtime/kernels/softmax.h"
#include "tests/runtime/cuda_support.h"

// Kernels of rows: norms, softmax, rope.
namespace sherd::kernels::test {
namespace {

// Rows of a warp, of a block, and such that a block reads twice, with and without whole packs.
constexpr int64_t kLengths[] = {1, 31, 33, 1000, 2048, 5000, 17001};
constexpr View kInputs[] = {View::kContiguous, View::kOddPadded, View::kPadded, View::kTransposed};

class CudaRowsTest : public ::testing::TestWithParam<DType> {
 protected:
  // Calls f(rows, cols, how they lie, write); every way to lie meets both ways to write.
  template <typename F>
  void ForEachCase(const F& f) {
    int ordinal = 0;
    for (int64_t cols : kLengths) {
      ++ordinal;
      for (View lie : kInputs) {
        const int64_t rows = cols < 100 ? 70 : cols < 3000 ? 10 : 2;
        f(rows, cols, lie, kWrites[++ordinal % 2]);
      }
    }
  }
  Tensor Input(int64_t rows, int64_t cols, View lie) {
    return Laid(lie, dtype_, {rows, cols}, ++seed_);
  }
  // What a kernel writes may not lie transposed. It holds values, for kAdd.
  Tensor Output(int64_t rows, int64_t cols, View lie) {
    return Input(rows, cols, lie == View::kTransposed ? View::kOddPadded : lie);
  }
  Tensor Statistic(int64_t rows) { return test::Random(WideOf(dtype_), {rows}, ++seed_); }
  Tensor Vector(int64_t size) { return test::Random(dtype_, {size}, ++seed_); }
  double close() const { return CloseFor(dtype_); }
  double statistic_close() const { return CloseFor(WideOf(dtype_)); }

  const DType dtype_ = GetParam();
  uint64_t seed_ = 0;
};

TEST_P(CudaRowsTest, RmsNormAndItsStatistics) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    const Tensor x = Input(rows, cols, lie), w = Vector(cols), out = Output(rows, cols, lie);
    const Tensor inv = Statistic(rows), d_out = On(out), d_inv = On(inv);
    RmsNorm(On(x), On(w), 1e-5, d_out, d_inv);
    RmsNorm(x, w, 1e-5, out, inv);
    ExpectSame({out, d_out}, what, close());
    ExpectSame({inv, d_inv}, what, statistic_close());
  });
}

TEST_P(CudaRowsTest, RmsNormBackward) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    const Tensor x = Input(rows, cols, lie), w = Vector(cols), grad = Input(rows, cols, lie);
    const Tensor inv = Statistic(rows), to_x = Output(rows, cols, lie), to_w = Vector(cols);
    const Tensor d_x = On(to_x), d_w = On(to_w);
    RmsNormBackward(On(grad), On(x), On(w), On(inv), d_x, write, d_w, write);
    RmsNormBackward(grad, x, w, inv, to_x, write, to_w, write);
    ExpectSame({to_x, d_x}, what, close());
    ExpectSame({to_w, d_w}, what + ", weight", 4 * close());
  });
}

TEST_P(CudaRowsTest, LayerNormAndItsStatistics) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    // Without weight and bias the second time.
    const bool bare = write == Write::kAdd;
    const Tensor x = Input(rows, cols, lie), out = Output(rows, cols, lie);
    const Tensor w = bare ? Tensor() : Vector(cols), b = bare ? Tensor() : Vector(cols);
    const Tensor mean = Statistic(rows), inv = Statistic(rows);
    const Tensor d_out = On(out), d_mean = On(mean), d_inv = On(inv);
    LayerNorm(On(x), On(w), On(b), 1e-5, d_out, d_mean, d_inv);
    LayerNorm(x, w, b, 1e-5, out, mean, inv);
    // A row of one element has no variance: what it is multiplied with is large.
    const double tolerance = cols == 1 ? 1e3 * statistic_close() + close() : close();
    ExpectSame({out, d_out}, what, tolerance);
    ExpectSame({mean, d_mean}, what + ", mean", statistic_close());
    ExpectSame({inv, d_inv}, what + ", inv_std", 2 * statistic_close());
  });
}

TEST_P(CudaRowsTest, LayerNormBackward) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    const Tensor x = Input(rows, cols, lie), grad = Input(rows, cols, lie);
    const Tensor w = lie == View::kOddPadded ? Tensor() : Vector(cols);
    const Tensor mean = Statistic(rows), inv = Statistic(rows);
    const LayerNormGradients to = {
        Output(rows, cols, lie), write, Vector(cols), write, Vector(cols), write};
    const LayerNormGradients d = {On(to.x), write, On(to.weight), write, On(to.bias), write};
    LayerNormBackward(On(grad), On(x), On(w), On(mean), On(inv), d);
    LayerNormBackward(grad, x, w, mean, inv, to);
    ExpectSame({to.x, d.x}, what, 2 * close());
    ExpectSame({to.weight, d.weight}, what + ", weight", 4 * close());
    ExpectSame({to.bias, d.bias}, what + ", bias", 4 * close());
  });
}

TEST_P(CudaRowsTest, GradientsOfNormsThatAreNotAskedForChangeNoBits) {
  for (int64_t cols : {96, 2048, 9000}) {
    const int64_t rows = 70;
    const Tensor x = On(Input(rows, cols, View::kContiguous)), w = On(Vector(cols));
    const Tensor grad = On(Input(rows, cols, View::kContiguous));
    const Tensor mean = On(Statistic(rows)), inv = On(Statistic(rows));
    LayerNormGradients all, bias;
    all.x = On(Output(rows, cols, View::kContiguous));
    all.weight = On(Vector(cols));
    all.bias = On(Vector(cols));
    bias.bias = On(Vector(cols));
    LayerNormBackward(grad, x, w, mean, inv, all);
    LayerNormBackward(grad, {}, {}, mean, inv, bias);
    EXPECT_EQ(HostBits(all.bias), HostBits(bias.bias)) << cols;
    const Tensor to_w = On(Vector(cols));
    RmsNormBackward(grad, x, w, inv, {}, Write::kOverwrite, to_w, Write::kOverwrite);
    const Tensor to_w2 = On(Vector(cols));
    RmsNormBackward(grad, x, w, inv, all.x, Write::kOverwrite, to_w2, Write::kOverwrite);
    EXPECT_EQ(HostBits(to_w), HostBits(to_w2)) << cols;
  }
}

TEST_P(CudaRowsTest, BitsDoNotDependOnWhetherRowsAreAligned) {
  for (int64_t cols : {96, 2048, 9000}) {
    const int64_t rows = 40;
    const Tensor values = test::Random(dtype_, {rows, cols}, 91);
    const Tensor w = On(Vector(cols)), inv = On(Statistic(rows));
    std::vector<std::string> bits;
    for (View lie : {View::kContiguous, View::kOddPadded}) {
      const Tensor x = Input(rows, cols, lie);
      Copy(values, x);
      const Tensor d_x = On(x), to_w = On(Vector(cols)),
                   to_x = On(Input(rows, cols, View::kContiguous));
      RmsNormBackward(d_x, d_x, w, inv, to_x, Write::kOverwrite, to_w, Write::kOverwrite);
      bits.push_back(HostBits(to_x) + HostBits(to_w));
    }
    EXPECT_EQ(bits[0], bits[1]) << cols;
  }
}

TEST_P(CudaRowsTest, GradientOverTheIncomingOne) {
  for (int64_t cols : {96, 2048, 9000}) {
    const Tensor x = Input(9, cols, View::kContiguous), w = Vector(cols), to_w = Vector(cols);
    const Tensor grad = Input(9, cols, View::kContiguous), inv = Statistic(9);
    const Tensor d_grad = On(grad), d_w = On(to_w);
    RmsNormBackward(d_grad, On(x), On(w), On(inv), d_grad, Write::kOverwrite, d_w,
                    Write::kOverwrite);
    RmsNormBackward(grad, x, w, inv, grad, Write::kOverwrite, to_w, Write::kOverwrite);
    ExpectSame({grad, d_grad}, "grad_x over grad", close());
    ExpectSame({to_w, d_w}, "weight, grad_x over grad", 4 * close());
    const Tensor y = Input(9, cols, View::kPadded), d_y = On(y);
    Softmax(d_y, d_y);
    Softmax(y, y);
    ExpectSame({y, d_y}, "softmax in place", close());
  }
}

TEST_P(CudaRowsTest, Softmaxes) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    const bool log = write == Write::kAdd;
    const Tensor x = Input(rows, cols, lie), out = Output(rows, cols, lie), d_out = On(out);
    Scale(x, 5.0, x);
    log ? LogSoftmax(On(x), d_out) : Softmax(On(x), d_out);
    log ? LogSoftmax(x, out) : Softmax(x, out);
    // The CPU adds thousands of terms one after another.
    ExpectSame({out, d_out}, what, cols > 9000 ? 3 * close() : close());
  });
}

TEST_P(CudaRowsTest, SoftmaxesOfInfinities) {
  const double inf = std::numeric_limits<double>::infinity();
  for (int64_t cols : {5, 600, 9000}) {
    const Tensor x = Input(4, cols, View::kContiguous);
    for (int64_t c = 0; c < cols; ++c) Poke(x, c, -inf);
    Poke(x, cols + 2, inf);
    Poke(x, 2 * cols + 3, -inf);
    Poke(x, 3 * cols + 1, std::nan(""));
    const Tensor out = Output(4, cols, View::kContiguous), d_out = On(out);
    Softmax(On(x), d_out);
    Softmax(x, out);
    ExpectSame({out, d_out}, "softmax of infinities", close());
    LogSoftmax(On(x), d_out);
    LogSoftmax(x, out);
    ExpectSame({out, d_out}, "log_softmax of infinities", close());
  }
}

TEST_P(CudaRowsTest, SoftmaxBackwards) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    const Tensor grad = Input(rows, cols, lie), y = Input(rows, cols, lie);
    Tensor to = Output(rows, cols, lie), d_to = On(to);
    // So that the sums of terms around 0 are near 1, and errors of theirs not larger.
    const double less = 1.0 / std::sqrt(static_cast<double>(cols));
    Scale(y, less, y);
    SoftmaxBackward(On(grad), On(y), d_to, write);
    SoftmaxBackward(grad, y, to, write);
    ExpectSame({to, d_to}, what, close());
    Scale(grad, less, grad);
    to = Output(rows, cols, lie);
    d_to = On(to);
    LogSoftmaxBackward(On(grad), On(y), d_to, write);
    LogSoftmaxBackward(grad, y, to, write);
    ExpectSame({to, d_to}, what + ", log", close());
  });
}

TEST_P(CudaRowsTest, L2Normalize) {
  ForEachCase([&](int64_t rows, int64_t cols, View lie, Write write) {
    const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
    const Tensor x = Input(rows, cols, lie), norms = Statistic(rows), d_norms = On(norms);
    Poke(x, Place(x, 0), 0.0);  // with one column, a row of norm 0
    Tensor out = Output(rows, cols, lie), d_out = On(out);
    kernels::L2Normalize(On(x), 0.125, d_out, d_norms);
    kernels::L2Normalize(x, 0.125, out, norms);
    ExpectSame({out, d_out}, what, close());
    ExpectSame({norms, d_norms}, what + ", norms", statistic_close());
    const Tensor grad = Input(rows, cols, lie);
    out = Output(rows, cols, lie);
    d_out = On(out);
    L2NormalizeBackward(On(grad), On(x), On(norms), 0.125, d_out, write);
    L2NormalizeBackward(grad, x, norms, 0.125, out, write);
    ExpectSame({out, d_out}, what + ", backward", 2 * close());
  });
}

TEST_P(CudaRowsTest, EmptyOnesLaunchNothing) {
  const Tensor x = On(Tensor::Empty(Cpu(), dtype_, {0, 8})), w = On(Vector(8)),
               to_w = On(Vector(8));
  const Tensor none = On(Tensor::Empty(Cpu(), WideOf(dtype_), {0}));
  const Tensor narrow = On(Tensor::Empty(Cpu(), dtype_, {3, 0}));
  RmsNorm(x, w, 1e-5, x, none);
  LayerNorm(x, w, w, 1e-5, x, none, none);
  kernels::L2Normalize(x, 1e-5, x, none);
  Softmax(x, x);
  Softmax(narrow, narrow);
  LogSoftmaxBackward(narrow, narrow, narrow);
  RmsNormBackward(x, x, w, none, x, Write::kOverwrite, to_w, Write::kOverwrite);
  EXPECT_EQ(HostBits(to_w), std::string(static_cast<size_t>(to_w.bytes()), '\0'));
}

TEST_P(CudaRowsTest, Rope) {
  for (int64_t head : {2, 6, 64, 128}) {
    const RopeTables tables = MakeRopeTables(Cpu(), WideOf(dtype_), 12, head);
    const Tensor cos = On(tables.cos), sin = On(tables.sin);
    for (bool sliced : {false, true}) {
      for (Write write : kWrites) {
        // [B, T, H, D]; sliced: as the middle of a projection of 3 x H heads, from another place.
        const int64_t heads = sliced ? 9 : 3;
        const Tensor all = test::Random(dtype_, {2, 7, heads, head}, ++seed_);
        const Tensor x = sliced ? all.Slice(2, 3, 6) : all;
        const Tensor out = test::Random(dtype_, {2, 7, 3, head}, ++seed_);
        const Tensor d_out = On(out);
        kernels::Rope(On(x), cos, sin, 4, sliced, d_out, write);
        kernels::Rope(x, tables.cos, tables.sin, 4, sliced, out, write);
        ExpectSame({out, d_out}, "rope, head size " + std::to_string(head), close());
      }
    }
    // Not aligned: one element into its storage.
    const Tensor all = test::Random(dtype_, {2, 7, 3, head + 1}, ++seed_);
    const Tensor x = all.Slice(3, 1, head + 1), d_x = On(x);
    kernels::Rope(d_x, cos, sin, 0, false, d_x);
    kernels::Rope(x, tables.cos, tables.sin, 0, false, x);
    ExpectSame({x, d_x}, "rope in place, not aligned", close());
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaRowsTest, ::testing::ValuesIn(kFloats),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace sherd::kernels::test
