#include "sherd/runtime/comm/world.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/base/version.h"
#include "sherd/runtime/comm/gloo_group.h"
#include "sherd/runtime/comm/internal/host_address.h"
#include "sherd/runtime/comm/internal/rendezvous.h"
#include "sherd/runtime/comm/internal/survivors.h"
#include "sherd/runtime/comm/internal/world_device.h"
#include "sherd/runtime/comm/local_group.h"

namespace sherd {
namespace {

// `hosts` is 0 where nobody counted them.
std::string DescribeJob(const LaunchInfo& launch, int hosts, const Device& device, int threads,
                        const std::string& driver) {
  std::string text = absl::StrCat(DescribeBuild(), "; rank ", launch.rank, " of ", launch.size);
  if (hosts > 0) absl::StrAppend(&text, " on ", hosts, hosts == 1 ? " host" : " hosts");
  absl::StrAppend(&text, ", ", NameOf(launch.launcher), "; ", device.id().ToString());
  if (device.backend() != nullptr) {
    absl::StrAppend(&text, " (", device.backend()->Describe(), ")");
  }
  return absl::StrCat(text, " with ", threads, threads == 1 ? " thread" : " threads", ", driver ",
                      driver);
}

}  // namespace

struct World::State {
  LaunchInfo launch;
  WorldOptions options;               // for a next world
  std::shared_ptr<Store> base_store;  // of all generations
  int last_tried = 0;                 // the latest generation that this rank has tried to join
  Device device;
  LogSink log;
  std::string description;
  std::shared_ptr<Store> store;
  std::shared_ptr<ProcessGroup> group;
  Mesh mesh;  // one for all callers: its copies share what the shard layer keeps in its slot
  std::map<int, Mesh> meshes;  // of two axes, by shard_size
  bool finished = false;
  int exceptions = std::uncaught_exceptions();

  ~State() {
    if (finished || group == nullptr || std::uncaught_exceptions() <= exceptions) return;
    group->Abort(absl::UnknownError("it left because of an exception"));
  }
};

namespace {
void Warn(const std::vector<std::string>& warnings, int rank, const LogSink& log) {
  for (const std::string& warning : warnings) {
    if (log) log({.level = LogLevel::kWarning, .rank = rank, .text = warning});
  }
}

std::shared_ptr<Store> KeysOf(std::shared_ptr<Store> store, int generation) {
  if (generation == 0) return store;
  return MakePrefixStore(std::move(store), absl::StrCat("generation/", generation, "/"));
}

}  // namespace

World::World(std::shared_ptr<State> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

int World::rank() const { return state_->launch.rank; }
int World::size() const { return state_->launch.size; }
int World::local_rank() const { return state_->launch.local_rank; }
int World::local_size() const { return state_->launch.local_size; }
const Device& World::device() const { return state_->device; }
ProcessGroup& World::group() const { return *state_->group; }
Store& World::store() const { return *state_->store; }
int World::generation() const { return state_->options.generation; }
const LogSink& World::log() const { return state_->log; }
std::string Describe(const World& world) { return world.state_->description; }

Mesh World::mesh() const {
  if (!state_->mesh.defined()) {
    MeshGroups groups{.all = state_->group,
                      .shard = state_->group,
                      .replicate = internal::LocalGroupOf(state_->device),
                      .description = state_->description};
    state_->mesh = Mesh(std::move(groups), state_->store, state_->device, state_->log);
  }
  return state_->mesh;
}

Mesh World::MakeMesh(int shard_size) const {
  if (shard_size < 1 || size() % shard_size != 0) {
    ThrowInvalidArgument(absl::StrCat("shard_size is ", shard_size, ", which does not divide the ",
                                      size(), " ranks"),
                         {.op = "make_mesh"});
  }
  if (shard_size == size()) return mesh();
  Mesh& mesh = state_->meshes[shard_size];
  if (mesh.defined()) return mesh;
  std::vector<int> shard;
  std::vector<int> replicate;
  for (int r = 0; r < size(); ++r) {
    if (r / shard_size == rank() / shard_size) shard.push_back(r);
    if (r % shard_size == rank() % shard_size) replicate.push_back(r);
  }
  MeshGroups groups{.all = state_->group,
                    .shard = state_->group->Split("shard", shard),
                    .replicate = state_->group->Split("replicate", replicate),
                    .description = state_->description};
  mesh = Mesh(std::move(groups), state_->store, state_->device, state_->log);
  return mesh;
}

absl::StatusOr<World> World::FromEnvironment(WorldOptions options) {
  absl::StatusOr<LaunchInfo> launch = ParseLaunch(ProcessEnvironment());
  if (!launch.ok()) return launch.status();
  return FromLaunch(*launch, std::move(options));
}

absl::StatusOr<World> World::FromLaunch(const LaunchInfo& launch, WorldOptions options) {
  Warn(launch.warnings, launch.rank, options.log);
  absl::StatusOr<World> world = launch.size == 1 ? Join(MakeMemoryStore(), launch, 1, 1, options)
                                                 : Meet(launch, std::move(options));
  if (world.ok() && launch.rank == 0 && world->log()) {
    world->log()({.level = LogLevel::kInfo, .rank = 0, .text = Describe(*world)});
  }
  return world;
}

absl::StatusOr<World> World::Meet(const LaunchInfo& launch, WorldOptions options) {
  LaunchInfo known = launch;
  if (!options.address.empty()) known.own_address = options.address;
  const internal::Patience patience(options.rendezvous_timeout, options.should_stop);
  absl::StatusOr<internal::Meeting> meeting = internal::Meet(known, patience);
  if (!meeting.ok()) return meeting.status();
  Warn(meeting->warnings, launch.rank, options.log);
  known.local_rank = meeting->local_rank;
  known.local_size = meeting->local_size;
  options.address = meeting->address;
  options.rendezvous_timeout = std::max(patience.left(), absl::Seconds(1));
  absl::StatusOr<World> world =
      Join(meeting->store, known, meeting->hosts, meeting->cpu_sharers, std::move(options));
  if (world.ok()) world->state_->options.rendezvous_timeout = patience.limit;
  return world;
}

absl::StatusOr<World> World::FromStore(std::shared_ptr<Store> store, int rank, int size,
                                       WorldOptions options) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("there is no rank ", rank, " of ", size));
  }
  if (store == nullptr && size > 1) {
    return absl::InvalidArgumentError(absl::StrCat(size, " ranks need a store to find each other"));
  }
  if (store == nullptr) store = MakeMemoryStore();
  LaunchInfo launch;
  launch.rank = launch.local_rank = rank;
  launch.size = launch.local_size = size;
  return Join(store, launch, size == 1 ? 1 : 0, size, std::move(options));
}

absl::StatusOr<World> World::Join(const std::shared_ptr<Store>& store, const LaunchInfo& launch,
                                  int hosts, int cpu_sharers, WorldOptions options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat("threads is ", options.threads));
  }
  const int cpus = internal::UsableCpus();
  const int share = std::max(cpus / cpu_sharers, 1);
  if (options.generation < 0) {
    return absl::InvalidArgumentError(absl::StrCat("generation is ", options.generation));
  }
  auto state = std::make_shared<State>();
  state->launch = launch;
  state->options = options;
  state->base_store = store;
  state->last_tried = options.generation;
  const std::shared_ptr<Store> keys = KeysOf(store, options.generation);
  // Units of a mesh know their rank in it; a line says the rank in the world.
  if (options.log) {
    state->log = [sink = std::move(options.log), rank = launch.rank](LogRecord record) {
      record.rank = rank;
      sink(record);
    };
  }
  const int threads = options.threads == 0 ? share : options.threads;
  if (threads > share && state->log) {
    state->log({.level = LogLevel::kWarning,
                .rank = launch.rank,
                .text = absl::StrCat("this rank computes with ", threads, " threads, but may use ",
                                     cpus, " CPUs, which ", cpu_sharers,
                                     " ranks share; launchers "
                                     "that bind ranks to cores have an option not to")});
  }
  absl::StatusOr<Device> device = internal::OpenWorldDevice(launch, threads, options);
  // Ranks with a CUDA device say so to each other below.
  if (!device.ok() && (launch.size == 1 || options.device == DeviceKind::kCpu)) {
    return device.status();
  }
  state->store = MakePrefixStore(keys, "user/");
  if (launch.size == 1) {
    state->group = internal::LocalGroupOf(*device);
  } else {
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ConnectGloo(
        MakePrefixStore(keys, "gloo/"), launch.rank, launch.size,
        {.device = device.ok() && device->backend() == nullptr ? *device : Device(),
         .address = options.address.empty() ? internal::LoopbackAddress() : options.address,
         .connect_timeout = options.rendezvous_timeout,
         .should_stop = options.should_stop,
         .timeout = options.collective_timeout,
         .piece_bytes = options.piece_bytes});
    if (!group.ok()) return group.status();
    state->group = *std::move(group);
  }
  std::string driver = "none";
  if (options.device != DeviceKind::kCpu && launch.size > 1) {
    absl::StatusOr<internal::DeviceGroup> group =
        internal::GroupOfDevice(state->group, device, launch, options, state->log);
    if (!group.ok()) return group.status();
    state->group = std::move(group->group);
    driver = group->driver;
  }
  state->device = *std::move(device);
  state->description = DescribeJob(launch, hosts, state->device, threads, driver);
  if (options.wrap_group) state->group = options.wrap_group(std::move(state->group));
  return World(std::move(state));
}

absl::StatusOr<World> World::Regroup(const RegroupOptions& options) {
  state_->group->Abort(absl::CancelledError("it forms a new world"));
  WorldOptions next = state_->options;
  next.generation = ++state_->last_tried;
  absl::StatusOr<internal::Survivors> survivors = internal::AgreeOnSurvivors(
      *KeysOf(state_->base_store, next.generation), rank(), size(), options);
  if (!survivors.ok()) return survivors.status();
  LaunchInfo launch = state_->launch;
  launch.rank = survivors->rank;
  launch.size = static_cast<int>(survivors->ranks.size());
  launch.local_rank = survivors->local_rank;
  launch.local_size = survivors->local_size;
  return Join(state_->base_store, launch, survivors->hosts, launch.local_size, std::move(next));
}

absl::Status World::Finish() {
  if (state_->finished) return absl::OkStatus();
  state_->finished = true;
  try {
    state_->group->Barrier({.op = "finish"});
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

}  // namespace sherd
