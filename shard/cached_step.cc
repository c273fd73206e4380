#include "sherd/shard/cached_step.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/internal/sharded_module.h"

namespace sherd {
namespace {

using internal::CallFrame;
using internal::CurrentThread;
using internal::Recorder;
using internal::RegionNotes;
using internal::Walk;

constexpr char kOp[] = "cached_step";
constexpr size_t kMostResults = 8;

// The chunks of one Embed, from its forward to the end of its backward.
struct Chunks {
  Module& model;
  CachedStep::Encode encode;
  std::vector<std::vector<int64_t>> samples;  // of this rank's chunks
  CallFrame frame;                            // where each chunk begins
  std::optional<CallFrame> after;             // where the last one ended
  std::shared_ptr<ShardContext> context;      // null for a model that is not sharded
  std::vector<Unit*> units;
  CachedReduction reduction = CachedReduction::kEachChunk;
  std::vector<int64_t> counts;                 // chunks by rank
  int64_t rounds = 0;                          // the most of one rank
  std::vector<std::vector<TensorSpec>> specs;  // of the results of each own chunk
  std::vector<TensorSpec> results;             // of all own chunks together
  // What the chunks touched, each once.
  std::vector<Ref<internal::Ident>> outer;
  std::vector<internal::ParameterRead> reads;
  std::vector<ScopeObserver*> observers;

  int64_t own() const { return static_cast<int64_t>(samples.size()); }
  bool several_ranks() const { return context != nullptr && context->size() > 1; }
  bool all_have(int64_t chunk) const {
    return std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return chunk < n; });
  }
};

// The frame in which a chunk runs.
CallFrame FrameOf(const Chunks& chunks, int64_t chunk) {
  CallFrame frame = chunks.frame;
  const bool of_recording =
      std::all_of(chunks.samples.begin(), chunks.samples.end(),
                  [](const std::vector<int64_t>& samples) { return samples.empty(); });
  if (of_recording || frame.random == nullptr) return frame;
  auto random = std::make_shared<internal::RandomContext>(*frame.random);
  random->samples = chunks.samples[static_cast<size_t>(chunk)];
  frame.random = std::move(random);
  return frame;
}

// Runs `body` for a chunk that this rank has, and makes the calls of units of one that only others
// have.
template <typename Body>
void RunRound(const Chunks& chunks, int64_t chunk, const Body& body) {
  if (!chunks.several_ranks()) return body();
  std::vector<bool> has;
  for (int64_t n : chunks.counts) has.push_back(chunk < n);
  Announcer& announcer = chunks.context->announcer();
  announcer.Begin(has);
  if (chunk >= chunks.own()) return announcer.Follow();
  body();
  announcer.End();
}

// Runs `body`; what it throws ends the step on all ranks.
template <typename Body>
void FailTogether(const Chunks& chunks, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (chunks.context != nullptr) chunks.context->Fail(error.what());
    throw;
  }
}

// How far gradients of the units go in the backwards of chunks, and the way back.
class Syncs {
 public:
  explicit Syncs(const Chunks& chunks) : chunks_(chunks) {
    for (const Unit* unit : chunks_.units) before_.push_back(unit->sync());
  }
  ~Syncs() { Restore(); }
  Syncs(const Syncs&) = delete;
  Syncs& operator=(const Syncs&) = delete;

  void Restore() {
    for (size_t i = 0; i < before_.size(); ++i) chunks_.units[i]->SetSync(before_[i]);
  }
  // Of the chunk whose backward is next. Chunk 0 is the last.
  void Set(int64_t chunk) {
    for (size_t i = 0; i < before_.size(); ++i) {
      Unit& unit = *chunks_.units[i];
      GradientSync sync = before_[i];
      if (chunks_.reduction == CachedReduction::kOncePerStep) {
        if (chunk > 0 || !unit.awaits_whole()) sync = GradientSync::kNone;
      } else if (chunk > 0 && sync == GradientSync::kFull) {
        sync = GradientSync::kCutOnly;
      }
      unit.SetSync(sync);
    }
  }

 private:
  const Chunks& chunks_;
  std::vector<GradientSync> before_;
};

void CheckSame(const Chunks& chunks, int64_t chunk, const std::vector<Variable>& results) {
  const std::vector<TensorSpec>& specs = chunks.specs[static_cast<size_t>(chunk)];
  bool same = results.size() == specs.size();
  for (size_t k = 0; same && k < specs.size(); ++k) {
    same = results[k].defined() && results[k].dtype() == specs[k].dtype &&
           results[k].shape() == specs[k].shape;
  }
  if (same) return;
  ThrowFailedPrecondition(absl::StrCat("recompute differs in chunk ", chunk,
                                       ": it gave embeddings of other shapes in the first run"),
                          {.op = kOp});
}

// The node that Embed leaves: see [Note: a cached step].
class CachedStepOp final : public Op {
 public:
  explicit CachedStepOp(std::shared_ptr<Chunks> chunks) : chunks_(std::move(chunks)) {}
  std::string_view name() const override { return kOp; }
  OpKind kind() const override { return OpKind::kRegion; }
  void Plan(std::span<const Tensor>, OpPlan&) const override {
    SHERD_CHECK(false, "a cached step is not applied as an op");
  }
  void Forward(OpForward&) const override {
    SHERD_CHECK(false, "a cached step is not applied as an op");
  }
  void Backward(OpBackward& b) const override {
    FailTogether(*chunks_, [&] { Run(b); });
  }

 private:
  void Run(OpBackward& b) const {
    std::vector<Tensor> grads;
    for (size_t k = 0; k < chunks_->results.size(); ++k) {
      grads.push_back(b.TakeGrad(static_cast<int>(k)));
    }
    std::vector<int64_t> ends;
    for (const TensorSpec& spec : chunks_->results) ends.push_back(spec.shape[0]);
    Syncs syncs(*chunks_);
    for (int64_t chunk = chunks_->rounds; chunk-- > 0;) {
      syncs.Set(chunk);
      RunRound(*chunks_, chunk, [&] { RunChunk(b.walk(), chunk, grads, ends); });
    }
    syncs.Restore();
    // Here, in one order on all ranks: the ends of scopes would say another, and none on ranks
    // without chunks.
    if (chunks_->reduction == CachedReduction::kOncePerStep) {
      for (Unit* unit : chunks_->units) unit->ReduceHeld();
    }
    if (chunks_->own() > 0) return;
    // No scope of this rank's tape would say that the backward has ended.
    for (internal::ShardedModule* sharded : internal::CollectSharded(chunks_->model)) {
      if (sharded->parent() == nullptr) b.walk().table().NoteScope(sharded);
    }
  }

  // Forward again, and backward from the chunk's rows of `grads`, which end at `ends`.
  void RunChunk(Walk& walk, int64_t chunk, const std::vector<Tensor>& grads,
                std::vector<int64_t>& ends) const {
    internal::TapeImpl tape(walk.tape().family);
    Recorder recorder;
    recorder.outer = &walk.level();
    recorder.tape = &tape;
    recorder.home = tape.home;
    recorder.first_birth = tape.family->births;
    recorder.recompute = true;
    std::vector<Variable> results;
    {
      const internal::RecorderGuard on(&recorder);
      const internal::FrameGuard frame(FrameOf(*chunks_, chunk));
      results = chunks_->encode(chunk);
    }
    CheckSame(*chunks_, chunk, results);
    std::vector<Ref<internal::Ident>> roots;
    std::vector<Tensor> seeds;
    for (size_t k = 0; k < results.size(); ++k) {
      const int64_t rows = results[k].dim(0);
      ends[k] -= rows;
      if (!results[k].requires_grad()) continue;
      roots.push_back(results[k].ident());
      seeds.push_back(grads[k].defined() ? grads[k].Slice(0, ends[k], ends[k] + rows)
                                         : Tensor::Zeros(results[k].value().device(),
                                                         results[k].dtype(), results[k].shape()));
    }
    results.clear();
    Walk(tape, walk.table(), recorder, /*retain=*/false).Run(roots, seeds);
  }

  std::shared_ptr<Chunks> chunks_;
};

// Adds what a chunk's first run touched to what is known.
void Merge(RegionNotes& notes, Chunks& chunks) {
  const auto add = [](auto& all, auto& found, const auto& same) {
    for (auto& item : found) {
      const bool known =
          std::any_of(all.begin(), all.end(), [&](auto& o) { return same(o, item); });
      if (!known) all.push_back(std::move(item));
    }
  };
  add(chunks.outer, notes.outer, [](auto& a, auto& b) { return a == b; });
  add(chunks.reads, notes.parameters, [](auto& a, auto& b) { return a.parameter == b.parameter; });
  add(chunks.observers, notes.observers, [](auto& a, auto& b) { return a == b; });
}

// A chunk's first run: nothing is recorded. Returns copies of its results, since those may be views
// of something larger.
std::vector<Tensor> FirstRun(Chunks& chunks, int64_t chunk, Recorder& outer) {
  RegionNotes notes({});
  Recorder region;
  region.outer = &outer;
  region.tape = outer.tape;
  region.notes = &notes;
  region.home = MakeRef<internal::Home>("a chunk of a cached step");
  region.first_birth = outer.tape->family->births;
  region.recompute = outer.recompute;
  std::vector<Variable> results;
  {
    const internal::RecorderGuard on(&region);
    const internal::FrameGuard frame(FrameOf(chunks, chunk));
    results = chunks.encode(chunk);
    chunks.after = *CurrentThread().frame;
  }
  Merge(notes, chunks);
  std::vector<Tensor> copies;
  std::vector<TensorSpec>& specs = chunks.specs.emplace_back();
  for (size_t k = 0; k < results.size(); ++k) {
    if (!results[k].defined() || !IsFloating(results[k].dtype()) ||
        results[k].shape().rank() != 2) {
      ThrowInvalidArgument(absl::StrCat("embedding ", k, " of chunk ", chunk,
                                        " is no float [rows, C]: ", results[k].value().ToString()),
                           {.op = kOp});
    }
    const Tensor& value = results[k].value();
    specs.push_back({value.dtype(), value.shape()});
    copies.push_back(Tensor::Empty(value.device(), value.dtype(), value.shape()));
    kernels::Copy(value, copies.back());
  }
  return copies;
}

// What the ranks' chunks give: of how many results the dtype and width; -1 where there is none. And
// how many outermost calls and random ops were counted when the last one ended.
struct Widths {
  std::array<int64_t, 1 + 2 * kMostResults> values;
  int64_t calls = 0, random_ops = 0;
};

// The outermost calls are counted together; inside a call of a module there is no such count.
int64_t OutermostCalls(const CallFrame& frame) {
  for (const auto& [module, times] : frame.calls) {
    if (module == nullptr) return times;
  }
  return 0;
}

// A rank without chunks counts on from where the others do: its later calls get their numbers.
CallFrame FrameBehind(CallFrame frame, const Widths& widths) {
  frame.random_ops = static_cast<uint32_t>(widths.random_ops);
  const auto times = static_cast<uint32_t>(widths.calls);
  for (auto& [module, count] : frame.calls) {
    if (module == nullptr) count = times;
  }
  if (times > 0 && frame.calls.empty()) frame.calls.emplace_back(nullptr, times);
  return frame;
}

Widths WidthsOf(const Chunks& chunks) {
  Widths widths;
  widths.values.fill(-1);
  if (chunks.specs.empty()) return widths;
  widths.calls = OutermostCalls(*chunks.after);
  widths.random_ops = chunks.after->random_ops;
  widths.values[0] = static_cast<int64_t>(chunks.specs[0].size());
  for (size_t k = 0; k < std::min(chunks.specs[0].size(), kMostResults); ++k) {
    widths.values[1 + 2 * k] = static_cast<int64_t>(chunks.specs[0][k].dtype);
    widths.values[2 + 2 * k] = chunks.specs[0][k].shape[1];
  }
  for (const std::vector<TensorSpec>& specs : chunks.specs) {
    bool same = specs.size() == chunks.specs[0].size();
    for (size_t k = 0; same && k < specs.size(); ++k) {
      same = specs[k].dtype == chunks.specs[0][k].dtype &&
             specs[k].shape[1] == chunks.specs[0][k].shape[1];
    }
    if (!same) widths.values[0] = -2;  // its own chunks differ
  }
  return widths;
}

// Agrees on the results, and says what those of this rank's chunks are together. COLLECTIVE.
void AgreeOnResults(Chunks& chunks, CallSite site) {
  const ErrorContext what{.op = kOp, .site = site};
  std::vector<Widths> all(chunks.several_ranks() ? static_cast<size_t>(chunks.context->size()) : 1);
  const Widths mine = WidthsOf(chunks);
  all[0] = mine;
  if (chunks.several_ranks()) {
    chunks.context->control().AllGather(&mine, all.data(), sizeof(Widths), what);
  }
  size_t first = all.size();
  for (size_t r = 0; r < all.size(); ++r) {
    const int64_t count = all[r].values[0];
    if (count == -1) continue;
    if (first == all.size()) first = r;
    if (count < 1 || count > static_cast<int64_t>(kMostResults) ||
        all[r].values != all[first].values) {
      ThrowInvalidArgument(
          absl::StrCat("rank ", r,
                       " has chunks that give other numbers of embeddings, widths or "
                       "dtypes than chunk 0 of rank ",
                       first, "; each gives 1 to ", kMostResults),
          what);
    }
  }
  if (!chunks.after.has_value()) chunks.after = FrameBehind(chunks.frame, all[first]);
  for (size_t k = 0; k < static_cast<size_t>(all[first].values[0]); ++k) {
    int64_t rows = 0;
    for (const std::vector<TensorSpec>& specs : chunks.specs) rows += specs[k].shape[0];
    chunks.results.push_back({static_cast<DType>(all[first].values[1 + 2 * k]),
                              Shape{rows, all[first].values[2 + 2 * k]}});
  }
}

// Checks where the call is made, and agrees on who has how many chunks. COLLECTIVE.
void Begin(Chunks& chunks, CallSite site) {
  const ErrorContext what{.op = kOp, .site = site};
  const Recorder* const outer = CurrentThread().recorder;
  const bool leading = chunks.context != nullptr && chunks.context->announcer().leading();
  const char* why = nullptr;
  if (outer == nullptr) {
    why = "no Recording is on for this thread";
  } else if (outer->notes != nullptr || outer->replay != nullptr || outer->recompute) {
    why = "called inside a checkpointed region, which would run the chunks a third time";
  } else if (leading) {
    why = "called in a micro-batch that only some ranks have: give all ranks the same number";
  }
  if (why != nullptr) {
    if (chunks.context != nullptr) chunks.context->Fail(why);
    ThrowFailedPrecondition(why, what);
  }
  chunks.counts = {chunks.own()};
  if (chunks.several_ranks()) {
    chunks.context->CheckUsable();
    chunks.counts = chunks.context->AgreeOn(chunks.own(), kOp);
  }
  chunks.rounds = *std::max_element(chunks.counts.begin(), chunks.counts.end());
  if (chunks.rounds == 0) ThrowInvalidArgument("no rank has a chunk", what);
  if (!chunks.all_have(chunks.rounds - 1)) {
    chunks.context->announcer().CheckUnits(chunks.units);
  }
}

// Puts the rows of the chunks' results `k` one after another.
Tensor Join(const Chunks& chunks, std::vector<std::vector<Tensor>>& parts, size_t k,
            const Device& device) {
  const TensorSpec& spec = chunks.results[k];
  Tensor all = Tensor::Empty(device, spec.dtype, spec.shape);
  int64_t begin = 0;
  for (std::vector<Tensor>& part : parts) {
    const int64_t rows = part[k].dim(0);
    if (rows > 0) kernels::Copy(part[k], all.Slice(0, begin, begin + rows));
    begin += rows;
    part[k] = Tensor();
  }
  return all;
}

// Records the node, and gives the results their identities.
std::vector<Variable> Record(std::shared_ptr<Chunks> chunks, std::vector<Tensor> values,
                             CallSite site) {
  Recorder& outer = *CurrentThread().recorder;
  const Chunks& c = *chunks;
  const bool ragged = !c.all_have(c.rounds - 1);
  const internal::NodeSizes sizes{
      .inputs = c.outer.size(), .outputs = values.size(), .reads = c.reads.size()};
  CachedStepOp op(std::move(chunks));
  internal::Node& node = outer.tape->AddNode(internal::ValueOf(op), sizes);
  node.device = values[0].device();
  node.module = CurrentThread().frame->module;
  node.site = site;
  // Ranks that have fewer chunks run it whatever their loss is, since the others do.
  node.always_live = ragged;
  std::copy(c.outer.begin(), c.outer.end(), node.inputs.begin());
  std::copy(c.reads.begin(), c.reads.end(), node.reads.begin());
  if (!c.observers.empty()) outer.tape->regions.push_back({&node, c.observers});
  std::vector<Variable> results;
  for (size_t k = 0; k < values.size(); ++k) {
    node.outputs[k] = outer.tape->NewIdent(outer.home);
    results.emplace_back(std::move(values[k]), node.outputs[k]);
  }
  return results;
}

}  // namespace

std::vector<Variable> CachedStep::Embed(std::vector<std::vector<int64_t>> samples, Encode encode,
                                        CallSite site) {
  std::shared_ptr<Chunks> chunks(
      new Chunks{.model = model_, .encode = std::move(encode), .samples = std::move(samples)});
  chunks->context = ContextOf(model_);
  chunks->units = UnitsOf(model_);
  chunks->reduction = options_.reduction;
  Begin(*chunks, site);
  internal::ThreadState& thread = CurrentThread();
  chunks->frame = *thread.frame;
  std::vector<std::vector<Tensor>> parts;
  FailTogether(*chunks, [&] {
    for (int64_t chunk = 0; chunk < chunks->rounds; ++chunk) {
      RunRound(*chunks, chunk,
               [&] { parts.push_back(FirstRun(*chunks, chunk, *thread.recorder)); });
    }
  });
  AgreeOnResults(*chunks, site);
  // What comes next counts on from there.
  thread.frame->calls = chunks->after->calls;
  thread.frame->random_ops = chunks->after->random_ops;
  const Device device =
      chunks->context != nullptr ? chunks->context->device() : parts[0][0].device();
  std::vector<Tensor> values;
  for (size_t k = 0; k < chunks->results.size(); ++k) {
    values.push_back(Join(*chunks, parts, k, device));
  }
  return Record(std::move(chunks), std::move(values), site);
}

}  // namespace sherd
