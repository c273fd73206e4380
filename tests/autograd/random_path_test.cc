// Dropout masks depend on the place of a call in the tree of modules, not on wrappers or splits.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/tape.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using Mask = std::vector<double>;
using Masks = std::vector<Mask>;

// What dropout makes of ones: two random ops in one call.
class Layer : public Module {
 public:
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Layer& self, const Variable& x) {
          for (int i = 0; i < 2; ++i)
            self.masks.push_back(Dropout(x, 0.5).value().ToHost<double>());
          return x;
        },
        x);
  }
  Masks masks;
};

class Stack : public Module {
 public:
  Stack() {
    RegisterModule("a", a);
    RegisterModule("b", b);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Stack& self, const Variable& x) { return self.a(self.b(self.a(x))); }, x);
  }
  // Of two calls of a, then one of b.
  Masks Take() {
    Masks all = std::exchange(a.masks, {});
    for (Mask& mask : std::exchange(b.masks, {})) all.push_back(std::move(mask));
    return all;
  }
  Layer a;
  Layer b;
};

struct Passing final : Interceptor {
  void Around(const CallContext& call) override { call.Proceed(); }
};

class RandomPathTest : public ::testing::Test {
 protected:
  Variable Ones(int64_t rows) {
    return TensorOf<double>(device_, std::vector<double>(static_cast<size_t>(rows * 32), 1.0),
                            {rows, 32});
  }
  Masks Run(Stack& model, RecordingOptions options, int calls = 1) {
    const int64_t rows = static_cast<int64_t>(options.samples.size());
    const Recording on(tape_, std::move(options));
    for (int i = 0; i < calls; ++i) model(Ones(rows));
    tape_.Reset();
    return model.Take();
  }
  static void ExpectAllDifferent(const Masks& masks) {
    for (size_t i = 0; i < masks.size(); ++i) {
      for (size_t k = 0; k < i; ++k) EXPECT_NE(masks[i], masks[k]) << k << " and " << i;
    }
  }

  Device device_ = Device::Cpu();
  Tape tape_;
};

TEST_F(RandomPathTest, LayersRepeatedCallsAndRandomOpsOfACallDiffer) {
  Stack model;
  const Masks masks = Run(model, {.seed = 1, .samples = {0}}, 2);
  EXPECT_EQ(masks.size(), 12u);
  ExpectAllDifferent(masks);
}

TEST_F(RandomPathTest, SameRecordingOptionsGiveTheSameMasks) {
  Stack model;
  const RecordingOptions options = {.seed = 1, .step = 3, .samples = {0, 1}};
  EXPECT_EQ(Run(model, options, 2), Run(model, options, 2));
}

TEST_F(RandomPathTest, SeedStepAndSampleChangeTheMasks) {
  Stack model;
  Masks all;
  for (const RecordingOptions& options : {RecordingOptions{.seed = 1, .step = 0, .samples = {0}},
                                          RecordingOptions{.seed = 2, .step = 0, .samples = {0}},
                                          RecordingOptions{.seed = 1, .step = 1, .samples = {0}},
                                          RecordingOptions{.seed = 1, .step = 0, .samples = {1}}}) {
    for (Mask& mask : Run(model, options)) all.push_back(std::move(mask));
  }
  ExpectAllDifferent(all);
}

TEST_F(RandomPathTest, WrappersChangeNothing) {
  Stack plain;
  Stack wrapped;
  wrapped.AddInterceptor(std::make_shared<Passing>());
  wrapped.a.AddInterceptor(std::make_shared<Passing>());
  wrapped.a.AddInterceptor(std::make_shared<Passing>());
  const RecordingOptions options = {.seed = 1, .samples = {4, 5}};
  EXPECT_EQ(Run(plain, options, 3), Run(wrapped, options, 3));
}

TEST_F(RandomPathTest, EmbeddingTheModelElsewhereChangesNothing) {
  struct Outer : Module {
    Outer() { RegisterModule("policy", model); }
    Stack model;
  } outer;
  Stack plain;
  const RecordingOptions options = {.seed = 1, .samples = {4}};
  EXPECT_EQ(Run(plain, options, 2), Run(outer.model, options, 2));
}

TEST_F(RandomPathTest, MasksOfASampleDoNotDependOnTheSplit) {
  Stack model;
  const Masks whole = Run(model, {.seed = 1, .samples = {10, 11, 12}});
  const Masks first = Run(model, {.seed = 1, .samples = {10}});
  const Masks rest = Run(model, {.seed = 1, .samples = {11, 12}});
  for (size_t i = 0; i < whole.size(); ++i) {
    Mask joined = first[i];
    joined.insert(joined.end(), rest[i].begin(), rest[i].end());
    EXPECT_EQ(joined, whole[i]);
  }
}

TEST_F(RandomPathTest, SetSamplesChangesTheRowsOfTheCallsThatFollow) {
  Stack model;
  const Masks apart = [&] {
    Recording on(tape_, {.seed = 1, .samples = {10}});
    model(Ones(1));
    on.SetSamples({20});
    model.Take();
    model(Ones(1));
    return model.Take();
  }();
  Masks second_call = Run(model, {.seed = 1, .samples = {20}}, 2);
  // Of 12 masks, those of the second outermost call.
  const Masks want = {second_call[4], second_call[5],  second_call[6],
                      second_call[7], second_call[10], second_call[11]};
  EXPECT_EQ(apart, want);
}

}  // namespace
}  // namespace sherd::testing
