// What launchers' variables mean, and how ranks of a launch meet.
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/tcp_store.h"
#include "sherd/runtime/comm/world.h"
#include "tests/runtime/fake_torch_store.h"

namespace sherd {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchInfo> Parse(const Variables& variables) {
  return ParseLaunch([&](const char* name) -> std::optional<std::string> {
    auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables With(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "job7"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"OMP_NUM_THREADS", "1"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_RANK", "1"},
                            {"PMIX_NAMESPACE", "123@0"}};
const Variables kMpich = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                          {"SLURM_JOB_ID", "99"},
                          {"SLURM_STEP_ID", "0"}};
// A batch script: no srun, so a single process.
const Variables kSbatch = {
    {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "99"}};

struct Good {
  const char* name;
  Variables variables;
  Launcher launcher;
  int rank, size, local_rank, local_size;
  bool local_known;
  const char* job_id;
};

TEST(ParseLaunch, ReadsEveryLauncher) {
  const Good cases[] = {
      {"nothing", {}, Launcher::kNone, 0, 1, 0, 1, true, ""},
      {"torchrun", kTorchrun, Launcher::kTorchrun, 3, 4, 1, 2, true, "job7"},
      {"RANK alone with WORLD_SIZE",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}},
       Launcher::kTorchrun,
       1,
       2,
       0,
       1,
       false,
       ""},
      {"OpenMPI", kOpenMpi, Launcher::kOpenMpi, 1, 2, 1, 2, true, "123@0"},
      {"MPICH", kMpich, Launcher::kMpich, 0, 3, 0, 3, true, ""},
      {"Slurm", kSlurm, Launcher::kSlurm, 5, 7, 1, 2, true, "99.0"},
      {"Slurm, the last node",
       With(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_NODEID", "3"}, {"SLURM_LOCALID", "0"}}),
       Launcher::kSlurm, 6, 7, 0, 1, true, "99.0"},
      {"Slurm with a strange node list", With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}}),
       Launcher::kSlurm, 5, 7, 0, 1, false, "99.0"},
      {"a batch script", kSbatch, Launcher::kNone, 0, 1, 0, 1, true, ""},
      {"mpirun inside a batch script", With(kSbatch, kOpenMpi), Launcher::kOpenMpi, 1, 2, 1, 2,
       true, "123@0"},
      {"torchrun agents started by mpirun", With(kTorchrun, kOpenMpi), Launcher::kTorchrun, 3, 4, 1,
       2, true, "job7"},
      {"empty values count as unset",
       {{"RANK", ""}, {"WORLD_SIZE", ""}},
       Launcher::kNone,
       0,
       1,
       0,
       1,
       true,
       ""},
  };
  for (const Good& c : cases) {
    const absl::StatusOr<LaunchInfo> info = Parse(c.variables);
    ASSERT_TRUE(info.ok()) << c.name << ": " << info.status();
    EXPECT_EQ(info->launcher, c.launcher) << c.name;
    EXPECT_EQ(info->rank, c.rank) << c.name;
    EXPECT_EQ(info->size, c.size) << c.name;
    EXPECT_EQ(info->local_rank, c.local_rank) << c.name;
    EXPECT_EQ(info->local_size, c.local_size) << c.name;
    EXPECT_EQ(info->local_known, c.local_known) << c.name;
    EXPECT_EQ(info->job_id, c.job_id) << c.name;
  }
  const LaunchInfo torch = *Parse(kTorchrun);
  EXPECT_EQ(torch.master_address, "node0");
  EXPECT_EQ(torch.master_port, 29500);
  EXPECT_EQ(torch.restart, 2);
  EXPECT_TRUE(torch.agent_store);
  EXPECT_FALSE(torch.one_host());
  EXPECT_TRUE(Parse(kOpenMpi)->one_host());
  EXPECT_FALSE(Parse(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))->agent_store);
  // A master that nobody asked for says nothing.
  EXPECT_EQ(Parse({{"MASTER_ADDR", "x"}})->master_address, "");
  const LaunchInfo own = *Parse(
      With(kOpenMpi, {{"SHERD_ADDRESS", "10.0.0.2"}, {"SHERD_SECRET", "s"}, {"TMPDIR", "/t"}}));
  EXPECT_EQ(own.own_address, "10.0.0.2");
  EXPECT_EQ(own.secret, "s");
  EXPECT_EQ(own.temp_directory, "/t");
  const LaunchInfo six =
      *Parse(With(kTorchrun, {{"MASTER_ADDR", "[fd00::1]"}, {"SHERD_ADDRESS", "[fd00::2]"}}));
  EXPECT_EQ(six.master_address, "fd00::1");
  EXPECT_EQ(six.own_address, "fd00::2");
}

TEST(ParseLaunch, WarnsWhereALauncherMayHaveMeantMoreRanks) {
  EXPECT_TRUE(Parse({})->warnings.empty());
  EXPECT_TRUE(Parse(kTorchrun)->warnings.empty());
  EXPECT_TRUE(Parse(With(kTorchrun, kOpenMpi))->warnings.empty());
  const LaunchInfo batch = *Parse(kSbatch);
  ASSERT_EQ(batch.warnings.size(), 1u);
  EXPECT_NE(batch.warnings[0].find("SLURM_NTASKS is 4"), std::string::npos) << batch.warnings[0];
  const LaunchInfo lone = *Parse(With(With(kTorchrun, kOpenMpi), {{"GROUP_WORLD_SIZE", "1"}}));
  ASSERT_EQ(lone.warnings.size(), 1u);
  EXPECT_NE(lone.warnings[0].find("OMPI_COMM_WORLD_SIZE is 2"), std::string::npos)
      << lone.warnings[0];
}

TEST(ParseLaunch, RefusesWhatContradictsItselfNamingVariablesAndValues) {
  const struct {
    Variables variables;
    std::vector<const char*> words;
  } cases[] = {
      {{{"RANK", "1"}}, {"RANK is '1'", "WORLD_SIZE is not set"}},
      {{{"WORLD_SIZE", "8"}}, {"WORLD_SIZE is '8'", "RANK is not set"}},
      {With(kTorchrun, {{"RANK", "4"}}), {"RANK is 4", "WORLD_SIZE is 4"}},
      {With(kTorchrun, {{"RANK", "-1"}}), {"RANK is '-1'"}},
      {With(kTorchrun, {{"WORLD_SIZE", "four"}}), {"WORLD_SIZE is 'four'"}},
      {With(kTorchrun, {{"WORLD_SIZE", "4x"}}), {"WORLD_SIZE is '4x'"}},
      {With(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE is '99999999999'"}},
      {With(kTorchrun, {{"LOCAL_RANK", "2"}}), {"LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"}},
      {With(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE is 5", "WORLD_SIZE is 4"}},
      {With(kTorchrun, {{"LOCAL_WORLD_SIZE", ""}}),
       {"LOCAL_RANK is '1'", "LOCAL_WORLD_SIZE is not"}},
      {With(kTorchrun, {{"MASTER_PORT", ""}}),
       {"MASTER_ADDR is 'node0'", "MASTER_PORT is not set"}},
      {With(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT is 70000"}},
      {With(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", ""}}), {"OMPI_COMM_WORLD_SIZE is not set"}},
      {With(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
       {"RANK and WORLD_SIZE are 0 and 2", "OMPI_COMM_WORLD_SIZE are 1 and 2"}},
      {With(kMpich, {{"PMI_RANK", "3"}}), {"PMI_RANK is 3", "PMI_SIZE is 3"}},
      {{{"PMIX_RANK", "1"}}, {"PMIX_RANK is 1", "WORLD_SIZE"}},
      {With(kSlurm, {{"SLURM_PROCID", "7"}}), {"SLURM_PROCID is 7", "SLURM_STEP_NUM_TASKS is 7"}},
      {With(kSlurm, {{"SLURM_LOCALID", "2"}}), {"SLURM_LOCALID is 2", "2(x3),1"}},
      {{{"SHERD_SECRET", std::string(201, 's')}}, {"SHERD_SECRET has 201 bytes", "200"}},
      // A launcher says 4, and this process would be alone.
      {With(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}),
       {"WORLD_SIZE are 0 and 1", "OMPI_COMM_WORLD_SIZE are 1 and 4"}},
      {With(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), {"SLURM_STEP_NUM_TASKS are 5 and 7"}},
      {{{"LOCAL_RANK", "3"}}, {"LOCAL_RANK is 3", "WORLD_SIZE"}},
      {{{"LOCAL_WORLD_SIZE", "4"}}, {"LOCAL_WORLD_SIZE is 4", "alone"}},
      {{{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}, {"OMPI_COMM_WORLD_LOCAL_SIZE is 4", "alone"}},
      {{{"MPI_LOCALNRANKS", "4"}}, {"MPI_LOCALNRANKS is 4", "alone"}},
      {{{"MV2_COMM_WORLD_SIZE", "4"}}, {"MV2_COMM_WORLD_SIZE is 4", "set RANK, WORLD_SIZE"}},
      {{{"FLUX_JOB_SIZE", "4"}}, {"FLUX_JOB_SIZE is 4", "set RANK, WORLD_SIZE"}},
      {{{"JSM_NAMESPACE_SIZE", "4"}}, {"JSM_NAMESPACE_SIZE is 4", "set RANK, WORLD_SIZE"}},
      {With(kSbatch, {{"SLURM_PROCID", "2"}}), {"SLURM_PROCID is 2", "srun"}},
  };
  for (const auto& c : cases) {
    const absl::Status status = Parse(c.variables).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.words[0];
    for (const char* word : c.words) {
      EXPECT_NE(status.message().find(word), std::string::npos)
          << "'" << word << "' is missing in: " << status;
    }
  }
}

// Ranks that are threads, but meet as processes would.
class Meeting : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/sherd_meeting_", getpid());
    ASSERT_EQ(mkdir(directory_.c_str(), 0700), 0);
    file_directory_ = absl::StrCat(directory_, "/sherd-", geteuid());
  }
  void TearDown() override {
    ASSERT_EQ(std::system(absl::StrCat("rm -rf '", directory_, "'").c_str()), 0);
  }

  LaunchInfo OnOneHost(int rank, int size) const {
    LaunchInfo launch;
    launch.launcher = Launcher::kOpenMpi;
    launch.rank = launch.local_rank = rank;
    launch.size = launch.local_size = size;
    launch.job_id = "job/1";
    launch.temp_directory = directory_;
    return launch;
  }

  // All ranks join and add up their ranks.
  void ExpectJoin(const std::vector<LaunchInfo>& launches) {
    std::vector<std::thread> ranks;
    for (const LaunchInfo& launch : launches) {
      ranks.emplace_back([&launch] {
        absl::StatusOr<World> world =
            World::FromLaunch(launch, {.threads = 1, .rendezvous_timeout = absl::Seconds(20)});
        ASSERT_TRUE(world.ok()) << world.status();
        int64_t sum = world->rank();
        world->group().AllReduce(&sum, 1, DType::kI64);
        EXPECT_EQ(sum, launch.size * (launch.size - 1) / 2);
        EXPECT_TRUE(world->Finish().ok());
      });
    }
    for (std::thread& thread : ranks) thread.join();
  }

  std::string directory_;
  std::string file_directory_;
};

TEST_F(Meeting, RanksOfOneHostMeetThroughAFile) {
  ExpectJoin({OnOneHost(0, 3), OnOneHost(1, 3), OnOneHost(2, 3)});
  struct stat info {};
  ASSERT_EQ(stat(file_directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_NE(stat((file_directory_ + "/job_1").c_str(), &info), 0) << "the file was left behind";
}

TEST_F(Meeting, StaleNoticesAreNotBelieved) {
  ASSERT_EQ(mkdir(file_directory_.c_str(), 0700), 0);
  // An earlier job that still runs, has all its ranks, and has the right secret, even.
  auto earlier = TcpStoreServer::Listen({.secret = "abc"});
  ASSERT_TRUE(earlier.ok());
  ASSERT_TRUE((*earlier)->local()->Set("size", "2").ok());
  ASSERT_TRUE((*earlier)->local()->Set("claim/1", "1").ok());
  for (const std::string& stale :
       {std::string("127.0.0.1 1 abc"), std::string("garbage"), std::string(""),
        absl::StrCat("127.0.0.1 ", (*earlier)->port(), " wrong"),
        absl::StrCat("127.0.0.1 ", (*earlier)->port(), " abc")}) {
    std::ofstream(file_directory_ + "/job_1") << stale;
    std::thread late([this] {
      absl::StatusOr<World> world = World::FromLaunch(
          OnOneHost(1, 2), {.threads = 1, .rendezvous_timeout = absl::Seconds(20)});
      ASSERT_TRUE(world.ok()) << world.status();
      EXPECT_TRUE(world->Finish().ok());
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    absl::StatusOr<World> world =
        World::FromLaunch(OnOneHost(0, 2), {.threads = 1, .rendezvous_timeout = absl::Seconds(20)});
    EXPECT_TRUE(world.ok()) << world.status();
    if (world.ok()) {
      EXPECT_TRUE(world->Finish().ok());
    }
    late.join();
  }
}

TEST_F(Meeting, ADirectoryOpenToOthersIsRefused) {
  ASSERT_EQ(mkdir(file_directory_.c_str(), 0700), 0);
  ASSERT_EQ(chmod(file_directory_.c_str(), 0770), 0);
  const absl::Status status = World::FromLaunch(OnOneHost(0, 2), {.threads = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
}

TEST_F(Meeting, TheFileWithTheSecretIsForThisUserAlone) {
  std::thread rank_zero([this] {
    EXPECT_FALSE(
        World::FromLaunch(OnOneHost(0, 2), {.threads = 1, .rendezvous_timeout = absl::Seconds(2)})
            .ok());
  });
  struct stat info {};
  for (int tries = 0; tries < 500 && stat((file_directory_ + "/job_1").c_str(), &info) != 0;
       ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  rank_zero.join();
}

TEST_F(Meeting, ALinkInPlaceOfTheFileIsRefusedAndNotFollowed) {
  ASSERT_EQ(mkdir(file_directory_.c_str(), 0700), 0);
  const std::string victim = directory_ + "/victim";
  std::ofstream(victim) << "127.0.0.1 1 abc";
  ASSERT_EQ(symlink(victim.c_str(), (file_directory_ + "/job_1").c_str()), 0);
  for (int rank : {0, 1}) {
    const absl::Status status =
        World::FromLaunch(OnOneHost(rank, 2),
                          {.threads = 1, .rendezvous_timeout = absl::Seconds(5)})
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_NE(status.message().find("/job_1 is not a file of this user"), std::string::npos)
        << status;
  }
  std::string text;
  std::getline(std::ifstream(victim), text);
  EXPECT_EQ(text, "127.0.0.1 1 abc");
}

TEST_F(Meeting, ALinkInPlaceOfTheDirectoryIsRefused) {
  const std::string elsewhere = directory_ + "/elsewhere";
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0700), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), file_directory_.c_str()), 0);
  const absl::Status status =
      World::FromLaunch(OnOneHost(0, 2), {.threads = 1, .rendezvous_timeout = absl::Seconds(5)})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_NE(status.message().find("not a link"), std::string::npos) << status;
}

TEST_F(Meeting, RankZeroHostsAtTheMasterAddress) {
  std::vector<LaunchInfo> launches;
  auto probe = TcpStoreServer::Listen({});
  ASSERT_TRUE(probe.ok());
  const int port = (*probe)->port();
  probe->reset();
  for (int rank = 0; rank < 3; ++rank) {
    LaunchInfo launch = OnOneHost(rank, 3);
    launch.launcher = Launcher::kTorchrun;
    launch.local_known = false;
    launch.local_size = 1;
    launch.master_address = "localhost";
    launch.master_port = port;
    launches.push_back(launch);
  }
  ExpectJoin(launches);
}

TEST_F(Meeting, TorchrunsAgentStoreLeadsToRankZero) {
  for (bool modern : {false, true}) {
    testing::FakeTorchStore agent(modern);
    // Attempts on one agent: each finds the keys of those before, and agents of several hosts may
    // not have counted it.
    for (int restart : {0, 0, 1, 2}) {
      std::vector<LaunchInfo> launches;
      for (int rank = 0; rank < 2; ++rank) {
        LaunchInfo launch = OnOneHost(rank, 2);
        launch.launcher = Launcher::kTorchrun;
        launch.master_address = "a-name-that-does-not-resolve";
        launch.master_port = agent.port();
        launch.agent_store = true;
        launch.restart = restart;
        launches.push_back(launch);
      }
      ExpectJoin(launches);
    }
  }
}

TEST_F(Meeting, RanksOfSeveralHostsNeedAMaster) {
  LaunchInfo launch = OnOneHost(0, 4);
  launch.local_size = 2;
  const absl::Status status = World::FromLaunch(launch, {.threads = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("set MASTER_ADDR and MASTER_PORT"), std::string::npos) << status;
}

TEST_F(Meeting, MissingRanksAreNamedAlsoWhenTheMissingOneIsRankZero) {
  auto text = [&](int rank) {
    return std::string(
        World::FromLaunch(OnOneHost(rank, 3),
                          {.threads = 1, .rendezvous_timeout = absl::Milliseconds(500)})
            .status()
            .message());
  };
  EXPECT_NE(text(0).find("ranks 1, 2 of 3 did not arrive within 500ms"), std::string::npos)
      << text(0);
  EXPECT_NE(text(2).find("rank 0 of 3 did not arrive within 500ms"), std::string::npos) << text(2);
}

TEST(WorldAlone, MoreThreadsThanTheCpusItMayUseIsAWarning) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const int cpus = CPU_COUNT(&set);
  std::mutex mutex;
  std::vector<std::string> lines;
  const LogSink log = [&](const LogRecord& record) {
    std::lock_guard<std::mutex> lock(mutex);
    if (record.level == LogLevel::kWarning) lines.emplace_back(record.text);
  };
  ASSERT_TRUE(World::FromLaunch(LaunchInfo{}, {.threads = cpus, .log = log}).ok());
  EXPECT_TRUE(lines.empty());
  ASSERT_TRUE(World::FromLaunch(LaunchInfo{}, {.threads = cpus + 1, .log = log}).ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(absl::StrCat("computes with ", cpus + 1, " threads, but may use ", cpus)),
            std::string::npos)
      << lines[0];
}

TEST(WorldAlone, WhatTheLaunchWarnsOfIsLogged) {
  std::string line;
  LaunchInfo launch;
  launch.warnings = {"a sentence"};
  const LogSink log = [&](const LogRecord& record) {
    if (record.level == LogLevel::kWarning) line = std::string(record.text);
  };
  ASSERT_TRUE(World::FromLaunch(launch, {.threads = 1, .log = log}).ok());
  EXPECT_EQ(line, "a sentence");
}

TEST(WorldAlone, ASingleProcessIsAWorldOfOne) {
  absl::StatusOr<World> world = World::FromLaunch(LaunchInfo{}, {.threads = 2});
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->local_size(), 1);
  int32_t value = 5;
  world->group().AllReduce(&value, 1, DType::kI32);
  EXPECT_EQ(value, 5);
  EXPECT_TRUE(world->store().Set("k", "v").ok());
  const Mesh mesh = world->mesh();
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(*mesh.store().TryGet("k"), "v");
  EXPECT_TRUE(world->Finish().ok());
  EXPECT_TRUE(world->Finish().ok());
}

}  // namespace
}  // namespace sherd
