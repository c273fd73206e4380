// Optimizers against PyTorch in f64, four steps each; tests/golden/ops_optim.py made the values.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/sgd.h"
#include "tests/autograd/optim.h"
#include "tests/support/golden.h"
#include "tests/support/op_table_internal.h"

namespace sherd::testing {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Parameter>)>;

struct Row {
  std::string name;
  Make make;
};

ParameterGroup Group(const std::string& name, double lr_scale, std::optional<double> decay) {
  return {.name = name, .matches = NameContains(name), .lr_scale = lr_scale, .weight_decay = decay};
}

std::unique_ptr<Optimizer> MakeAdamW(std::vector<Parameter> all,
                                     std::vector<ParameterGroup> groups) {
  return std::make_unique<AdamW>(std::move(all), AdamWOptions{.beta1 = 0.8,
                                                              .beta2 = 0.95,
                                                              .eps = 1e-3,
                                                              .weight_decay = 0.3,
                                                              .groups = std::move(groups)});
}

Make MakeSgd(SgdOptions options) {
  return [options](std::vector<Parameter> all) {
    return std::make_unique<Sgd>(std::move(all), options);
  };
}

std::vector<Row> Rows() {
  return {
      {"adamw", [](auto all) { return MakeAdamW(all, {}); }},
      {"adamw with groups",
       [](auto all) {
         return MakeAdamW(all, {Group("bias", 1.0, 0.5), Group("embed", 0.25, 0.0)});
       }},
      {"sgd", MakeSgd({})},
      {"sgd with decay", MakeSgd({.weight_decay = 0.3})},
      {"sgd with momentum", MakeSgd({.momentum = 0.9, .weight_decay = 0.3})},
      {"sgd with dampening", MakeSgd({.momentum = 0.9, .dampening = 0.25})},
      {"sgd with nesterov",
       MakeSgd({.momentum = 0.9,
                .weight_decay = 0.3,
                .nesterov = true,
                .groups = {Group("bias", 1.0, 0.5), Group("embed", 0.25, std::nullopt)}})},
  };
}

std::vector<double> FourSteps(const Make& make) {
  const std::vector<Operand> operands = {Normal({3, 4}), Normal({5}), Normal({2, 2}),
                                         Normal({4, 21})};
  const Bare model({{"weight", {3, 4}}, {"bias", {5}}, {"embed", {2, 2}}}, DType::kF64);
  for (int i = 0; i < 3; ++i) {
    const Tensor value = op_table::MakeOperand(operands[static_cast<size_t>(i)], i, DType::kF64);
    kernels::Copy(value.Reshape({value.numel()}), model[static_cast<size_t>(i)].MutableLocal());
  }
  const Tensor gradients = op_table::MakeOperand(operands[3], 3, DType::kF64);
  const std::unique_ptr<Optimizer> optimizer = make(model.parameters());
  for (int64_t step = 0; step < 4; ++step) {
    int64_t at = 0;
    for (const Parameter& parameter : model.parameters()) {
      const Tensor row = gradients.Slice(0, step, step + 1).Slice(1, at, at + parameter.numel());
      SetGrad(parameter, row.Reshape(parameter.shape()));
      at += parameter.numel();
    }
    optimizer->Step({.learning_rate = 0.1});
  }
  std::vector<double> all;
  for (const Parameter& parameter : model.parameters()) {
    const std::vector<double> values = parameter.local().ToHost<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(OptimizersTest, EqualPyTorch) {
  const std::vector<GoldenEntry> golden = ReadGolden("optim");
  const std::vector<Row> rows = Rows();
  ASSERT_EQ(golden.size(), rows.size());
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto entry = std::find_if(golden.begin(), golden.end(),
                                    [&](const GoldenEntry& e) { return e.name == row.name; });
    ASSERT_NE(entry, golden.end());
    const std::vector<double> got = FourSteps(row.make);
    ASSERT_EQ(got.size(), entry->out.values.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], entry->out.values[i], 1e-13) << i;
  }
}

}  // namespace
}  // namespace sherd::testing
