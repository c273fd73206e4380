#include "sherd/runtime/kernels/broadcast.h"

#include "sherd/runtime/kernels/sum_over.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

// Element `i` of a tensor of shape `whole`, in one of shape `part` that is repeated to it.
int64_t RepeatedIndex(int64_t i, const Shape& whole, const Shape& part) {
  int64_t index = 0, step = 1;
  for (int d = 0; d < whole.rank(); ++d) {
    const int64_t coordinate = i % whole.back(d);
    i /= whole.back(d);
    if (d >= part.rank()) continue;
    if (part.back(d) > 1) index += coordinate * step;
    step *= part.back(d);
  }
  return index;
}

double Apply(Arithmetic op, double a, double b) {
  if (op == Arithmetic::kAdd) return a + b;
  if (op == Arithmetic::kSub) return a - b;
  return op == Arithmetic::kMul ? a * b : a / b;
}

struct Shapes {
  Shape a, b, out;
};

// Every operation on a and b, repeated to `shape`, against plain loops.
void CheckArithmetic(const Values& a, const Values& b, const Shape& shape, DType out_dtype) {
  const Values before = RandomValues(out_dtype, shape, 3);
  for (Arithmetic op : {Arithmetic::kAdd, Arithmetic::kSub, Arithmetic::kMul, Arithmetic::kDiv}) {
    std::vector<double> r(before.v.size());
    for (size_t i = 0; i < r.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      r[i] = Apply(op, a[RepeatedIndex(at, shape, a.shape)], b[RepeatedIndex(at, shape, b.shape)]);
    }
    for (Write write : kWrites) {
      for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
        CheckEverywhere({Written(write, before, r)}, ToleranceOf(out_dtype),
                        Describe(a.dtype, write, shape), [&](const Device& device) {
                          const Tensor out = ToTensor(device, before, lay);
                          Broadcast(op, ToTensor(device, a, lay), ToTensor(device, b, lay), out,
                                    write);
                          return Results{FromTensor(out)};
                        });
      }
    }
  }
}

TEST(BroadcastTest, AgreesWithPlainLoops) {
  const Shapes shapes[] = {{{7, 33}, {7, 33}, {7, 33}},
                           {{150, 257}, {257}, {150, 257}},
                           {{150, 1}, {150, 257}, {150, 257}},
                           {{5, 1, 9}, {4, 1}, {5, 4, 9}},
                           {{1}, {40003}, {40003}},
                           {{0, 3}, {3}, {0, 3}}};
  for (DType dtype : kFloats) {
    for (const Shapes& s : shapes) {
      Shape shape;
      ASSERT_TRUE(BroadcastShape(s.a, s.b, shape));
      ASSERT_EQ(shape, s.out);
      const Values a = RandomValues(dtype, s.a, 1);
      Values b = RandomValues(dtype, s.b, 2);
      for (double& x : b.v) x = Rounded(x < 0 ? x - 0.5 : x + 0.5, dtype);
      for (DType out_dtype : {dtype, WideOf(dtype)}) CheckArithmetic(a, b, s.out, out_dtype);
    }
  }
}

TEST(BroadcastTest, ShapesThatDoNotMatchChangeNothing) {
  Shape out = {9};
  EXPECT_FALSE(BroadcastShape({2, 3}, {2, 4}, out));
  EXPECT_FALSE(BroadcastShape({2}, {3}, out));
  EXPECT_EQ(out, Shape({9}));
  EXPECT_TRUE(BroadcastShape({}, {2, 1}, out));
  EXPECT_EQ(out, Shape({2, 1}));
  EXPECT_TRUE(BroadcastShape({0}, {1}, out));
  EXPECT_EQ(out, Shape({0}));
}

TEST(SumOverTest, AgreesWithPlainLoops) {
  const Shapes shapes[] = {{{4, 6}, {}, {4, 6}},          {{700, 130}, {}, {1, 130}},
                           {{700, 130}, {}, {700, 1}},    {{3, 90, 50}, {}, {3, 1, 50}},
                           {{3, 90, 50}, {}, {1, 90, 1}}, {{3, 90, 50}, {}, {1, 1, 1}},
                           {{5, 1}, {}, {1, 1}},          {{70, 3, 2, 4}, {}, {1, 3, 1, 4}},
                           {{2, 100000}, {}, {2, 1}},     {{3, 0}, {}, {3, 1}}};
  for (DType dtype : kFloats) {
    for (const Shapes& s : shapes) {
      const Values x = RandomValues(dtype, s.a, 1, 0.1);
      for (DType out_dtype : {dtype, WideOf(dtype)}) {
        const Values before = RandomValues(out_dtype, s.out, 2);
        std::vector<double> r(before.v.size(), 0.0);
        for (size_t i = 0; i < x.v.size(); ++i) {
          r[static_cast<size_t>(RepeatedIndex(static_cast<int64_t>(i), s.a, s.out))] +=
              -0.5 * x.v[i];
        }
        for (Write write : kWrites) {
          for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
            CheckEverywhere({Written(write, before, r)}, ToleranceOf(out_dtype),
                            Describe(dtype, write, s.a) + " to " + s.out.ToString(),
                            [&](const Device& device) {
                              const Tensor out = ToTensor(device, before);
                              SumOver(ToTensor(device, x, lay), out, -0.5, write);
                              return Results{FromTensor(out)};
                            });
          }
        }
      }
    }
  }
}

// 100000 ones in bf16 would stop at 256 if they were summed in bf16.
TEST(SumOverTest, LongSumsOf16BitsKeepTheirPlaces) {
  const Device device = Device::Cpu();
  for (const Shape& shape : {Shape{100000, 2}, Shape{2, 100000}}) {
    const Tensor x = Tensor::Empty(device, DType::kBF16, shape);
    Fill(x, 1.0);
    const bool rows = shape[0] == 2;
    const Tensor out = Tensor::Empty(device, DType::kF32, rows ? Shape{2, 1} : Shape{1, 2});
    SumOver(x, out);
    EXPECT_EQ(out.ToHost<float>(), (std::vector<float>{100000.0f, 100000.0f}));
  }
}

}  // namespace
}  // namespace sherd::kernels::test
