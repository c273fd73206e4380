#include "sherd/shard/c_api.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/context.h"
#include "sherd/shard/step_stats.h"
#include "sherd/shard/unit.h"

struct sherd_store {
  std::shared_ptr<sherd::Store> store;
};

namespace {

using sherd::ThrowInvalidArgument;

// What a world and its units share; lives as long as the last of them.
struct Shared {
  explicit Shared(sherd::World joined)
      : world(std::move(joined)), context(sherd::ShardContext::Of(world.mesh())) {}
  ~Shared() { context->SetEvents(nullptr); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  sherd::World world;
  std::unique_ptr<sherd::EventLog> events;
  std::optional<sherd::StepMeter> meter;
  std::shared_ptr<sherd::ShardContext> context;
};

// The text of the thread's latest failure: what a C caller has instead of an exception.
thread_local std::string error_text;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

sherd_status Guard(absl::FunctionRef<void()> body) {
  const absl::Status status = sherd::StatusOf(body);
  if (status.ok()) return SHERD_OK;
  const auto text = sherd::StatusOf([&] { error_text = std::string(status.message()); });
  if (!text.ok()) error_text.clear();
  return static_cast<sherd_status>(status.code());
}

template <typename T>
T& Need(T* pointer, const char* what) {
  if (pointer == nullptr) ThrowInvalidArgument(absl::StrCat(what, " is NULL"));
  return *pointer;
}

// A caller's struct as this library knows it: what a shorter, older one lacks is 0.
template <typename T>
T Known(const T* given, const char* what) {
  T known{};
  if (given == nullptr) return known;
  if (given->size < sizeof(size_t) || given->size > sizeof(T)) {
    ThrowInvalidArgument(absl::StrCat("size of ", what, " is ", given->size,
                                      "; this library knows up to ", sizeof(T)));
  }
  std::memcpy(&known, given, given->size);
  return known;
}

sherd::DType DTypeFrom(sherd_dtype dtype) {
  static_assert(static_cast<int>(sherd::DType::kF32) == SHERD_F32);
  static_assert(static_cast<int>(sherd::DType::kF64) == SHERD_F64);
  static_assert(static_cast<int>(sherd::DType::kBF16) == SHERD_BF16);
  static_assert(static_cast<int>(sherd::DType::kF16) == SHERD_F16);
  static_assert(static_cast<int>(sherd::DType::kI32) == SHERD_I32);
  static_assert(static_cast<int>(sherd::DType::kI64) == SHERD_I64);
  if (dtype < SHERD_F32 || dtype > SHERD_I64) {
    ThrowInvalidArgument(absl::StrCat("there is no dtype ", dtype));
  }
  return static_cast<sherd::DType>(dtype);
}

sherd::WorldOptions OptionsFrom(const sherd_world_options* given) {
  const auto known = Known(given, "sherd_world_options");
  sherd::WorldOptions options;
  options.threads = known.threads;
  if (known.rendezvous_seconds > 0) {
    options.rendezvous_timeout = absl::Seconds(known.rendezvous_seconds);
  }
  if (known.collective_seconds > 0) {
    options.collective_timeout = absl::Seconds(known.collective_seconds);
  }
  if (known.address != nullptr) options.address = known.address;
  if (known.log != nullptr) {
    options.log = [log = known.log, context = known.log_context](const sherd::LogRecord& record) {
      log(context, static_cast<int32_t>(record.level), record.rank,
          std::string(record.text).c_str());
    };
  }
  return options;
}

sherd::UnitParameter ParameterFrom(const sherd_parameter& given) {
  sherd::UnitParameter parameter;
  parameter.name = &Need(given.name, "the name of a parameter");
  if (given.rank < 0 || given.rank > sherd::Shape::kMaxRank) {
    ThrowInvalidArgument(
        absl::StrCat("parameter '", parameter.name, "' has ", given.rank, " dimensions"));
  }
  const int64_t* extents = given.rank == 0 ? nullptr : &Need(given.shape, "a shape");
  parameter.shape =
      sherd::Shape(std::span<const int64_t>(extents, static_cast<size_t>(given.rank)));
  parameter.dtype = DTypeFrom(given.dtype);
  parameter.trainable = given.frozen == 0;
  parameter.granule = given.granule == 0 ? 1 : given.granule;
  return parameter;
}

sherd::UnitOptions OptionsFrom(const sherd_unit_options* given) {
  const auto known = Known(given, "sherd_unit_options");
  const sherd::Stage stages[] = {sherd::kZero3, sherd::kZero2, sherd::kZero1, sherd::kDataParallel};
  if (known.stage < SHERD_ZERO_3 || known.stage > SHERD_DATA_PARALLEL) {
    ThrowInvalidArgument(absl::StrCat("there is no stage ", known.stage));
  }
  sherd::UnitOptions options{.stage = stages[known.stage]};
  if (known.cast_gathered != 0) options.precision.parameters = DTypeFrom(known.gathered);
  if (known.cast_reduced != 0) options.precision.reduce = DTypeFrom(known.reduced);
  return options;
}

sherd_buffer BufferOf(const sherd::Tensor& tensor, int64_t offset) {
  return {tensor.raw(), tensor.numel(), offset, static_cast<sherd_dtype>(tensor.dtype())};
}

}  // namespace

struct sherd_world {
  std::shared_ptr<Shared> shared;
};

struct sherd_unit {
  std::shared_ptr<Shared> shared;  // first: goes last
  std::unique_ptr<sherd::Unit> unit;

  int At(int32_t i) const {
    if (i < 0 || i >= unit->parameters()) {
      ThrowInvalidArgument(absl::StrCat("unit '", unit->name(), "' has ", unit->parameters(),
                                        " parameters, no number ", i));
    }
    return i;
  }
};

namespace {

sherd::World& WorldOf(sherd_world* world) { return Need(world, "the world").shared->world; }
sherd::Unit& UnitOf(sherd_unit* unit) { return *Need(unit, "the unit").unit; }

sherd_status Join(absl::FunctionRef<absl::StatusOr<sherd::World>()> join, sherd_world** out) {
  return Guard([&] {
    Need(out, "the place for the world");
    absl::StatusOr<sherd::World> world = join();
    sherd::ThrowIfError(world.status());
    auto handle = std::make_unique<sherd_world>();
    handle->shared = std::make_shared<Shared>(*std::move(world));
    *out = handle.release();
  });
}

}  // namespace

int32_t sherd_c_api_version(void) { return SHERD_C_API_VERSION; }
const char* sherd_error_text(void) { return error_text.c_str(); }

sherd_status sherd_store_create(sherd_store** store) {
  return Guard([&] {
    Need(store, "the place for the store");
    *store = new sherd_store{sherd::MakeMemoryStore()};
  });
}

void sherd_store_free(sherd_store* store) { delete store; }

sherd_status sherd_world_join(const sherd_world_options* options, sherd_world** world) {
  return Join([&] { return sherd::World::FromEnvironment(OptionsFrom(options)); }, world);
}

sherd_status sherd_world_join_store(sherd_store* store, int32_t rank, int32_t size,
                                    const sherd_world_options* options, sherd_world** world) {
  return Join(
      [&] {
        return sherd::World::FromStore(store == nullptr ? nullptr : store->store, rank, size,
                                       OptionsFrom(options));
      },
      world);
}

sherd_status sherd_world_finish(sherd_world* world) {
  return Guard([&] { sherd::ThrowIfError(WorldOf(world).Finish()); });
}

void sherd_world_free(sherd_world* world) { delete world; }

int32_t sherd_world_rank(const sherd_world* world) {
  return world == nullptr ? -1 : world->shared->world.rank();
}

int32_t sherd_world_size(const sherd_world* world) {
  return world == nullptr ? -1 : world->shared->world.size();
}

sherd_status sherd_world_all_reduce(sherd_world* world, void* data, int64_t elems,
                                    sherd_dtype dtype) {
  return Guard([&] { WorldOf(world).group().AllReduce(data, elems, DTypeFrom(dtype)); });
}

sherd_status sherd_world_barrier(sherd_world* world) {
  return Guard([&] { WorldOf(world).group().Barrier(); });
}

void sherd_world_abort(sherd_world* world, const char* why) {
  if (world == nullptr) return;
  Guard([&] { world->shared->world.group().Abort(absl::AbortedError(why == nullptr ? "" : why)); });
}

sherd_status sherd_world_recover(sherd_world* world) {
  return Guard([&] { Need(world, "the world").shared->context->Recover(); });
}

sherd_status sherd_unit_create(sherd_world* world, const char* name,
                               const sherd_parameter* parameters, int32_t count,
                               const sherd_unit_options* options, sherd_unit** unit) {
  return Guard([&] {
    Need(unit, "the place for the unit");
    Need(name, "the name of the unit");
    if (count < 0) ThrowInvalidArgument(absl::StrCat(count, " parameters"));
    if (count > 0) Need(parameters, "the array of parameters");
    std::vector<sherd::UnitParameter> known;
    for (int32_t i = 0; i < count; ++i) known.push_back(ParameterFrom(parameters[i]));
    auto handle = std::make_unique<sherd_unit>();
    handle->shared = Need(world, "the world").shared;
    handle->unit = std::make_unique<sherd::Unit>(name, std::move(known), handle->shared->context,
                                                 OptionsFrom(options));
    for (int i = 0; i < count; ++i) {
      const sherd::Tensor& local = handle->unit->local(i);
      local.device().Zero(local.raw(), local.bytes());
    }
    *unit = handle.release();
  });
}

void sherd_unit_free(sherd_unit* unit) { delete unit; }

sherd_status sherd_unit_local(sherd_unit* unit, int32_t i, sherd_buffer* buffer) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    const int at = unit->At(i);
    Need(buffer, "the buffer") = BufferOf(engine.local(at), engine.local_offset(at));
  });
}

sherd_status sherd_unit_unshard(sherd_unit* unit, int64_t version) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    unit->shared->context->CheckUsable();
    engine.EnterForward(version);
  });
}

sherd_status sherd_unit_full(sherd_unit* unit, int32_t i, sherd_buffer* buffer) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    Need(buffer, "the buffer") = BufferOf(engine.full(unit->At(i)), 0);
  });
}

sherd_status sherd_unit_reshard(sherd_unit* unit) {
  return Guard([&] { UnitOf(unit).ExitForward(); });
}

sherd_status sherd_unit_begin_backward(sherd_unit* unit, int64_t version) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    unit->shared->context->CheckUsable();
    engine.BeginBackward(version);
  });
}

sherd_status sherd_unit_gradient(sherd_unit* unit, int32_t i, sherd_buffer* buffer, int32_t* add) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    Need(buffer, "the buffer");
    Need(add, "the place for add");
    const sherd::UnitGradient gradient = engine.TakeGradient(unit->At(i));
    *buffer = BufferOf(gradient.tensor, 0);
    *add = gradient.add ? 1 : 0;
  });
}

sherd_status sherd_unit_end_backward(sherd_unit* unit) {
  return Guard([&] { UnitOf(unit).EndBackward(); });
}

void sherd_unit_abandon_forward(sherd_unit* unit) {
  if (unit != nullptr && unit->unit->in_forward()) unit->unit->AbandonForward();
}

void sherd_unit_abandon_backward(sherd_unit* unit) {
  if (unit != nullptr && unit->unit->in_backward()) unit->unit->AbandonBackward();
}

sherd_status sherd_unit_set_sync(sherd_unit* unit, int32_t sync) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    if (sync != SHERD_SYNC_NONE && sync != SHERD_SYNC_FULL) {
      ThrowInvalidArgument(absl::StrCat("there is no sync ", sync));
    }
    engine.SetSync(sync == SHERD_SYNC_FULL ? sherd::GradientSync::kFull
                                           : sherd::GradientSync::kNone);
  });
}

sherd_status sherd_unit_finish_gradients(sherd_unit* unit) {
  return Guard([&] { UnitOf(unit).FinishGradients(); });
}

sherd_status sherd_unit_local_gradient(sherd_unit* unit, int32_t i, sherd_buffer* buffer) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    Need(buffer, "the buffer");
    const sherd::Tensor gradient = engine.LocalGradient(unit->At(i));
    *buffer = gradient.defined() ? BufferOf(gradient, engine.local_offset(i)) : sherd_buffer{};
  });
}

sherd_status sherd_unit_clear_gradients(sherd_unit* unit) {
  return Guard([&] {
    sherd::Unit& engine = UnitOf(unit);
    unit->shared->context->WaitReductions(0);
    for (int i = 0; i < engine.parameters(); ++i) engine.ClearGradient(i);
  });
}

sherd_status sherd_world_record_steps(sherd_world* world, int64_t events) {
  return Guard([&] {
    Shared& shared = *Need(world, "the world").shared;
    sherd::EventLogOptions options{.rank = shared.world.rank()};
    if (events != 0) options.capacity = events;
    auto log = std::make_unique<sherd::EventLog>(options);
    shared.context->SetEvents(log.get());
    shared.meter.emplace(*log, shared.world.device().allocator());
    shared.events = std::move(log);
  });
}

sherd_status sherd_world_step_stats(sherd_world* world, sherd_step_stats* stats) {
  return Guard([&] {
    Shared& shared = *Need(world, "the world").shared;
    Known(&Need(stats, "the place for the figures"), "sherd_step_stats");
    if (!shared.meter.has_value()) {
      sherd::ThrowFailedPrecondition("steps are not recorded; see sherd_world_record_steps");
    }
    shared.context->WaitReductions(0);
    const sherd::StepStats taken = shared.meter->Take();
    sherd_step_stats known{};
    known.size = stats->size;
    known.wall_ns = taken.wall_ns;
    known.gathers = taken[sherd::EventOp::kAllGather].count;
    known.gathered_bytes = taken[sherd::EventOp::kAllGather].bytes;
    known.reductions = taken[sherd::EventOp::kReduceScatter].count;
    known.reduced_bytes = taken[sherd::EventOp::kReduceScatter].bytes;
    known.exposed_gather_ns = taken.exposed_gather_ns;
    known.exposed_other_ns = taken.exposed_other_ns;
    known.current_bytes = taken.memory.total.current_bytes;
    known.peak_bytes = taken.memory.total.peak_bytes;
    known.complete = taken.complete ? 1 : 0;
    std::memcpy(stats, &known, stats->size);
  });
}
