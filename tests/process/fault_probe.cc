// A rank of a sharded training that fails on demand: what the fault tests start under a launcher.
//
//   fault_probe FOLDER [name=value ...]
//
//   phase=    rendezvous, gather, reduce, step or shutdown; none: nothing fails
//   fault=    kill (SIGKILL), stop (SIGSTOP), exit (ends with 0) or throw
//   rank=     who fails
//   call=     at which of its gathers, reductions or steps, from 1
//   attempts= in how many attempts of the launcher (1)
//   deadline= seconds for a collective (3)
//   meet=     seconds for the meeting (60)
//   steps=    of training (4)
//   regroup=  with how many ranks to go on after a failure, in the same process (0: not at all)
//   linger=   seconds to wait after the last step (0)
//
// Writes FOLDER/rank<r>.<attempt>, see fault_report.h, and, after a failure,
// FOLDER/flight<r>.<attempt>. Ends with 0; 3 if another rank failed first; 4 if this one did.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/comm/failure_file.h"
#include "sherd/runtime/comm/forwarding_group.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/kernels/random.h"
#include "sherd/shard/context.h"
#include "sherd/shard/flight_recorder.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"
#include "tests/process/fault_report.h"

namespace {

using namespace sherd;
using testing::FaultReport;

volatile std::sig_atomic_t g_told_to_stop = 0;

constexpr int64_t kChannels = 4;

struct Options {
  std::string folder, phase = "none", fault;
  int rank = -1, call = 1, attempts = 1, deadline = 3, meet = 60, steps = 4, regroup = 0,
      linger = 0;
};

Options Parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, std::string*> texts = {{"phase", &options.phase},
                                                     {"fault", &options.fault}};
  const std::map<std::string, int*> numbers = {
      {"rank", &options.rank},         {"call", &options.call},    {"attempts", &options.attempts},
      {"deadline", &options.deadline}, {"meet", &options.meet},    {"steps", &options.steps},
      {"regroup", &options.regroup},   {"linger", &options.linger}};
  if (argc > 1) options.folder = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (equals != std::string::npos && texts.count(name) > 0) {
      *texts.at(name) = word.substr(equals + 1);
    } else if (equals != std::string::npos && numbers.count(name) > 0) {
      *numbers.at(name) = std::atoi(word.c_str() + equals + 1);
    } else {
      throw std::invalid_argument("unknown argument: " + word);
    }
  }
  return options;
}

// What goes wrong, once.
class Fault {
 public:
  Fault(const Options& options, const LaunchInfo& launch, FaultReport& report)
      : options_(options),
        here_(launch.rank == options.rank && launch.restart < options.attempts),
        report_(report) {}

  // Fails if this is the place. Returns whether the caller has to leave as if all were done.
  bool Strike(const std::string& phase, const ErrorContext& context = {}) {
    if (!here_ || phase != options_.phase || ++calls_ != options_.call) return false;
    here_ = false;
    report_.Say("strikes: " + options_.fault + " in " + phase);
    if (options_.fault == "kill") raise(SIGKILL);
    if (options_.fault == "stop") raise(SIGSTOP);
    if (options_.fault == "throw") {
      if (context.op.empty()) throw std::runtime_error("the injected fault");
      ThrowError(Error(absl::StatusCode::kInternal, "the injected fault", context));
    }
    if (options_.fault != "exit") return false;
    if (phase == "rendezvous" || phase == "shutdown") return true;
    std::_Exit(0);
  }

 private:
  const Options& options_;
  bool here_;
  int calls_ = 0;
  FaultReport& report_;
};

// Strikes instead of a gather or a reduction. Gathers and reductions have a thread each, and a
// fault is in one of them.
class FaultGroup final : public ForwardingGroup {
 public:
  FaultGroup(std::shared_ptr<ProcessGroup> inner, Fault& fault)
      : ForwardingGroup(std::move(inner)), fault_(fault) {}

 protected:
  void Before(const CollectiveCall& call) override {
    if (call.op == CollectiveOp::kAllGather) fault_.Strike("gather", call.context);
    if (call.op == CollectiveOp::kReduceScatter) fault_.Strike("reduce", call.context);
  }
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string&) override {
    return std::make_unique<FaultGroup>(std::move(inner), fault_);
  }

 private:
  Fault& fault_;
};

class Layer : public Module {
 public:
  Layer() : linear(kChannels, kChannels, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("linear", linear);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Layer& self, const Variable& x) { return Add(x, Silu(self.linear(x))); }, x);
  }
  LinearLayer linear;
};

class Model : public Module {
 public:
  Model() : head(kChannels, 3, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("first", first);
    RegisterModule("second", second);
    RegisterModule("head", head);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Model& self, const Variable& x) { return self.head(self.second(self.first(x))); },
        x);
  }
  Layer first, second;
  LinearLayer head;
};

// The loss and the norm of the last step, and what all ranks' parameters are after it, bit by bit.
std::string ResultOf(const Model& model, const StepResult& step, ProcessGroup& group) {
  std::string text = absl::StrFormat("result %a %a", step.loss, step.grad_norm);
  for (const Parameter& parameter : model.parameters()) {
    std::vector<double> whole(static_cast<size_t>(parameter.numel()), 0.0);
    const std::vector<double> own = parameter.local().ToHost<double>();
    std::copy(own.begin(), own.end(), whole.begin() + parameter.local_offset());
    group.AllReduce(whole.data(), parameter.numel(), DType::kF64);
    for (double value : whole) absl::StrAppendFormat(&text, " %a", value);
  }
  return text;
}

// Some steps of two micro-batches each; every rank has inputs of its own.
void Train(World& world, const Options& options, Fault& fault, FaultReport& report) {
  Model model;
  FullyShard(model.first, world.mesh());
  FullyShard(model.second, world.mesh());
  FullyShard(model, world.mesh());
  Initialize(model, world.device(), /*seed=*/1);
  AdamW optimizer(model.parameters());
  Accumulation accumulation(model, {.micro_batches = 2});
  const Schedule schedule([&](int64_t) {
    fault.Strike("step");
    return 1e-2;
  });
  Tape tape;
  StepResult result;
  for (int step = 0; step < options.steps; ++step) {
    int64_t next = 0;
    const auto loader = [&]() -> std::optional<int64_t> {
      return next < 2 ? std::optional((step * 2 + next++) * world.size() + world.rank())
                      : std::nullopt;
    };
    auto window = accumulation.Next(loader, [](int64_t) { return int64_t{3}; });
    for (int64_t input : *window) {
      const Recording on(tape);
      const Tensor x = Tensor::Empty(world.device(), DType::kF64, {3, kChannels});
      kernels::FillNormal(x, /*key=*/7, input * 3 * kChannels, 0.0, 1.0);
      const Variable y = model(x);
      window->Backward({Sum(Mul(y, y)), 3});
    }
    result = window->Finish(optimizer, schedule);
  }
  report.Say(ResultOf(model, result, world.group()));
}

absl::Status StatusOf(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own == nullptr ? absl::InternalError(error.what()) : own->status();
}

// Trains in `world` until all is done or something fails; what fails ends the other ranks.
absl::Status RunIn(World& world, const Options& options, const LaunchInfo& launch, Fault& fault,
                   FaultReport& report) {
  const std::string flight =
      absl::StrCat(options.folder, "/flight", launch.rank, ".", launch.restart);
  EventLog log({.rank = world.rank()});
  report.Say("trains: " + testing::ListeningSockets());
  absl::Status why;
  try {
    ShardContext::Of(world.mesh())->SetEvents(&log, flight);
    Train(world, options, fault, report);
    std::this_thread::sleep_for(std::chrono::seconds(options.linger));
    if (fault.Strike("shutdown")) return absl::OkStatus();
    why = world.Finish();
  } catch (const std::exception& error) {
    why = StatusOf(error);
  }
  if (why.ok()) return why;
  world.group().Abort(why);
  // Units write theirs by themselves.
  if (access(flight.c_str(), F_OK) == 0) return why;
  const absl::Status written = WriteFlightRecord(flight, std::string(why.message()), log);
  if (!written.ok()) report.Say("no flight record: " + std::string(written.message()));
  return why;
}

absl::Status Run(const Options& options, const LaunchInfo& launch, FaultReport& report) {
  Fault fault(options, launch, report);
  if (fault.Strike("rendezvous")) return absl::OkStatus();
  absl::StatusOr<World> world = World::FromLaunch(
      launch,
      {.threads = 1,
       .rendezvous_timeout = absl::Seconds(options.meet),
       .should_stop = [] { return g_told_to_stop != 0; },
       .collective_timeout = absl::Seconds(options.deadline),
       .log = StderrLogSink(),
       .wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
         return std::make_shared<FaultGroup>(std::move(group), fault);
       }});
  if (!world.ok()) return world.status();
  absl::Status why = RunIn(*world, options, launch, fault, report);
  if (why.ok() || options.regroup == 0) return why;
  report.Say("fails: " + std::string(why.message()));
  absl::StatusOr<World> next =
      world->Regroup({.wait = absl::Seconds(20), .expected_ranks = options.regroup});
  if (!next.ok()) return next.status();
  report.Say(absl::StrCat("goes on as rank ", next->rank(), " of ", next->size(), " in generation ",
                          next->generation()));
  return RunIn(*next, options, launch, fault, report);
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  const absl::StatusOr<LaunchInfo> launch = ParseLaunch(ProcessEnvironment());
  if (!launch.ok()) throw std::runtime_error(std::string(launch.status().message()));
  FaultReport report(absl::StrCat(options.folder, "/rank", launch->rank, ".", launch->restart));
  report.Say(absl::StrCat("begins as process ", getpid()));
  absl::Status why;
  try {
    why = Run(options, *launch, report);
  } catch (const std::exception& error) {
    why = StatusOf(error);
  }
  int code = 0;
  if (!why.ok()) {
    code = FailedElsewhere(why) ? 3 : 4;
    report.Say("fails: " + std::string(why.message()));
    std::fprintf(stderr, "rank %d failed: %s\n", launch->rank, std::string(why.message()).c_str());
    const absl::Status written = WriteErrorFile(launch->error_file, why);
    if (!written.ok()) report.Say("no error file: " + std::string(written.message()));
  }
  report.Say(absl::StrFormat("late %.3f", report.late_seconds()));
  report.Say(absl::StrCat("ends with ", code));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  // A launcher's SIGTERM comes when another rank has failed: what this one has to say comes first.
  std::signal(SIGTERM, [](int) { g_told_to_stop = 1; });
  // Nobody is to be left when the launcher is killed.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fault_probe: %s\n", error.what());
    return 2;
  }
}
