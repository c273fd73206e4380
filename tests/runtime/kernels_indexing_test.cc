#include "sherd/runtime/kernels/indexing.h"

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/l2_normalize.h"
#include "sherd/runtime/kernels/max_over.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

// Indices in [0, limit), many of them several times.
std::vector<int64_t> RandomIndices(int64_t count, int64_t limit, uint64_t seed) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = Philox4x32(seed, i, 5)[0] % static_cast<uint32_t>(limit);
  }
  return ids;
}

Tensor ToTensor(const Device& device, const std::vector<int64_t>& ids, const Shape& shape) {
  return Tensor::FromHost<int64_t>(device, ids, shape);
}

struct Case {
  int64_t outer, extent, inner, count;
};

// Along the middle dimension of [outer, extent, inner].
constexpr Case kCases[] = {{1, 50, 180, 250}, {40, 60, 1, 90}, {3, 7, 5, 1}, {2, 4, 3, 0}};

TEST(IndexingTest, RowsAgreeWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (const auto& [outer, extent, inner, count] : kCases) {
      const Values whole = RandomValues(dtype, {outer, extent, inner}, 1);
      const Values part = RandomValues(dtype, {outer, count, inner}, 2, 0.1);
      const std::vector<int64_t> ids = RandomIndices(count, extent, 3);
      Values selected = Like(part);
      std::vector<double> added(whole.v.size(), 0.0);
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t k = 0; k < count; ++k) {
          for (int64_t c = 0; c < inner; ++c) {
            const int64_t from = (o * count + k) * inner + c;
            const int64_t to = (o * extent + ids[static_cast<size_t>(k)]) * inner + c;
            selected[from] = whole[to];
            added[static_cast<size_t>(to)] += part[from];
          }
        }
      }
      for (Write write : kWrites) {
        for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
          CheckEverywhere({selected.v, Written(write, whole, added)}, ToleranceOf(dtype),
                          Describe(dtype, write, whole.shape), [&](const Device& device) {
                            const Tensor index = ToTensor(device, ids, {count});
                            const Tensor out = ToTensor(device, part);
                            IndexSelect(ToTensor(device, whole, lay), 1, index, out);
                            const Tensor sum = ToTensor(device, whole);
                            IndexAdd(ToTensor(device, part, lay), 1, index, sum, write);
                            return Results{FromTensor(out), FromTensor(sum)};
                          });
        }
      }
    }
  }
}

TEST(IndexingTest, ElementsAgreeWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (const auto& [outer, extent, inner, count] : kCases) {
      // The index is smaller than the whole in the other dimensions.
      const int64_t used_outer = outer > 1 ? outer - 1 : 1, used_inner = inner > 1 ? inner - 1 : 1;
      const Values whole = RandomValues(dtype, {outer, extent, inner}, 1);
      const Values part = RandomValues(dtype, {used_outer, count, used_inner}, 2, 0.1);
      const std::vector<int64_t> ids = RandomIndices(part.shape.numel(), extent, 3);
      Values chosen = Like(part);
      std::vector<double> added(whole.v.size(), 0.0);
      for (int64_t i = 0; i < part.shape.numel(); ++i) {
        const int64_t c = i % used_inner, o = i / used_inner / count;
        const int64_t at = (o * extent + ids[static_cast<size_t>(i)]) * inner + c;
        chosen[i] = whole[at];
        added[static_cast<size_t>(at)] += part[i];
      }
      for (Write write : kWrites) {
        for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
          CheckEverywhere({chosen.v, Written(write, whole, added)}, ToleranceOf(dtype),
                          Describe(dtype, write, whole.shape), [&](const Device& device) {
                            const Tensor index = ToTensor(device, ids, part.shape);
                            const Tensor out = ToTensor(device, part, lay);
                            Gather(ToTensor(device, whole, lay), 1, index, out);
                            const Tensor sum = ToTensor(device, whole, lay);
                            ScatterAdd(ToTensor(device, part, lay), 1, index, sum, write);
                            return Results{FromTensor(out), FromTensor(sum)};
                          });
        }
      }
    }
  }
}

TEST(IndexingTest, ABadIndexIsNamedBeforeAnythingIsWritten) {
  const Device device = Device::Cpu();
  const Values five = RandomValues(DType::kF32, {2, 2}, 1);
  const Tensor index = ToTensor(device, {0, 1, 0, 2}, {2, 2});
  const Tensor x = ToTensor(device, five), out = ToTensor(device, five);
  try {
    ScatterAdd(x, 1, index, out);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("index 2 at index 3 is outside [0, 2)"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(FromTensor(out), five.v);
}

TEST(WhereTest, AgreesWithPlainLoops) {
  const Shape shape = {300, 130};
  for (DType dtype : kFloats) {
    const Values a = RandomValues(dtype, shape, 1), b = RandomValues(dtype, {130}, 2);
    const Values before = RandomValues(dtype, shape, 4);
    const std::vector<int64_t> mask = RandomIndices(300, 2, 3);
    std::vector<double> both(a.v.size()), first(a.v.size());
    for (size_t i = 0; i < both.size(); ++i) {
      const bool chosen = mask[i / 130] != 0;
      both[i] = chosen ? a.v[i] : b.v[i % 130];
      first[i] = chosen ? a.v[i] : 0.0;
    }
    for (Write write : kWrites) {
      CheckEverywhere({Written(write, before, both), Written(write, before, first)},
                      ToleranceOf(dtype), Describe(dtype, write, shape), [&](const Device& device) {
                        const Tensor chosen = ToTensor(device, mask, {300, 1});
                        const Tensor x = ToTensor(device, a, Lay::kPadded);
                        const Tensor one = ToTensor(device, before, Lay::kPadded);
                        const Tensor two = ToTensor(device, before);
                        Where(chosen, x, ToTensor(device, b), one, write);
                        Where(chosen, x, Tensor(), two, write);
                        return Results{FromTensor(one), FromTensor(two)};
                      });
    }
  }
}

TEST(MaxOverTest, AgreesWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (const auto& [outer, extent, inner, count] : kCases) {
      const Values x = RandomValues(dtype, {outer, extent, inner}, 1);
      std::vector<double> most, places;
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t c = 0; c < inner; ++c) {
          int64_t best = 0;
          for (int64_t d = 1; d < extent; ++d) {
            if (x[(o * extent + d) * inner + c] > x[(o * extent + best) * inner + c]) best = d;
          }
          most.push_back(x[(o * extent + best) * inner + c]);
          places.push_back(static_cast<double>(best));
        }
      }
      CheckEverywhere({most, places}, 0.0, Describe(dtype, Write::kOverwrite, x.shape),
                      [&](const Device& device) {
                        const Tensor values = Tensor::Empty(device, dtype, {outer, inner});
                        const Tensor indices = Tensor::Empty(device, DType::kI64, {outer, inner});
                        MaxOver(ToTensor(device, x, Lay::kPadded), 1, values, indices);
                        const std::vector<int64_t> at = indices.ToHost<int64_t>();
                        return Results{FromTensor(values), {at.begin(), at.end()}};
                      });
    }
  }
}

TEST(L2NormalizeTest, AgreesWithPlainLoops) {
  const Shape shape = {700, 65};
  constexpr double kEps = 7.9;  // between the lengths of the rows
  for (DType dtype : kFloats) {
    const Values x = RandomValues(dtype, shape, 1), grad = RandomValues(dtype, shape, 2);
    const Values before = RandomValues(dtype, shape, 3);
    std::vector<double> out, norms, slope;
    for (int64_t r = 0; r < 700; ++r) {
      double squares = 0.0, dot = 0.0;
      for (int64_t c = 0; c < 65; ++c) {
        squares += x[r * 65 + c] * x[r * 65 + c];
        dot += x[r * 65 + c] * grad[r * 65 + c];
      }
      const double norm = std::sqrt(squares), length = std::max(norm, kEps);
      norms.push_back(norm);
      for (int64_t c = 0; c < 65; ++c) {
        out.push_back(x[r * 65 + c] / length);
        const double along = norm > kEps ? x[r * 65 + c] * dot / squares : 0.0;
        slope.push_back((grad[r * 65 + c] - along) / length);
      }
    }
    for (Write write : kWrites) {
      CheckEverywhere({out, norms, Written(write, before, slope)}, ToleranceOf(dtype),
                      Describe(dtype, write, shape), [&](const Device& device) {
                        const Tensor from = ToTensor(device, x, Lay::kPadded);
                        const Tensor to = ToTensor(device, x);
                        const Tensor lengths = Tensor::Empty(device, WideOf(dtype), {700});
                        L2Normalize(from, kEps, to, lengths);
                        const Tensor sum = ToTensor(device, before, Lay::kPadded);
                        L2NormalizeBackward(ToTensor(device, grad), from, lengths, kEps, sum,
                                            write);
                        return Results{FromTensor(to), FromTensor(lengths), FromTensor(sum)};
                      });
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::test
