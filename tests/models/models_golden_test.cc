// Values and gradients against `transformers`, on one rank and on two; see
// tests/golden/make_models.py.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/models/golden_folder.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::Tensor;
using sherd::Variable;

class Golden {
 public:
  explicit Golden(const std::string& kind)
      : file_(*sherd::SafetensorsFile::Open(FolderOf(kind) + "/golden.safetensors")) {}

  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  const std::vector<int64_t>& Extents(const std::string& name) const {
    return file_.Find(name)->shape;
  }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const auto bytes = file_.Bytes(*file_.Find(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // Rows [begin, end) of a tensor.
  template <typename T>
  Tensor Rows(const std::string& name, int64_t begin, int64_t end,
              const sherd::Device& device) const {
    const std::vector<T> values = Values<T>(name);
    std::vector<int64_t> shape = Extents(name);
    const auto row = static_cast<int64_t>(values.size()) / shape[0];
    shape[0] = end - begin;
    const std::vector<T> part(values.begin() + begin * row, values.begin() + end * row);
    return Tensor::FromHost<T>(device, part, sherd::Shape(shape));
  }
  std::set<std::string> Gradients() const {
    std::set<std::string> names;
    for (const auto& entry : file_.entries()) {
      if (entry.name.starts_with("grad.")) names.insert(entry.name.substr(5));
    }
    return names;
  }

 private:
  sherd::SafetensorsFile file_;
};

// |got - want| <= 1e-5 |want|.
template <typename T>
void ExpectClose(const std::vector<T>& got, const std::vector<float>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << what;
}

// The gradient of a parameter, whole. COLLECTIVE.
std::vector<double> GradientOf(const sherd::Parameter& parameter, sherd::ProcessGroup& group) {
  std::vector<double> whole(static_cast<size_t>(parameter.numel()), 0.0);
  const Tensor grad = parameter.local_grad();
  if (grad.defined()) {
    const std::vector<float> piece = grad.ToHost<float>();
    std::copy(piece.begin(), piece.end(), whole.begin() + parameter.local_offset());
  }
  group.AllReduce(whole.data(), parameter.numel(), DType::kF64);
  return whole;
}

// What transformers has for a parameter here: its parts one after another.
std::vector<float> WantedGradient(const NamedWeight& weight, const TextModel& model,
                                  const Golden& golden, std::set<std::string>& left) {
  std::vector<float> whole;
  for (const WeightPart& part : weight.parts) {
    std::string name = part.name;
    if (!golden.Has("grad." + name)) name = name.substr(model.base_prefix().size());
    EXPECT_EQ(left.erase(name), 1u) << name;
    const std::vector<float> values = golden.Values<float>("grad." + name);
    if (!part.transposed) {
      whole.insert(whole.end(), values.begin(), values.end());
      continue;
    }
    const size_t in = static_cast<size_t>(part.shape[0]), out = static_cast<size_t>(part.shape[1]);
    for (size_t o = 0; o < out; ++o) {
      for (size_t i = 0; i < in; ++i) whole.push_back(values[i * out + o]);
    }
  }
  return whole;
}

// Result and gradients of rows [begin, end).
void RunStep(TextModel& model, const Golden& golden, int64_t begin, int64_t end,
             const sherd::Device& device) {
  TextInput input{.tokens = golden.Rows<int64_t>("tokens", begin, end, device),
                  .mask = golden.Rows<int64_t>("mask", begin, end, device)};
  if (golden.Has("token_types")) {
    input.token_types = golden.Rows<int64_t>("token_types", begin, end, device);
  }
  const Tensor grad_out = golden.Rows<float>("grad_out", begin, end, device);
  sherd::Tape tape;
  Variable loss;
  {
    const sherd::Recording on(tape, {.seed = 1, .samples = {begin, begin + 1, begin + 2}});
    const Variable out = model(input);
    std::vector<float> got = out.value().ToHost<float>();
    std::vector<float> want = golden.Rows<float>("out", begin, end, device).ToHost<float>();
    const std::vector<float> weights = grad_out.ToHost<float>();
    ASSERT_EQ(got.size(), want.size());
    // What is computed for padding is nobody's.
    for (size_t i = 0; i < want.size(); ++i) {
      if (weights[i] == 0.0F) got[i] = want[i] = 0.0F;
    }
    ExpectClose(got, want, "out");
    loss = Sum(Mul(out, grad_out));
  }
  tape.Backward(loss);
}

class ModelsGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelsGolden, ValuesAndGradientsAreThoseOfTransformers) {
  for (int ranks : {1, 2}) {
    sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
      const Golden golden(GetParam());
      const auto model = MakeModel(ConfigOfKind(GetParam()), world.device());
      if (ranks == 2) {
        for (sherd::Module* layer : model->layers()) sherd::Checkpoint(*layer);
      }
      ShardAll(*model, world.mesh());
      const auto loaded = LoadWeights(FolderOf(GetParam()), *model, world.group());
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_TRUE(loaded->missing.empty());
      EXPECT_TRUE(loaded->unexpected.empty());
      // Two rows for rank 0, one for rank 1.
      const int64_t begin = world.rank() == 0 ? 0 : 2;
      RunStep(*model, golden, begin, ranks == 1 || world.rank() == 1 ? 3 : 2, world.device());
      std::set<std::string> left = golden.Gradients();
      for (const NamedWeight& weight : model->Weights()) {
        const std::string name = weight.parameter.name();
        ExpectClose(GradientOf(weight.parameter, world.group()),
                    WantedGradient(weight, *model, golden, left), "gradient of " + name);
      }
      EXPECT_TRUE(left.empty()) << *left.begin();
    });
  }
}

// Bitwise, and in the same files.
TEST_P(ModelsGolden, AnExportIsTheFolderThatWasRead) {
  for (int ranks : {1, 2}) {
    const std::string folder = EmptyFolder("ranks" + std::to_string(ranks));
    sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
      const ModelConfig config = ConfigOfKind(GetParam());
      const auto model = MakeModel(config, world.device());
      ShardAll(*model, world.mesh());
      ASSERT_TRUE(LoadWeights(FolderOf(GetParam()), *model, world.group()).ok());
      const int64_t most = GetParam() == "llama" ? 9000 : 5'000'000'000;
      const auto names =
          SavePretrained(folder, config, *model, world.group(), {.max_file_bytes = most});
      ASSERT_TRUE(names.ok()) << names.status();
      std::vector<std::string> sorted = *names;
      std::sort(sorted.begin(), sorted.end());
      EXPECT_EQ(sorted, FilesOf(FolderOf(GetParam())));
    });
    EXPECT_EQ(FilesOf(folder), FilesOf(FolderOf(GetParam())));
    EXPECT_EQ(TensorsOf(folder), TensorsOf(FolderOf(GetParam())));
    const auto want = sherd::ParseJson(ReadText(FolderOf(GetParam()) + "/config.json"));
    EXPECT_EQ(ReadText(folder + "/config.json"), sherd::WriteJson(*want) + "\n");
  }
}

std::string NameOfKind(const ::testing::TestParamInfo<std::string>& kind) { return kind.param; }
INSTANTIATE_TEST_SUITE_P(Kinds, ModelsGolden, ::testing::ValuesIn(Kinds()), NameOfKind);

// No folder of the golden ones is without a test.
TEST(ModelsGoldenFolders, EachIsTested) {
  std::set<std::string> found;
  for (const auto& folder : std::filesystem::directory_iterator(SHERD_GOLDEN_MODELS)) {
    found.insert(folder.path().filename().string());
  }
  EXPECT_EQ(found, std::set<std::string>(Kinds().begin(), Kinds().end()));
}

}  // namespace
}  // namespace llm
