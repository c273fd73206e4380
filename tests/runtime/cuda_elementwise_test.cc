#include <functional>

#include "sherd/runtime/kernels/broadcast.h"
#include "sherd/runtime/kernels/power.h"
#include "sherd/runtime/kernels/unary.h"
#include "tests/runtime/cuda_support.h"

namespace sherd::kernels::test {
namespace {

using Tensors = std::vector<Tensor>;

// Runs an op on views of random values on both devices and compares all of the output's storage.
using Op = std::function<void(const Tensors& in, const Tensor& out, Write write)>;

void Compare(const Op& op, const std::vector<View>& in, View out, DType dtype, const Shape& shape,
             Write write, const std::string& name) {
  Tensors on_cpu, on_gpu;
  std::string what = name + " " + Describe(dtype, write, shape) + ":";
  for (size_t k = 0; k < in.size(); ++k) {
    const Pair x = LaidPair(in[k], dtype, shape, 10 + k);
    on_cpu.push_back(x.cpu);
    on_gpu.push_back(x.gpu);
    what += std::string(" ") + NameOf(in[k]);
  }
  const Pair to = LaidPair(out, dtype, shape, 20);
  op(on_cpu, to.cpu, write);
  op(on_gpu, to.gpu, write);
  ExpectSame(to, what + " to " + NameOf(out));
}

const Op kAdd = [](const Tensors& in, const Tensor& out, Write write) {
  Add(in[0], in[1], out, write);
};
const Op kMul = [](const Tensors& in, const Tensor& out, Write write) {
  Mul(in[0], in[1], out, write);
};

struct Views {
  View a, b, out;
};
constexpr Views kViews[] = {
    {View::kContiguous, View::kContiguous, View::kContiguous},
    {View::kOffset, View::kContiguous, View::kContiguous},
    {View::kContiguous, View::kContiguous, View::kOffset},
    {View::kPadded, View::kPadded, View::kPadded},
    {View::kOddPadded, View::kContiguous, View::kPadded},
    {View::kTransposed, View::kContiguous, View::kContiguous},
    {View::kContiguous, View::kTransposed, View::kTransposed},
    {View::kRepeatedRow, View::kContiguous, View::kContiguous},
    {View::kRepeatedColumn, View::kPadded, View::kContiguous},
    {View::kRepeatedColumn, View::kRepeatedColumn, View::kOddPadded},
};
const Shape kShapes[] = {{1, 1}, {3, 5}, {4, 64}, {33, 31}, {2, 3, 24}, {2, 2, 2, 8}};

TEST(CudaElementwiseTest, TwoOperandsOfAnyStrides) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (const Shape& shape : kShapes) {
        for (const Views& v : kViews) {
          Compare(kAdd, {v.a, v.b}, v.out, dtype, shape, write, "add");
        }
      }
      Compare(kMul, {View::kContiguous, View::kOffset}, View::kPadded, dtype, {9, 40}, write,
              "mul");
    }
  }
}

TEST(CudaElementwiseTest, MoreElementsThanTheGridTakesAtOnce) {
  for (DType dtype : {DType::kF64, DType::kBF16}) {
    Compare(kAdd, {View::kContiguous, View::kContiguous}, View::kContiguous, dtype, {1, 140001},
            Write::kAdd, "add");
    Compare(kAdd, {View::kContiguous, View::kOffset}, View::kContiguous, dtype, {1, 140001},
            Write::kOverwrite, "add");
  }
}

TEST(CudaElementwiseTest, NothingToDo) {
  for (DType dtype : kFloats) {
    Compare(kAdd, {View::kContiguous, View::kContiguous}, View::kContiguous, dtype, {3, 0},
            Write::kAdd, "add");
    Fill(LaidPair(View::kContiguous, dtype, {0}, 1).gpu, 1.0);
    Copy(LaidPair(View::kContiguous, dtype, {0, 4}, 1).gpu,
         LaidPair(View::kContiguous, dtype, {0, 4}, 1).gpu);
  }
}

TEST(CudaElementwiseTest, AnInputMayBeTheOutput) {
  for (DType dtype : kFloats) {
    const Pair a = LaidPair(View::kOddPadded, dtype, {5, 37}, 1);
    const Pair b = LaidPair(View::kContiguous, dtype, {5, 37}, 2);
    Add(a.cpu, b.cpu, a.cpu, Write::kAdd);
    Add(a.gpu, b.gpu, a.gpu, Write::kAdd);
    ExpectSame(a, "add in place");
    SiluMulBackward(b.cpu, a.cpu, b.cpu, a.cpu, Write::kOverwrite, b.cpu, Write::kOverwrite);
    SiluMulBackward(b.gpu, a.gpu, b.gpu, a.gpu, Write::kOverwrite, b.gpu, Write::kOverwrite);
    ExpectSame(a, "silu_mul_backward in place");
    ExpectSame(b, "silu_mul_backward in place");
  }
}

TEST(CudaElementwiseTest, OneOperand) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (View view : {View::kContiguous, View::kOffset, View::kPadded, View::kTransposed}) {
        const auto check = [&](const char* name, const Op& op) {
          Compare(op, {view}, View::kContiguous, dtype, {6, 72}, write, name);
          Compare(op, {view}, View::kPadded, dtype, {7, 33}, write, name);
        };
        check("scale",
              [](const Tensors& in, const Tensor& out, Write w) { Scale(in[0], 0.3, out, w); });
        check("copy", [](const Tensors& in, const Tensor& out, Write w) { Copy(in[0], out, w); });
        if (write == Write::kAdd) continue;
        check("silu", [](const Tensors& in, const Tensor& out, Write) { Silu(in[0], out); });
        check("clamp",
              [](const Tensors& in, const Tensor& out, Write) { Clamp(in[0], -0.7, 0.1, out); });
      }
    }
  }
}

TEST(CudaElementwiseTest, EveryFunctionAndItsDerivative) {
  for (DType dtype : kFloats) {
    for (int f = 0; f <= static_cast<int>(UnaryFunction::kGeluTanh); ++f) {
      const auto function = static_cast<UnaryFunction>(f);
      const std::string name = "function " + std::to_string(f);
      const Op forward = [&](const Tensors& in, const Tensor& out, Write) {
        Unary(function, in[0], out);
      };
      const Op backward = [&](const Tensors& in, const Tensor& out, Write w) {
        UnaryBackward(function, in[0], in[1], out, w);
      };
      Compare(forward, {View::kContiguous}, View::kContiguous, dtype, {3, 515}, Write::kOverwrite,
              name);
      for (Write write : kWrites) {
        Compare(backward, {View::kContiguous, View::kContiguous}, View::kContiguous, dtype,
                {3, 515}, write, name + " backward");
      }
    }
  }
}

TEST(CudaElementwiseTest, FunctionsOfNanAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {0.0, -0.0, inf, -inf, std::nan(""), 88.7, -104.0, 1e-40};
  for (DType dtype : kFloats) {
    const Values special = {dtype, {1, 8}, values};
    for (int f = 0; f <= static_cast<int>(UnaryFunction::kGeluTanh); ++f) {
      const Pair x = PairOf(ToTensor(Cpu(), special)), y = PairOf(ToTensor(Cpu(), special));
      Unary(static_cast<UnaryFunction>(f), x.cpu, y.cpu);
      Unary(static_cast<UnaryFunction>(f), x.gpu, y.gpu);
      ExpectSame(y, "function " + std::to_string(f));
      UnaryBackward(static_cast<UnaryFunction>(f), x.cpu, x.cpu, y.cpu);
      UnaryBackward(static_cast<UnaryFunction>(f), x.gpu, x.gpu, y.gpu);
      ExpectSame(y, "derivative " + std::to_string(f));
    }
  }
}

TEST(CudaElementwiseTest, GatedUnitsAndBounds) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (const Views& v : kViews) {
        const auto check = [&](const char* name, const Op& op) {
          Compare(op, {v.a, v.b}, v.out, dtype, {5, 24}, write, name);
        };
        check("silu_backward", [](const Tensors& in, const Tensor& out, Write w) {
          SiluBackward(in[0], in[1], out, w);
        });
        check("silu_mul",
              [](const Tensors& in, const Tensor& out, Write) { SiluMul(in[0], in[1], out); });
        check("clamp_backward", [](const Tensors& in, const Tensor& out, Write w) {
          ClampBackward(in[0], in[1], -0.5, 0.25, out, w);
        });
        check("the gate's gradient", [](const Tensors& in, const Tensor& out, Write w) {
          SiluMulBackward(in[0], in[1], in[1], out, w, Tensor(), Write::kOverwrite);
        });
        check("the other gradient", [](const Tensors& in, const Tensor& out, Write w) {
          SiluMulBackward(in[0], in[1], in[1], Tensor(), Write::kOverwrite, out, w);
        });
      }
    }
  }
}

TEST(CudaElementwiseTest, Powers) {
  for (DType dtype : kFloats) {
    for (double exponent : {0.0, 1.0, 2.0, 3.0, -1.0, 0.5}) {
      const Op forward = [&](const Tensors& in, const Tensor& out, Write) {
        Power(in[0], exponent, out);
      };
      const Op backward = [&](const Tensors& in, const Tensor& out, Write w) {
        PowerBackward(in[0], in[1], exponent, out, w);
      };
      Compare(forward, {View::kContiguous}, View::kPadded, dtype, {3, 40}, Write::kOverwrite,
              "power");
      for (Write write : kWrites) {
        Compare(backward, {View::kTransposed, View::kContiguous}, View::kContiguous, dtype, {5, 12},
                write, "power backward");
        Compare(backward, {View::kContiguous, View::kContiguous}, View::kContiguous, dtype, {5, 12},
                write, "power backward");
      }
    }
  }
}

TEST(CudaElementwiseTest, CastsBetweenAllFloats) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (Write write : kWrites) {
        for (const Views& v : kViews) {
          const Pair x = LaidPair(v.a, from, {5, 48}, 1), y = LaidPair(v.out, to, {5, 48}, 2);
          Cast(x.cpu, y.cpu, write);
          Cast(x.gpu, y.gpu, write);
          ExpectSame(y, std::string("cast ") + std::string(sherd::NameOf(from)) + " to " +
                            Describe(to, write, {5, 48}) + " " + NameOf(v.a));
        }
      }
    }
  }
}

constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16,
                          DType::kF16, DType::kI32, DType::kI64};

TEST(CudaElementwiseTest, CopiesOfAnyDtypeAndStrides) {
  for (DType dtype : kAll) {
    for (const Views& v : kViews) {
      for (const Shape& shape : {Shape{3, 5}, Shape{70, 67}, Shape{2, 3, 32}, Shape{2, 130, 3}}) {
        const Pair x = LaidPair(v.a, dtype, shape, 1), y = LaidPair(v.out, dtype, shape, 2);
        Copy(x.cpu, y.cpu);
        Copy(x.gpu, y.gpu);
        ExpectSame(y, std::string("copy of ") + NameOf(v.a) + " " + shape.ToString());
      }
    }
    // The innermost dimension of one is the outermost of the other.
    const Pair x = PairOf(Random(dtype, {34, 3, 5, 66}, 1));
    const Pair y = PairOf(Random(dtype, {66, 5, 34, 3}, 2));
    constexpr int kOrder[] = {3, 2, 0, 1};
    Copy(x.cpu.Permute(kOrder), y.cpu);
    Copy(x.gpu.Permute(kOrder), y.gpu);
    ExpectSame(y, "a permuted copy");
    if (!IsFloating(dtype)) continue;
    Copy(x.cpu.Permute(kOrder), y.cpu, Write::kAdd);
    Copy(x.gpu.Permute(kOrder), y.gpu, Write::kAdd);
    ExpectSame(y, "a permuted copy that is added");
  }
}

TEST(CudaElementwiseTest, FillsAnyDtype) {
  for (DType dtype : kAll) {
    for (View view :
         {View::kContiguous, View::kOffset, View::kPadded, View::kOddPadded, View::kTransposed}) {
      for (double value : {0.0, -0.0, 1.7, -3.2}) {
        for (const Shape& shape : {Shape{3, 5}, Shape{4, 32}}) {
          const Pair x = LaidPair(view, dtype, shape, 1);
          Fill(x.cpu, value);
          Fill(x.gpu, value);
          ExpectSame(x, std::string("fill of ") + NameOf(view));
        }
      }
    }
  }
}

TEST(CudaElementwiseTest, ArithmeticOfShapesThatAreMatched) {
  struct Case {
    Shape a, b, out;
  };
  const Case cases[] = {{{4, 40}, {40}, {4, 40}},          {{4, 40}, {4, 1}, {4, 40}},
                        {{1, 40}, {4, 1}, {4, 40}},        {{3, 1, 8}, {5, 8}, {3, 5, 8}},
                        {{3, 5, 7}, {3, 1, 7}, {3, 5, 7}}, {{}, {2, 9}, {2, 9}}};
  for (DType dtype : kFloats) {
    for (DType to : {dtype, ComputeDTypeOf(dtype)}) {
      for (Write write : kWrites) {
        for (const Case& c : cases) {
          for (int op = 0; op < 4; ++op) {
            const Pair a = PairOf(Random(dtype, c.a, 1)), b = PairOf(Random(dtype, c.b, 2));
            const Pair out = PairOf(Random(to, c.out, 3));
            Broadcast(static_cast<Arithmetic>(op), a.cpu, b.cpu, out.cpu, write);
            Broadcast(static_cast<Arithmetic>(op), a.gpu, b.gpu, out.gpu, write);
            ExpectSame(out, "arithmetic " + std::to_string(op) + " " + Describe(dtype, write, c.a) +
                                c.b.ToString());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::test
