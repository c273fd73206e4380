#include "sherd/autograd/internal/region.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"

namespace sherd::internal {
namespace {

constexpr int64_t kReadableInputs = 32;  // bits of a mask

// Tells the region that runs on this thread when the program reads a value itself.
class ReadWatcher final : public StorageOwner {
 public:
  std::string DescribeAbsent(const Storage&, int64_t) const override {
    return "a value was read after its memory was freed";
  }
  void OnAccess(const Storage& storage) const override {
    const ThreadState& thread = CurrentThread();
    if (thread.ops > 0 || thread.recorder == nullptr || thread.recorder->notes == nullptr) return;
    thread.recorder->notes->NoteHostRead(storage);
  }
};

const ReadWatcher kWatcher;

int64_t BytesOf(const TensorSpec& spec) { return spec.shape.numel() * SizeOf(spec.dtype); }

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(std::string(NameOf(spec.dtype)), " ", spec.shape.ToString());
}

}  // namespace

void RegionNotes::NoteInputs(std::span<const Variable* const> inputs, uint64_t first_birth) {
  for (const Variable* input : inputs) {
    if (!input->ident()) continue;
    Ident& ident = *input->ident();
    if (ident.birth > first_birth || !seen_.insert(&ident).second) continue;
    if (ident.is_parameter) {
      auto* state = static_cast<ParameterState*>(&ident);
      parameters.push_back({Ref<ParameterState>(state), state->version, state->requires_grad});
    } else if (ident.requires_grad) {
      outer.emplace_back(&ident);
    }
  }
}

int32_t RegionNotes::ProducerOf(const Tensor& tensor) const {
  auto it = written_by_.find(tensor.storage().get());
  return it == written_by_.end() ? -1 : it->second;
}

void RegionNotes::NoteOp(const Op& op, const OpPlan& plan, std::span<const Variable* const> inputs,
                         std::span<const Tensor> outputs) {
  const bool wants_grad = plan.wants_grad != 0;
  if (wants_grad) ++recorded;
  if (nested_ > 0) {
    // A part of the nested region, which reads what comes from before it.
    const auto region = static_cast<int32_t>(ops.size()) - 1;
    for (const Variable* input : inputs) {
      const int32_t producer = ProducerOf(input->value());
      if (producer != region) producers.push_back(producer);
    }
    ops.back().producers = static_cast<uint32_t>(producers.size()) - ops.back().first_producer;
    for (const Tensor& output : outputs) {
      if (!plan.view) written_by_[output.storage().get()] = region;
    }
    return;
  }
  const auto ordinal = static_cast<int32_t>(ops.size());
  OpNote& note = ops.emplace_back();
  note.name = op.name();
  note.kind = op.kind();
  note.wants_grad = wants_grad;
  note.is_view = plan.view;
  note.reads_outputs = wants_grad && plan.backward_reads_outputs != 0;
  note.reads_own = note.reads_outputs || (wants_grad && !plan.inner.empty());
  note.flops = plan.flops;
  note.reads_inputs = wants_grad ? plan.backward_reads_inputs : 0;
  note.first_producer = static_cast<uint32_t>(producers.size());
  note.producers = static_cast<uint32_t>(inputs.size());
  for (const Variable* input : inputs) {
    producers.push_back(ProducerOf(input->value()));
    note.moved_bytes += input->value().bytes();
  }
  for (const TensorSpec& s : plan.inner) note.inner_bytes += BytesOf(s);
  note.first_spec = static_cast<uint32_t>(specs.size());
  note.specs = static_cast<uint32_t>(outputs.size());
  for (const Tensor& output : outputs) {
    specs.push_back({output.dtype(), output.shape()});
    note.output_bytes += output.bytes();
    if (plan.view) continue;
    written_by_[output.storage().get()] = ordinal;
    output.storage()->Watch(kWatcher);
  }
  note.moved_bytes += note.output_bytes + note.inner_bytes;
}

bool RegionNotes::Keeps(const OpInfo& info) const {
  return nested_ == 0 && keep_rule && keep_rule(info);
}

void RegionNotes::Keep(KeptValues values) {
  if (nested_ > 0) {
    for (const Tensor& output : values.outputs) kept_bytes += output.bytes();
    for (const Tensor& inner : values.inner) kept_bytes += inner.bytes();
    nested_kept.push_back(std::move(values));
    return;
  }
  ops.back().kept = static_cast<int32_t>(kept.size());
  kept.push_back(std::move(values));
}

void RegionNotes::EnterNested() {
  if (nested_++ > 0) return;
  OpNote& note = ops.emplace_back();
  note.name = "checkpoint";
  note.kind = OpKind::kRegion;
  note.reads_own = true;  // it runs again as a whole
  note.first_producer = static_cast<uint32_t>(producers.size());
}

void RegionNotes::LeaveNested() { --nested_; }

void RegionNotes::NoteHostRead(const Storage& storage) {
  auto it = written_by_.find(&storage);
  if (it != written_by_.end()) ops[static_cast<size_t>(it->second)].host_read = true;
}

void RegionNotes::OpenScope(ScopeObserver& observer, bool is_always_live) {
  always_live |= is_always_live;
  auto* gathering = dynamic_cast<GatheringScope*>(&observer);
  const bool inside_itself =
      std::find(open_scopes_.begin(), open_scopes_.end(), &observer) != open_scopes_.end();
  if (gathering != nullptr && !inside_itself && gatherings++ == 0) first_gathering = gathering;
  open_scopes_.push_back(&observer);
  if (std::find(observers.begin(), observers.end(), &observer) == observers.end()) {
    observers.push_back(&observer);
  }
}

void RegionNotes::CloseScope() { open_scopes_.pop_back(); }

void DecideReplay(std::span<OpNote> ops, std::span<const int32_t> producers, bool early_stop) {
  for (OpNote& note : ops) note.needed = note.host_read;
  for (size_t k = ops.size(); k-- > 0;) {
    OpNote& note = ops[k];
    const bool wanted = note.needed || note.reads_own || !early_stop;
    note.replayed = note.kept >= 0 && wanted ? Replayed::kKept
                    : wanted || note.is_view ? Replayed::kComputed
                                             : Replayed::kSkipped;
    const bool computed = note.replayed == Replayed::kComputed && !note.is_view;
    for (uint32_t i = 0; i < note.producers; ++i) {
      const int32_t producer = producers[note.first_producer + i];
      const bool read = computed || i >= kReadableInputs || (note.reads_inputs >> i & 1u) != 0;
      if (producer >= 0 && read) ops[static_cast<size_t>(producer)].needed = true;
    }
  }
}

int64_t KeptBytes(const OpNote& note) {
  if (note.replayed != Replayed::kKept) return 0;
  return note.inner_bytes + (note.needed || note.reads_outputs ? note.output_bytes : 0);
}

void RegionNotes::Decide(bool early_stop) {
  DecideReplay(ops, producers, early_stop);
  for (const OpNote& note : ops) {
    if (note.kept < 0) continue;
    KeptValues& values = kept[static_cast<size_t>(note.kept)];
    if (note.replayed != Replayed::kKept) values = {};
    if (!note.needed && !note.reads_outputs) values.outputs.clear();
    kept_bytes += KeptBytes(note);
  }
  // What only tells who wrote what: no value may be taken for another that got its address.
  seen_.clear();
  written_by_.clear();
}

Tensor SkippedValues::Make(const std::shared_ptr<SkippedValues>& owner, const Device& device,
                           const TensorSpec& spec, std::string_view op) {
  Ref<Storage> storage = MakeRef<Storage>(device, spec.shape.numel() * SizeOf(spec.dtype),
                                          MemoryCategory::kActivation);
  storage->set_owner(std::shared_ptr<const StorageOwner>(owner));
  owner->made_.emplace_back(storage.get(), op);
  return Tensor::View(std::move(storage), 0, spec.dtype, spec.shape);
}

std::string SkippedValues::DescribeAbsent(const Storage& storage, int64_t) const {
  std::string_view op = "an op";
  for (const auto& [made, name] : made_) {
    if (made == &storage) op = name;
  }
  return absl::StrCat("the output of '", std::string(op), "' in ", region_,
                      " has no value in the recompute: nothing read it in the first run; "
                      "checkpoint with early_stop = false");
}

Replay::Replay(RegionNotes& notes, std::string region, bool retain)
    : notes_(notes),
      retain_(retain),
      skipped_(std::make_shared<SkippedValues>(region)),
      region_(std::move(region)) {}

void Replay::Differs(std::string_view how) const {
  ThrowFailedPrecondition(absl::StrCat("recompute differs in ", region_, ": ", std::string(how)));
}

const OpNote& Replay::Next(std::string_view name) {
  const auto ordinal = static_cast<size_t>(ordinal_);
  if (ordinal >= notes_.ops.size()) {
    Differs(absl::StrCat("the first run made ", notes_.ops.size(),
                         " ops, this one makes another, '", std::string(name), "'"));
  }
  const OpNote& note = notes_.ops[ordinal];
  if (note.name != name) {
    Differs(absl::StrCat("op ", ordinal_, " of the first run was '", std::string(note.name),
                         "', now it is '", std::string(name), "'"));
  }
  ++ordinal_;
  if (note.replayed == Replayed::kComputed && !note.is_view) {
    ++computed_;
    computed_flops_ += note.flops;
  }
  return note;
}

void Replay::CheckOutputs(const OpNote& note, std::span<const TensorSpec> outputs) const {
  const size_t both = std::min<size_t>(note.specs, outputs.size());
  for (size_t i = 0; i < both; ++i) {
    const TensorSpec& first = notes_.specs[note.first_spec + i];
    if (first.dtype == outputs[i].dtype && first.shape == outputs[i].shape) continue;
    Differs(absl::StrCat("op ", ordinal_ - 1, " made ", Describe(first), " in the first run, now ",
                         Describe(outputs[i])));
  }
  if (outputs.size() == note.specs) return;
  Differs(absl::StrCat("op ", ordinal_ - 1, " had ", note.specs, " outputs in the first run, now ",
                       outputs.size()));
}

KeptValues Replay::Take(const OpNote& note) {
  KeptValues& values = notes_.kept[static_cast<size_t>(note.kept)];
  return retain_ ? values : std::move(values);
}

KeptValues Replay::TakeNested(std::string_view name, std::span<const TensorSpec> outputs) {
  if (nested_ >= notes_.nested_kept.size()) {
    Differs(absl::StrCat("the first run made ", notes_.nested_kept.size(),
                         " collectives in regions inside, this one makes another, '",
                         std::string(name), "'"));
  }
  KeptValues& values = notes_.nested_kept[nested_++];
  bool same = values.outputs.size() == outputs.size();
  for (size_t i = 0; same && i < outputs.size(); ++i) {
    same = values.outputs[i].dtype() == outputs[i].dtype &&
           values.outputs[i].shape() == outputs[i].shape;
  }
  if (!same) {
    Differs(absl::StrCat("collective ", nested_ - 1, " of the regions inside, '", std::string(name),
                         "', had outputs of other shapes in the first run"));
  }
  return retain_ ? values : std::move(values);
}

}  // namespace sherd::internal
