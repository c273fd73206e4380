// Saved states: the bits that come back, on any number of ranks, and what is refused.

#include "sherd/shard/state.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "sherd/autograd/optim/sgd.h"
#include "sherd/runtime/base/version.h"
#include "sherd/runtime/io/safetensors.h"
#include "tests/shard/saved.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using Sharding = SavedRun::Sharding;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The same bits of everything.
void ExpectSame(const Whole& got, const Whole& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) EXPECT_EQ(got.at(name), values) << name;
}

// A state after three steps on `ranks`, and what training on to the fifth gives there.
struct Saved {
  std::string folder;
  Whole at_three, at_five;
};

Saved SaveAfterThreeSteps(int ranks, const std::string& root, Sharding sharding) {
  Saved saved;
  std::mutex mutex;
  RunRanks(ranks, [&](World& world) {
    SavedRun run(world, sharding);
    for (int64_t step = 0; step < 3; ++step) run.Step(step);
    StateSaver saver(root, world.group());
    TrainingState state = run.State(3);
    state.entries = {{"position", "epoch 1"}, {"\xC3\xBC \"", "\n"}};
    const absl::StatusOr<std::string> folder = saver.Save(state);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const Whole at_three = run.Everything();
    for (int64_t step = 3; step < 5; ++step) run.Step(step);
    const Whole at_five = run.Everything();
    const std::lock_guard lock(mutex);
    saved = {*folder, at_three, at_five};
  });
  return saved;
}

class ReshardTest : public ::testing::TestWithParam<int> {};

TEST_P(ReshardTest, EveryNumberOfRanksLoadsTheSameBitsAndTrainsOn) {
  const int before = GetParam();
  const Saved saved =
      SaveAfterThreeSteps(before, FreshRoot("w" + std::to_string(before)), Sharding::kEachBlock);
  for (const int after : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(before) + " ranks, then " + std::to_string(after));
    RunRanks(after, [&](World& world) {
      SavedRun run(world, Sharding::kEachBlock, /*seed=*/99);
      TrainingState state = run.State(0);
      const absl::StatusOr<LoadReport> report = LoadState(saved.folder, state, world.group());
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->missing.empty() && report->unexpected.empty());
      EXPECT_EQ(state.step, 3);
      EXPECT_EQ(state.entries, (std::map<std::string, std::string>{{"position", "epoch 1"},
                                                                   {"\xC3\xBC \"", "\n"}}));
      ExpectSame(run.Everything(), saved.at_three);
      for (int64_t step = 3; step < 5; ++step) run.Step(step);
      const Whole at_five = run.Everything();
      if (after == before) {
        ExpectSame(at_five, saved.at_five);
      } else {
        ExpectClose(at_five, saved.at_five, 1e-12);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(SavedBy, ReshardTest, ::testing::Values(1, 2, 3, 4));

TEST(StateTest, OtherUnitsStagesAndNoneLoadTheSameBits) {
  const std::vector<Sharding> all = {Sharding::kEachBlock, Sharding::kWhole, Sharding::kPlainData,
                                     Sharding::kNone};
  for (const Sharding before : all) {
    const int ranks = before == Sharding::kNone ? 1 : 2;
    const Saved saved =
        SaveAfterThreeSteps(ranks, FreshRoot(std::to_string(static_cast<int>(before))), before);
    for (const Sharding after : all) {
      SCOPED_TRACE(std::to_string(static_cast<int>(before)) + ", then " +
                   std::to_string(static_cast<int>(after)));
      RunRanks(after == Sharding::kNone ? 1 : 3, [&](World& world) {
        SavedRun run(world, after, /*seed=*/99);
        TrainingState state = run.State(0);
        const absl::StatusOr<LoadReport> report = LoadState(saved.folder, state, world.group());
        ASSERT_TRUE(report.ok()) << report.status();
        ExpectSame(run.Everything(), saved.at_three);
      });
    }
  }
}

TEST(StateTest, EachElementIsWrittenOnceAndRanksShareWhatAllHold) {
  const Saved saved = SaveAfterThreeSteps(2, FreshRoot("once"), Sharding::kPlainData);
  int64_t elements = 0;
  for (const int rank : {0, 1}) {
    const auto file =
        SafetensorsFile::Open(saved.folder + "/rank-0000" + std::to_string(rank) + ".safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE(file->entries().empty());
    for (const SafetensorsEntry& entry : file->entries()) elements += entry.numel();
  }
  // The table 7 x 5, three blocks of 5 + 2 x 35, the gain; three times: value and two moments. The
  // frozen parameter has a value alone.
  EXPECT_EQ(elements, 3 * (35 + 3 * 75 + 1) + 3);
}

TEST(StateTest, StateIsThatOfBeginAndWritingDoesNotStopTraining) {
  const std::string root = FreshRoot("async");
  RunRanks(2, [&](World& world) {
    SavedRun run(world);
    run.Step(0);
    StateSaver saver(root, world.group());
    EXPECT_TRUE(saver.done());
    ASSERT_TRUE(saver.Begin(run.State(1)).ok());
    EXPECT_EQ(saver.Begin(run.State(1)).code(), absl::StatusCode::kFailedPrecondition);
    const Whole then = run.Everything();
    run.Step(1);
    EXPECT_EQ(LatestState(root)->value_or("none"), "none");
    const absl::StatusOr<std::string> folder = saver.End();
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ(folder->substr(folder->rfind('/')), "/step-00000001");
    EXPECT_EQ(LatestState(root)->value_or("none"), *folder);
    EXPECT_EQ(saver.End().status().code(), absl::StatusCode::kFailedPrecondition);

    SavedRun other(world, Sharding::kEachBlock, 99);
    TrainingState state = other.State(0);
    ASSERT_TRUE(LoadState(*folder, state, world.group()).ok());
    ExpectSame(other.Everything(), then);
  });
}

TEST(StateTest, OldStatesGoAndTheSameStepIsReplaced) {
  const std::string root = FreshRoot("retention");
  RunRanks(2, [&](World& world) {
    SavedRun run(world);
    StateSaver saver(root, world.group(), {.keep = 2, .keep_every = 10});
    for (const int64_t step : {5, 10, 15, 20, 25, 25}) {
      TrainingState state = run.State(step);
      state.entries["n"] = std::to_string(step);
      ASSERT_TRUE(saver.Save(state).ok());
      run.Step(step);
    }
    if (world.rank() != 0) return;
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"step-00000010", "step-00000020", "step-00000025"}));
  });
}

TEST(StateTest, ASaveThatWasNotEndedIsNoStateAndGoesWithTheNext) {
  const std::string root = FreshRoot("partial");
  RunRanks(2, [&](World& world) {
    SavedRun run(world);
    {
      StateSaver saver(root, world.group());
      ASSERT_TRUE(saver.Begin(run.State(1)).ok());
    }
    EXPECT_EQ(LatestState(root)->value_or("none"), "none");
    world.group().Barrier();
    StateSaver saver(root, world.group());
    ASSERT_TRUE(saver.Save(run.State(2)).ok());
    if (world.rank() == 0) {
      EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 1);
    }
  });
  // A folder whose manifest is gone is being removed, and one without a number is nobody's.
  fs::create_directories(root + "/step-00000007");
  fs::create_directories(root + "/step-x");
  EXPECT_EQ(LatestState(root)->value_or("none"), root + "/step-00000002");
  EXPECT_EQ(LatestState(root + "/nowhere")->value_or("none"), "none");
}

// What loading into `run` says, which must be the same on all ranks and change nothing.
std::string LoadError(SavedRun& run, const std::string& folder, TrainingState state,
                      const LoadOptions& options = {}) {
  const Whole before = run.Everything();
  const absl::StatusOr<LoadReport> report = LoadState(folder, state, run.world.group(), options);
  ExpectSame(run.Everything(), before);
  EXPECT_EQ(state.step, 0);
  return report.ok() ? "no error" : std::string(report.status().message());
}

class OtherModel : public SavedModel {
 public:
  OtherModel() : extra_(RegisterParameter("extra", {2}, Initializer::Constant(1.0), DType::kF64)) {}

 private:
  Parameter extra_;
};

TEST(StateTest, EverythingThatDoesNotFitIsListedAtOnce) {
  const Saved saved = SaveAfterThreeSteps(2, FreshRoot("fit"), Sharding::kEachBlock);
  RunRanks(2, [&](World& world) {
    OtherModel other;
    FullyShard(other, world.mesh());
    Initialize(other, world.device(), 1);
    AdamW adamw(other.parameters());
    TrainingState state{.model = &other, .optimizer = &adamw};
    const absl::Status missing = LoadState(saved.folder, state, world.group()).status();
    EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(std::string(missing.message()),
                         "missing in the state: extra, m of extra, v of extra, step of extra"))
        << missing;
    const absl::StatusOr<LoadReport> loose =
        LoadState(saved.folder, state, world.group(), {.strict = false});
    ASSERT_TRUE(loose.ok()) << loose.status();
    EXPECT_EQ(loose->missing.size(), 4u);
    EXPECT_TRUE(loose->unexpected.empty());
    EXPECT_EQ(ValuesOf(other, &world.group()).at("table.weight"),
              saved.at_three.at("table.weight"));

    // Another optimizer: its momentum is missing, the moments are unexpected.
    SavedRun run(world);
    Sgd sgd(run.model->parameters(), {.momentum = 0.9});
    const std::string sgds =
        LoadError(run, saved.folder, {.model = run.model.get(), .optimizer = &sgd});
    EXPECT_TRUE(
        Contains(sgds, "missing in the state: momentum of gain, momentum of table.weight, "))
        << sgds;
    EXPECT_TRUE(Contains(sgds, "unexpected in the state: m of block0.down.weight, ")) << sgds;
    LossScaler scaler;
    TrainingState with_scaler = run.State(0);
    with_scaler.scaler = &scaler;
    EXPECT_TRUE(Contains(LoadError(run, saved.folder, with_scaler),
                         "missing in the state: the loss scaler"));

    // Without its optimizer a state is a model.
    TrainingState model{.model = run.model.get()};
    ASSERT_TRUE(LoadState(saved.folder, model, world.group()).ok());
    EXPECT_EQ(ValuesOf(*run.model, &world.group()).at("gain"), saved.at_three.at("gain"));

    // Another shape and another dtype are errors in any case.
    LinearLayer linear(5, 8, Initializer::Constant(0.0), DType::kF32);
    FullyShard(linear, world.mesh());
    Initialize(linear, world.device(), 1);
    class Named : public Module {
     public:
      explicit Named(Module& child) { RegisterModule("table", child); }
    } named(linear);
    TrainingState shaped{.model = &named};
    EXPECT_TRUE(Contains(
        std::string(
            LoadState(saved.folder, shaped, world.group(), {.strict = false}).status().message()),
        "different: table.weight is f32 [8, 5] here and f64 [7, 5] in the state"));
  });
}

TEST(StateTest, DamagedFilesAreNamedOnAllRanksAndNothingIsChanged) {
  const Saved saved = SaveAfterThreeSteps(2, FreshRoot("damage"), Sharding::kEachBlock);
  const std::string file = saved.folder + "/rank-00001.safetensors";
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto write = [](const std::string& name, const std::string& content) {
    std::ofstream(name, std::ios::binary | std::ios::trunc) << content;
  };
  const auto error_of = [&](int ranks) {
    std::string error;
    RunRanks(ranks, [&](World& world) {
      SavedRun run(world);
      const std::string mine = LoadError(run, saved.folder, run.State(0));
      if (world.rank() == 0) error = mine;
    });
    return error;
  };
  std::string flipped = bytes;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write(file, flipped);
  for (const int ranks : {1, 2, 3}) {
    const std::string error = error_of(ranks);
    EXPECT_TRUE(Contains(error, "rank-00001.safetensors is damaged: the checksum of its block 0"))
        << error;
  }
  write(file, bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(Contains(error_of(2), "rank-00001.safetensors")) << error_of(2);
  fs::remove(file);
  EXPECT_TRUE(Contains(error_of(2), "rank-00001.safetensors cannot be found")) << error_of(2);
  write(file, bytes);

  const std::string manifest = saved.folder + "/manifest.json";
  std::string json;
  {
    std::ifstream in(manifest, std::ios::binary);
    json.assign(std::istreambuf_iterator<char>(in), {});
  }
  EXPECT_TRUE(Contains(json, "\n\"written_by\":\"" + DescribeBuild() + "\","));
  write(manifest, json.substr(0, json.size() / 2));
  EXPECT_TRUE(Contains(error_of(2), "manifest " + manifest + ": column ")) << error_of(2);
  fs::remove(manifest);
  EXPECT_TRUE(Contains(error_of(2), "manifest.json cannot be found"));
}

TEST(StateTest, LoadsIntoAModelThatWasNeverInitialised) {
  const Saved saved = SaveAfterThreeSteps(2, FreshRoot("raw"), Sharding::kEachBlock);
  RunRanks(3, [&](World& world) {
    SavedModel model;
    for (auto& block : model.blocks) FullyShard(*block, world.mesh(), Sums());
    FullyShard(model, world.mesh(), Sums());
    TrainingState state{.model = &model};
    const absl::StatusOr<LoadReport> report = LoadState(saved.folder, state, world.group());
    ASSERT_TRUE(report.ok()) << report.status();
    for (const auto& [name, values] : ValuesOf(model, &world.group())) {
      EXPECT_EQ(values, saved.at_three.at(name)) << name;
    }
    // On every rank all of it has values now, also what the rank owns nothing of.
    EXPECT_EQ(model(InputOf(world.device(), 0)).shape(), Shape({3, 7}));
  });
}

TEST(StateTest, RanksThatWouldSaveDifferentThingsAreToldAll) {
  const std::string root = FreshRoot("alike");
  RunRanks(2, [&](World& world) {
    SavedRun run(world);
    StateSaver saver(root, world.group());
    TrainingState state = run.State(4);
    state.entries["seed"] = std::to_string(world.rank());
    const absl::Status begun = saver.Begin(state);
    EXPECT_EQ(begun.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(begun.message(),
              "ranks 0 and 1 have different states: 'entry seed = 0' and 'entry seed = 1'");
    state.entries.clear();
    state.step = world.rank() == 1 ? -1 : 4;
    EXPECT_EQ(saver.Begin(state).message(), "rank 1: a state of step -1");
    SavedModel empty;
    FullyShard(empty, world.mesh());
    EXPECT_EQ(saver.Begin({.model = &empty}).message(),
              "parameter 'gain' was not initialised or loaded yet");
    EXPECT_FALSE(fs::exists(root));
  });
}

TEST(StateTest, FolderThatCannotBeMadeIsSaidByAllRanks) {
  const std::string root = FreshRoot("blocked");
  fs::create_directories(fs::path(root).parent_path());
  std::ofstream{root} << "a file";
  RunRanks(2, [&](World& world) {
    SavedRun run(world);
    StateSaver saver(root, world.group());
    const absl::Status begun = saver.Begin(run.State(1));
    EXPECT_TRUE(Contains(std::string(begun.message()), "rank 0: folder " + root + " cannot be"))
        << begun;
    EXPECT_EQ(saver.End().status().code(), absl::StatusCode::kFailedPrecondition);
  });
}

TEST(StateTest, ScalerComesBack) {
  const std::string root = FreshRoot("scaler");
  RunRanks(2, [&](World& world) {
    SavedRun run(world);
    LossScaler scaler;
    scaler.Restore({.scale = 3.0517578125e-05, .good_steps = 17});
    TrainingState state = run.State(1);
    state.scaler = &scaler;
    StateSaver saver(root, world.group());
    const absl::StatusOr<std::string> folder = saver.Save(state);
    ASSERT_TRUE(folder.ok());
    LossScaler other;
    state.scaler = &other;
    ASSERT_TRUE(LoadState(*folder, state, world.group()).ok());
    EXPECT_EQ(other.state().scale, 3.0517578125e-05);
    EXPECT_EQ(other.state().good_steps, 17);
  });
}

}  // namespace
}  // namespace sherd::testing
