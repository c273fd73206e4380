#include "sherd/shard/unit.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

std::vector<LayoutEntry> EntriesOf(const std::vector<UnitParameter>& parameters) {
  std::vector<LayoutEntry> entries;
  for (const UnitParameter& p : parameters)
    entries.push_back({p.shape.numel(), p.dtype, p.trainable});
  return entries;
}

void ZeroBytes(const Ref<Storage>& storage, int64_t begin, int64_t end) {
  if (end > begin)
    std::memset(static_cast<char*>(storage->data()) + begin, 0, static_cast<size_t>(end - begin));
}

}  // namespace

Unit::Unit(std::string name, std::vector<UnitParameter> parameters,
           std::shared_ptr<ShardContext> context)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      context_(std::move(context)),
      layout_(EntriesOf(parameters_), context_->size()),
      written_(parameters_.size(), false),
      used_(parameters_.size(), false),
      holds_(parameters_.size(), false) {
  const Device& device = context_->device();
  for (const LayoutSegment& plan : layout_.segments()) {
    SegmentState& state = segments_.emplace_back();
    state.shard =
        Tensor::Empty(device, plan.dtype, {plan.chunk_elems}, MemoryCategory::kParameterShard);
    const int64_t bytes = plan.padded_elems(layout_.ranks()) * SizeOf(plan.dtype);
    state.full = context_->size() == 1
                     ? MakeRef<Storage>(state.shard.storage(), bytes)
                     : MakeRef<Storage>(device, bytes, MemoryCategory::kUnsharded);
    state.full->set_owner(this);
  }
  for (int i = 0; i < this->parameters(); ++i) {
    const SegmentState& state = segments_[At(layout_.segment_of(i))];
    const UnitParameter& parameter = parameters_[At(i)];
    const LayoutPiece piece = layout_.PieceOf(i, context_->rank());
    full_.push_back(
        Tensor::View(state.full, layout_.offset_of(i), parameter.dtype, parameter.shape));
    local_.push_back(
        Tensor::View(state.shard.storage(), piece.chunk_offset, parameter.dtype, {piece.elems}));
  }
  context_->Register(this);
}

Unit::~Unit() {
  // A reduction in flight reads buffers this unit owns a share of; errors were reported to those
  // who wait.
  try {
    context_->WaitReductions(0);
  } catch (const Error&) {
  }
  forward_open_ = backward_open_ = 0;
  Reshard();
  context_->Unregister(this);
  for (SegmentState& segment : segments_) segment.full->set_owner(nullptr);
}

void Unit::SetPrefetch(std::function<int64_t()> version_source, int depth) {
  version_source_ = std::move(version_source);
  prefetch_depth_ = depth;
}

bool Unit::Prefetch() {
  if (unsharded_ || !version_source_ || context_->size() == 1) return false;
  StartGather(version_source_());
  ahead_ = true;
  return true;
}

// Whoever uses the gather is told what it threw. After a failure the groups are aborted, so it
// ends.
void Unit::AwaitReaders() noexcept {
  try {
    gather_.Wait();
  } catch (const Error&) {
  }
}

void Unit::DropPrefetched() {
  if (ahead_) Reshard();
}

void Unit::Unshard(int64_t version) {
  // Under an open scope a copy stays what it is: whoever reads a parameter that changed since is
  // told.
  if (unsharded_ && open()) return;
  const bool current = unsharded_ && (gathered_version_ == version || context_->size() == 1);
  const bool ahead = std::exchange(ahead_, false);
  if (current && !ahead) {
    gathered_version_ = version;
    return;
  }
  if (!current) {
    if (unsharded_) AwaitGather();  // of older values, into the same memory
    StartGather(version);
  }
  context_->prefetcher().Gathered(this, prefetch_depth_);
  AwaitGather();
}

void Unit::StartGather(int64_t version) {
  gathered_version_ = version;
  unsharded_ = true;
  ++gathers_;
  try {
    for (SegmentState& segment : segments_) segment.full->Allocate();
  } catch (...) {
    Reshard();
    throw;
  }
  if (context_->size() == 1) return;
  struct Piece {
    const void* shard;
    void* full;
    int64_t bytes;
  };
  std::vector<Piece> pieces;
  for (const SegmentState& segment : segments_) {
    pieces.push_back({segment.shard.raw(), segment.full->data(), segment.shard.bytes()});
  }
  const ErrorContext what{.op = "all_gather", .module_path = absl::StrCat("unit '", name_, "'")};
  gather_ = context_->Gather(what, [pieces, what](ProcessGroup& group) {
    for (const Piece& p : pieces) group.AllGather(p.shard, p.full, p.bytes, what);
  });
}

void Unit::AwaitGather() {
  try {
    gather_.Wait();
  } catch (const Error& error) {
    context_->Fail(error.what());
    Reshard();
    throw;
  }
}

void Unit::EnterForward(int64_t version) {
  context_->ScopeOpens(this);
  context_->prefetcher().Begin(this, /*backward=*/false);
  Unshard(version);
  ++forward_open_;
  context_->prefetcher().Opened();
  phase_ = "in a forward";
}

void Unit::ExitForward(AfterForward after) {
  --forward_open_;
  context_->prefetcher().Closed();
  if (open()) return;
  phase_ = "after a forward";
  if (after == AfterForward::kReshard) Reshard();
  if (after == AfterForward::kForNow) context_->KeepForNow(this);
}

void Unit::AbandonForward() noexcept {
  --forward_open_;
  context_->prefetcher().Abandoned();
  phase_ = "after a forward that failed";
  Reshard();
}

void Unit::BeginBackward(int64_t version) {
  context_->ScopeOpens(this);
  context_->prefetcher().Begin(this, /*backward=*/true);
  Unshard(version);
  ++backward_open_;
  context_->prefetcher().Opened();
  phase_ = "in a backward";
  if (backward_open_ > 1) return;
  try {
    TakeGradientBuffers();
  } catch (...) {
    AbandonBackward();
    throw;
  }
}

// A forward scope that is still open (a UnitScope around the backward) contributes no gradient: it
// keeps the unit gathered, but nothing waits for it.
void Unit::EndBackward() {
  if (backward_open_ == 1) {
    try {
      FinishGradients();
    } catch (...) {
      AbandonBackward();
      throw;
    }
    phase_ = forward_open_ > 0 ? "in a forward" : "after a backward";
  }
  --backward_open_;
  context_->prefetcher().Closed();
  Reshard();
}

void Unit::AbandonBackward() noexcept {
  --backward_open_;
  context_->prefetcher().Abandoned();
  if (backward_open_ == 0) {
    for (SegmentState& segment : segments_) segment.gradient = Ref<Storage>();
  }
  phase_ = "after a backward that failed";
  Reshard();
}

// [Note: a gradient buffer belongs to a call]
// It is taken when backward enters the first scope, handed to the reduction when the last one
// closes, and freed when that is done. Another call of the same unit gets another buffer, so a slow
// reduction is never written over. To bound memory a new one waits until at most one reduction is
// in flight.
void Unit::TakeGradientBuffers() {
  context_->WaitReductions(1);
  std::fill(written_.begin(), written_.end(), false);
  for (size_t s = 0; s < segments_.size(); ++s) {
    const LayoutSegment& plan = layout_.segments()[s];
    SegmentState& segment = segments_[s];
    if (!plan.trainable) continue;
    if (context_->size() == 1) {
      segment.gradient = GradientShardOf(segment, s).storage();
      continue;
    }
    segment.gradient = MakeRef<Storage>(context_->device(), layout_.ranks() * segment.shard.bytes(),
                                        MemoryCategory::kGradient);
    segment.gradient->Allocate();
  }
}

UnitGradient Unit::TakeGradient(int i) {
  const size_t s = At(layout_.segment_of(i));
  SHERD_CHECK(backward_open_ > 0 && segments_[s].gradient, "a gradient outside a backward scope");
  // With one rank the buffer is the gradient shard, which may hold the sums of earlier calls.
  const bool alone = context_->size() == 1;
  const bool add = written_[At(i)] || (alone && holds_[At(i)]);
  written_[At(i)] = true;
  if (alone) used_[At(i)] = holds_[At(i)] = true;
  return {Tensor::View(segments_[s].gradient, layout_.offset_of(i), parameters_[At(i)].dtype,
                       parameters_[At(i)].shape),
          add};
}

void Unit::FinishGradients() {
  ++reductions_;
  for (size_t s = 0; s < segments_.size(); ++s) {
    if (!layout_.segments()[s].trainable) continue;
    if (context_->size() > 1) ReduceSegment(s);
    segments_[s].gradient = Ref<Storage>();
  }
}

void Unit::ReduceSegment(size_t s) {
  const LayoutSegment& plan = layout_.segments()[s];
  SegmentState& segment = segments_[s];
  ZeroUnwritten(s);
  const bool fresh =
      std::none_of(plan.entries.begin(), plan.entries.end(), [&](int i) { return holds_[At(i)]; });
  const Tensor sums = GradientShardOf(segment, s);
  if (!fresh) {
    // The rest of the chunk is added to: pieces whose sum was given up start from zero.
    for (int i : plan.entries) {
      if (holds_[At(i)]) continue;
      context_->WaitReductions(0);
      const LayoutPiece piece = layout_.PieceOf(i, context_->rank());
      const int64_t size = SizeOf(plan.dtype);
      ZeroBytes(sums.storage(), piece.chunk_offset * size,
                (piece.chunk_offset + piece.elems) * size);
    }
  }
  for (int i : plan.entries) {
    used_[At(i)] = used_[At(i)] || written_[At(i)];
    holds_[At(i)] = true;
  }
  const ErrorContext what{.op = "reduce_scatter",
                          .module_path = absl::StrCat("unit '", name_, "'")};
  context_->Reduce(what, [buffer = segment.gradient, sums, plan, fresh, what](ProcessGroup& group) {
    group.ReduceScatter(buffer->data(), sums.raw(), plan.chunk_elems, plan.dtype, !fresh, what);
    buffer->Free();
  });
}

// What nobody wrote is zero: this rank's contribution to parameters that others may have used.
void Unit::ZeroUnwritten(size_t s) {
  const LayoutSegment& plan = layout_.segments()[s];
  const int64_t size = SizeOf(plan.dtype);
  const Ref<Storage>& buffer = segments_[s].gradient;
  for (int i : plan.entries) {
    if (written_[At(i)]) continue;
    const int64_t begin = layout_.offset_of(i) * size;
    ZeroBytes(buffer, begin, begin + parameters_[At(i)].shape.numel() * size);
  }
  ZeroBytes(buffer, plan.elems * size, plan.padded_elems(layout_.ranks()) * size);
}

Tensor Unit::GradientShardOf(SegmentState& segment, size_t s) {
  if (!segment.gradient_shard.defined()) {
    const LayoutSegment& plan = layout_.segments()[s];
    segment.gradient_shard = Tensor::Empty(context_->device(), plan.dtype, {plan.chunk_elems},
                                           MemoryCategory::kGradientShard);
  }
  return segment.gradient_shard;
}

Tensor Unit::LocalGradient(int i) { return used_[At(i)] ? HeldGradient(i) : Tensor(); }

Tensor Unit::HeldGradient(int i) {
  if (!holds_[At(i)]) return Tensor();
  context_->WaitReductions(0);
  const SegmentState& segment = segments_[At(layout_.segment_of(i))];
  const LayoutPiece piece = layout_.PieceOf(i, context_->rank());
  return Tensor::View(segment.gradient_shard.storage(), piece.chunk_offset,
                      parameters_[At(i)].dtype, {piece.elems});
}

void Unit::Reshard() {
  if (!unsharded_ || open()) return;
  ahead_ = false;
  AwaitReaders();  // which write what is freed, too
  for (SegmentState& segment : segments_) segment.full->Free();
  unsharded_ = false;
}

void Unit::Clear() {
  forward_open_ = 0;
  backward_open_ = 0;
  for (SegmentState& segment : segments_) segment.gradient = Ref<Storage>();
  std::fill(used_.begin(), used_.end(), false);
  std::fill(holds_.begin(), holds_.end(), false);
  Reshard();
  phase_ = "recovered after a failure";
}

std::string Unit::DescribeAbsent(const Storage& storage, int64_t byte_offset) const {
  for (int i = 0; i < parameters(); ++i) {
    const Tensor& full = full_[At(i)];
    const int64_t begin = full.offset_elems() * SizeOf(full.dtype());
    if (full.storage().get() == &storage && begin <= byte_offset &&
        byte_offset < begin + std::max<int64_t>(full.bytes(), 1)) {
      return absl::StrCat("parameter '", parameters_[At(i)].name, "' of unit '", name_,
                          "' is sharded (phase: ", phase_,
                          "); read it inside a call of its module");
    }
  }
  return absl::StrCat("a parameter of unit '", name_, "' is sharded (phase: ", phase_, ")");
}

}  // namespace sherd
