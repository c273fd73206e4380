// A warm optimizer step over units makes no heap allocation: counted by replacing operator new.

#include <gtest/gtest.h>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/sgd.h"
#include "tests/shard/model.h"
#include "tests/support/counting_new.h"

namespace sherd::testing {
namespace {

TEST(OptimizerAllocationsOnUnits, AWarmStepMakesNone) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "under AddressSanitizer small objects come from the heap";
#endif
  RunRanks(1, [](World& world) {
    ShardModel model;
    ShardAll(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    AdamW adamw(model.parameters());
    Sgd sgd(model.parameters(), {.momentum = 0.9});
    Tape tape;
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), 0), {0, 1, 2})));
    }
    for (Optimizer* optimizer : {static_cast<Optimizer*>(&adamw), static_cast<Optimizer*>(&sgd)}) {
      optimizer->Step({.learning_rate = 0.1});
      const int64_t before = HeapAllocations();
      for (int step = 0; step < 3; ++step) optimizer->Step({.learning_rate = 0.1});
      EXPECT_EQ(HeapAllocations() - before, 0);
    }
  });
}

}  // namespace
}  // namespace sherd::testing
