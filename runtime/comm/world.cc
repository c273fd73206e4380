#include "sherd/runtime/comm/world.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/comm/arrival.h"
#include "sherd/runtime/comm/gloo_group.h"
#include "sherd/runtime/comm/local_group.h"

namespace sherd {
namespace {

// Which CPUs this process may use.
struct Affinity {
  int count = 1;
  std::string mask;  // as text, equal for equal sets
};

Affinity ReadAffinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {1, "?"};
  Affinity affinity{std::max(CPU_COUNT(&set), 1), ""};
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) absl::StrAppend(&affinity.mask, cpu, ",");
  }
  return affinity;
}

}  // namespace

struct World::State {
  LaunchInfo launch;
  Device device;
  LogSink log;
  std::shared_ptr<Store> store;
  std::shared_ptr<ProcessGroup> group;
  bool finished = false;
  int exceptions = std::uncaught_exceptions();

  ~State() {
    if (finished || group == nullptr || std::uncaught_exceptions() <= exceptions) return;
    group->Abort(absl::UnknownError("it left because of an exception"));
  }
};

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
const LogSink& World::log() const { return state_->log; }

Mesh World::mesh() const {
  return Mesh(state_->group, state_->store, state_->device, state_->log);
}

absl::StatusOr<World> World::FromStore(std::shared_ptr<Store> store, int rank, int size,
                                       WorldOptions options) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("there is no rank ", rank, " of ", size));
  }
  const Affinity affinity = ReadAffinity();
  int threads = options.threads;
  if (threads == 0) threads = std::max(affinity.count / size, 1);
  auto state = std::make_shared<State>();
  state->launch = {.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  state->log = options.log;
  state->device = Device::Cpu({.index = std::max(options.device_index, 0), .threads = threads});
  if (store == nullptr) store = MakeMemoryStore();
  state->store = MakePrefixStore(store, "user/");
  if (size == 1) {
    state->group = MakeLocalGroup();
  } else {
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group =
        ConnectGloo(MakePrefixStore(store, "gloo/"), rank, size,
                    {.device = state->device,
                     .address = options.address.empty() ? "127.0.0.1" : options.address,
                     .connect_timeout = options.rendezvous_timeout,
                     .timeout = options.collective_timeout});
    if (!group.ok()) return group.status();
    state->group = *std::move(group);
  }
  if (options.wrap_group) state->group = options.wrap_group(std::move(state->group));
  return World(std::move(state));
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
