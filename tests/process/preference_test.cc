// The loss of the preference example against numbers by hand, and a step of it, two forwards of
// every sharded, checkpointed layer before one backward, against the plain model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "llm/model.h"
#include "preference/loss.h"
#include "preference/pairs.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"
#include "tests/support/ranks.h"

namespace preference {
namespace {

using sherd::Device;
using sherd::Tensor;
using sherd::Variable;

Variable Numbers(const Device& device, const std::vector<double>& values) {
  return Variable(Tensor::FromHost<double>(device, values, {static_cast<int64_t>(values.size())}));
}

TEST(PreferenceLossTest, IsTheFormulaByHand) {
  const Device device = Device::Cpu();
  const Preferences policy = {Numbers(device, {-1.0, -5.0}), Numbers(device, {-3.0, -2.0})};
  const Preferences reference = {Numbers(device, {-2.0, -4.0}), Numbers(device, {-2.5, -4.0})};
  // Margins 0.5 (2 - 0.5) and 0.5 (-3 - 0).
  const sherd::LossSum loss = DpoLoss(policy, reference, 0.5);
  EXPECT_EQ(loss.items, 2);
  EXPECT_NEAR(*loss.value.value().data<double>(),
              std::log1p(std::exp(-0.75)) + std::log1p(std::exp(1.5)), 1e-15);
  EXPECT_EQ(Margins(policy, reference, 0.5), (std::vector<double>{0.75, -1.5}));
  // A margin that would overflow in exp.
  const Preferences sure = {Numbers(device, {-1000.0}), Numbers(device, {0.0})};
  const Preferences none = {Numbers(device, {0.0}), Numbers(device, {0.0})};
  EXPECT_NEAR(*DpoLoss(sure, none, 1.0).value.value().data<double>(), 1000.0, 1e-12);
}

TEST(PreferenceLossTest, GradientsAreThoseOfPyTorch) {
  const Device device = Device::Cpu();
  const auto leaf = [&](const std::vector<double>& values) {
    return Variable::Leaf(Tensor::FromHost<double>(device, values, {2}));
  };
  const Preferences policy = {leaf({-1.0, -5.0}), leaf({-3.0, -2.0})};
  const Preferences reference = {Numbers(device, {-2.0, -4.0}), Numbers(device, {-2.5, -4.0})};
  sherd::Tape tape;
  {
    const sherd::Recording on(tape);
    tape.Backward(DpoLoss(policy, reference, 0.5).value);
  }
  // PyTorch 1.13, f64: -logsigmoid(0.5 ((chosen - rejected) - (reference margin))).sum().
  const std::vector<double> expected = {-0.16041065041230348, -0.4087872380968218};
  const std::vector<double> chosen = policy.chosen.grad().ToHost<double>();
  const std::vector<double> rejected = policy.rejected.grad().ToHost<double>();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(chosen[i], expected[i], 1e-15);
    EXPECT_NEAR(rejected[i], -expected[i], 1e-15);
  }
}

TEST(PreferenceLossTest, LabelOutsideTheClassesIsRefused) {
  const Device device = Device::Cpu();
  const Variable logits(
      Tensor::FromHost<double>(device, std::vector<double>{0, 1, 0, 2}, {1, 2, 2}));
  for (const int64_t label : {-1, 2}) {
    const Tensor labels = Tensor::FromHost<int64_t>(device, std::vector<int64_t>{0, label}, {1, 2});
    EXPECT_THROW(SequenceLogProbs(logits, labels), sherd::Error) << label;
  }
}

TEST(PreferenceLossTest, SequenceCountsLabelledTokensOnly) {
  const Device device = Device::Cpu();
  // Two rows of three tokens over two classes; logits (0, x) give log-probabilities by hand.
  const std::vector<double> logits = {0, 1, 0, 2, 0, 3, 0, -1, 0, 5, 0, 7};
  const std::vector<int64_t> labels = {kIgnored, 0, 1, 1, kIgnored, kIgnored};
  const Variable sums =
      SequenceLogProbs(Variable(Tensor::FromHost<double>(device, logits, {2, 3, 2})),
                       Tensor::FromHost<int64_t>(device, labels, {2, 3}));
  const std::vector<double> got = sums.value().ToHost<double>();
  EXPECT_NEAR(got[0], -std::log1p(std::exp(2.0)) - std::log1p(std::exp(-3.0)), 1e-14);
  EXPECT_NEAR(got[1], -std::log1p(std::exp(1.0)), 1e-14);
}

TEST(PreferencePairsTest, LabelsAreThoseOfTheAnswer) {
  const std::vector<Pair> pairs = {{"ab", "cd", "e"}, {"x", "yz", "zzzz"}};
  const std::vector<int64_t> which = {1, 0};
  const Batch batch = MakeBatch(pairs, which, Device::Cpu());
  EXPECT_EQ(batch.pairs(), 2);
  EXPECT_EQ(batch.chosen.tokens.shape(), sherd::Shape({2, 3}));
  EXPECT_EQ(batch.chosen.tokens.ToHost<int64_t>(),
            (std::vector<int64_t>{'x', 'y', 0, 'a', 'b', 'c'}));
  EXPECT_EQ(batch.chosen.labels.ToHost<int64_t>(),
            (std::vector<int64_t>{'y', 'z', kIgnored, kIgnored, 'c', 'd'}));
  EXPECT_EQ(batch.rejected.labels.ToHost<int64_t>(),
            (std::vector<int64_t>{'z', 'z', 'z', 'z', kIgnored, 'e', kIgnored, kIgnored}));
}

std::string ReadError(const std::string& lines) {
  const std::string path = testing::TempDir() + "/preference_pairs.jsonl";
  std::ofstream(path) << lines;
  const auto pairs = ReadPairs(path, 8);
  return pairs.ok() ? "no error" : std::string(pairs.status().message());
}

TEST(PreferencePairsTest, BadPairsAreNamed) {
  const std::string good = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
  EXPECT_EQ(ReadError(good), "no error");
  const auto second = [&](const std::string& line) { return ReadError(good + line + "\n"); };
  EXPECT_NE(second("{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"c\"}")
                .find("pairs.jsonl:2: the chosen answer is empty"),
            std::string::npos);
  EXPECT_NE(second("{\"prompt\": \"\", \"chosen\": \"b\", \"rejected\": \"c\"}")
                .find("2: the prompt is empty"),
            std::string::npos);
  EXPECT_NE(second("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}")
                .find("2: the rejected answer is empty"),
            std::string::npos);
  EXPECT_NE(second("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}")
                .find("pairs.jsonl:2: both answers are the same"),
            std::string::npos);
  EXPECT_NE(second("{\"prompt\": \"12345\", \"chosen\": \"b\", \"rejected\": \"12345\"}")
                .find("have 10 bytes, and the model takes 9"),
            std::string::npos);
  EXPECT_NE(second("{\"prompt\": \"a\", \"chosen\": \"b\"}").find("rejected"), std::string::npos);
}

// The gradients of one window over `pairs`, whole, and its loss.
std::map<std::string, std::vector<double>> StepOn(sherd::World& world, bool sharded,
                                                  const std::vector<Pair>& pairs) {
  const llm::LlamaConfig config = {.dim = 12,
                                   .layers = 2,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .ffn = 20,
                                   .positions = 16,
                                   .dtype = sherd::DType::kF64};
  llm::Llama policy(config, world.device());
  llm::Llama reference(config, world.device());
  for (llm::Llama* model : {&policy, &reference}) {
    for (llm::Block& block : model->blocks()) {
      if (sharded) FullyShard(sherd::Checkpoint(block), world.mesh());
    }
    if (sharded) FullyShard(*model, world.mesh());
    Initialize(*model, world.device(), model == &policy ? 1 : 2);
  }
  std::vector<int64_t> mine;
  for (int64_t i = world.rank(); i < static_cast<int64_t>(pairs.size()); i += world.size()) {
    mine.push_back(i);
  }
  size_t next = 0;
  const auto loader = [&]() -> std::optional<Batch> {
    if (next == mine.size()) return std::nullopt;
    return MakeBatch(pairs, std::span(&mine[next++], 1), world.device());
  };
  sherd::Accumulation accumulation(policy, {.micro_batches = 8});
  sherd::Tape tape;
  const auto both = [](llm::Llama& model, const Batch& batch) -> Preferences {
    return {SequenceLogProbs(model(batch.chosen.tokens), batch.chosen.labels),
            SequenceLogProbs(model(batch.rejected.tokens), batch.rejected.labels)};
  };
  auto window = accumulation.Next(loader, [](const Batch& batch) { return batch.pairs(); });
  for (const Batch& batch : *window) {
    const Preferences of_reference = both(reference, batch);
    const sherd::Recording on(tape);
    window->Backward(DpoLoss(both(policy, batch), of_reference, 0.3));
  }
  struct Keep : sherd::Optimizer {
    void Step(const sherd::StepOptions&) override {
      for (const sherd::Parameter& p : of) {
        std::vector<double>& whole = gradients[p.name()];
        whole.resize(static_cast<size_t>(p.numel()), 0.0);
        if (!p.local_grad().defined()) continue;
        const std::vector<double> piece = p.local_grad().ToHost<double>();
        std::copy(piece.begin(), piece.end(), whole.begin() + p.local_offset());
      }
    }
    const std::vector<sherd::Parameter>& parameters() const override { return of; }
    std::vector<sherd::Parameter> of;
    std::map<std::string, std::vector<double>> gradients;
  } keep;
  keep.of = policy.parameters();
  keep.gradients["loss"] = {window->Finish(keep, 1e-3).loss};
  for (auto& [name, values] : keep.gradients) {
    if (!sharded || name == "loss") continue;
    world.group().AllReduce(values.data(), static_cast<int64_t>(values.size()), sherd::DType::kF64);
  }
  return keep.gradients;
}

TEST(PreferenceStepTest, GradientsAreThoseOfThePlainModelOnAnyNumberOfRanks) {
  // Three pairs: with two ranks one has fewer, with four one has none.
  const std::vector<Pair> pairs = {
      {"one ", "two", "owt"}, {"a", "bcdef", "fe"}, {"to ", "be or not", "not be"}};
  std::map<std::string, std::vector<double>> want;
  sherd::testing::RunRanks(1, [&](sherd::World& world) { want = StepOn(world, false, pairs); });
  for (int ranks : {1, 2, 4}) {
    sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
      const auto got = StepOn(world, true, pairs);
      for (const auto& [name, values] : want) {
        double apart = 0.0, norm = 0.0;
        for (size_t i = 0; i < values.size(); ++i) {
          apart += std::pow(got.at(name)[i] - values[i], 2);
          norm += values[i] * values[i];
        }
        EXPECT_GT(norm, 0.0) << name;
        EXPECT_LE(std::sqrt(apart), 1e-12 * std::sqrt(norm)) << name << ", " << ranks << " ranks";
      }
    });
  }
}

}  // namespace
}  // namespace preference
