#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "sherd/shard/unit.h"

namespace sherd::testing {

// One parameter of f64 without a tape: element k is `base` + k, and a gradient of `factor` is
// factor (k + 1), so that every sum is known by hand.
class SmallUnit {
 public:
  SmallUnit(const std::string& name, int64_t elems, const Mesh& mesh, double base)
      : unit(name, {{.name = name, .shape = {elems}, .dtype = DType::kF64}},
             ShardContext::Of(mesh)),
        base_(base) {
    for (int64_t k = 0; k < unit.local(0).numel(); ++k) {
      unit.local(0).data<double>()[k] = base_ + static_cast<double>(unit.local_offset(0) + k);
    }
  }

  void Forward() {
    unit.EnterForward(1);
    for (int64_t k = 0; k < unit.full(0).numel(); ++k) {
      EXPECT_EQ(unit.full(0).data<double>()[k], base_ + static_cast<double>(k)) << unit.name();
    }
    unit.ExitForward();
  }

  void Backward(double factor) {
    unit.BeginBackward(1);
    const UnitGradient gradient = unit.TakeGradient(0);
    for (int64_t k = 0; k < gradient.tensor.numel(); ++k) {
      double* at = gradient.tensor.data<double>() + k;
      *at = (gradient.add ? *at : 0.0) + factor * static_cast<double>(k + 1);
    }
    unit.EndBackward();
  }

  // That the gradient is the sum of contributions with these factors.
  void Expect(double factors) {
    const Tensor gradient = unit.LocalGradient(0);
    ASSERT_TRUE(gradient.defined()) << unit.name();
    for (int64_t k = 0; k < gradient.numel(); ++k) {
      EXPECT_EQ(gradient.data<double>()[k],
                factors * static_cast<double>(unit.local_offset(0) + k + 1))
          << unit.name() << " element " << unit.local_offset(0) + k;
    }
  }

  Unit unit;

 private:
  const double base_;
};

}  // namespace sherd::testing
