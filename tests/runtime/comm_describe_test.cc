// What a world says of itself, and who says it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/version.h"
#include "sherd/runtime/comm/world.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

// Everything that is logged, by any rank.
class Lines {
 public:
  LogSink Sink() {
    return [this](const LogRecord& record) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all.push_back(absl::StrCat(record.rank, record.level == LogLevel::kInfo ? " info: " : " ? ",
                                 std::string(record.text)));
    };
  }
  std::vector<std::string> all;

 private:
  std::mutex mutex_;
};

LaunchInfo LaunchOf(int rank, int size, const std::string& directory) {
  LaunchInfo launch;
  launch.launcher = Launcher::kOpenMpi;
  launch.rank = launch.local_rank = rank;
  launch.size = launch.local_size = size;
  launch.job_id = "describe";
  launch.temp_directory = directory;
  return launch;
}

TEST(Describe, RankZeroSaysOnceWhatWasLaunched) {
  char directory[] = "/tmp/sherd_describe_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  Lines lines;
  std::vector<std::string> said(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      absl::StatusOr<World> world =
          World::FromLaunch(LaunchOf(rank, 2, directory), {.threads = 1,
                                                           .device_index = rank,
                                                           .rendezvous_timeout = absl::Seconds(30),
                                                           .log = lines.Sink()});
      ASSERT_TRUE(world.ok()) << world.status();
      said[static_cast<size_t>(rank)] = Describe(*world);
      EXPECT_TRUE(world->Finish().ok());
    });
  }
  for (std::thread& thread : ranks) thread.join();
  EXPECT_EQ(std::system(absl::StrCat("rm -rf '", directory, "'").c_str()), 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(said[static_cast<size_t>(rank)],
              absl::StrCat(DescribeBuild(), "; rank ", rank, " of 2 on 1 host, OpenMPI; cpu:", rank,
                           " with 1 thread, driver none"));
  }
  EXPECT_EQ(lines.all, std::vector<std::string>{"0 info: " + said[0]});
}

TEST(Describe, ASingleProcessNamesItsLauncherToo) {
  LaunchInfo launch;
  launch.launcher = Launcher::kTorchrun;
  absl::StatusOr<World> world = World::FromLaunch(launch, {.threads = 2});
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(Describe(*world), absl::StrCat(DescribeBuild(),
                                           "; rank 0 of 1 on 1 host, torchrun; cpu:0 with 2 "
                                           "threads, driver none"));
}

TEST(Describe, HostsOfAStoreAreNotGuessedAndMeshesCarryIt) {
  Lines lines;
  RunRanks(2,
           [](World& world) {
             const std::string said = Describe(world);
             EXPECT_EQ(said, absl::StrCat(DescribeBuild(), "; rank ", world.rank(),
                                          " of 2, no launcher; cpu:0 with 1 thread, driver none"));
             EXPECT_EQ(world.mesh().groups().description, said);
             EXPECT_EQ(world.MakeMesh(1).groups().description, said);
           },
           {.log = lines.Sink()});
  EXPECT_TRUE(lines.all.empty()) << "only a launch is logged: " << lines.all[0];
}

}  // namespace
}  // namespace sherd::testing
