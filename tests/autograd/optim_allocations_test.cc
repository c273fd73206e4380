// A warm optimizer step makes no heap allocation: counted by replacing operator new.

#include <gtest/gtest.h>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/sgd.h"
#include "tests/autograd/optim.h"
#include "tests/support/counting_new.h"

namespace sherd::testing {
namespace {

int64_t WarmAllocations(const Bare& model, Optimizer& optimizer) {
  for (const Parameter& parameter : model.parameters()) {
    SetGrad(parameter, NormalTensor(Device::Cpu(), DType::kF32, parameter.shape(), 3));
  }
  optimizer.Step({.learning_rate = 0.1});
  const int64_t before = HeapAllocations();
  for (int step = 0; step < 3; ++step) optimizer.Step({.learning_rate = 0.1});
  return HeapAllocations() - before;
}

TEST(OptimizerAllocations, AWarmStepMakesNone) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "under AddressSanitizer small objects come from the heap";
#endif
  std::vector<std::pair<std::string, Shape>> leaves;
  for (int i = 0; i < 40; ++i) {
    leaves.emplace_back("parameter" + std::to_string(i), i % 2 == 0 ? Shape({30, 50}) : Shape({7}));
  }
  const std::vector<ParameterGroup> groups = {
      {.name = "ninth", .matches = NameContains("9"), .lr_scale = 0.5}};
  const Bare model(leaves, DType::kF32);
  AdamW adamw(model.parameters(), {.groups = groups});
  Sgd sgd(model.parameters(), {.momentum = 0.9, .moment_dtype = DType::kBF16, .groups = groups});
  EXPECT_EQ(WarmAllocations(model, adamw), 0);
  EXPECT_EQ(WarmAllocations(model, sgd), 0);
}

}  // namespace
}  // namespace sherd::testing
