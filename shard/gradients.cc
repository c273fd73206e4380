#include "sherd/shard/gradients.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/context.h"

namespace sherd {
namespace {

void ZeroElems(const Ref<Storage>& storage, DType dtype, int64_t begin, int64_t elems) {
  const int64_t size = SizeOf(dtype);
  if (elems > 0) {
    storage->device().Zero(static_cast<char*>(storage->data()) + begin * size, elems * size);
  }
}

}  // namespace

struct GradientSums::Move {
  struct Step {
    ProcessGroup* group;
    int64_t elems;  // of one rank's piece after it
    int64_t index;  // which piece is this rank's
  };
  Ref<Storage> from;  // empty: what is to be reduced is in `to` already
  Ref<Storage> to;
  DType dtype = DType::kF32;
  DType wire = DType::kF32;
  int64_t elems = 0;  // at the target's level
  bool add = false;
  absl::InlinedVector<Step, 2> cuts;
  absl::InlinedVector<ProcessGroup*, 2> replicas;
  ErrorContext what;

  // Of the buffers that are reduced, as they travel.
  int64_t bytes() const {
    int64_t pieces = replicas.empty() ? 0 : 1;
    for (const Step& cut : cuts)
      pieces += cut.elems / std::max<int64_t>(elems, 1) * cut.group->size();
    return pieces * elems * SizeOf(wire);
  }
};

GradientSums::GradientSums(const Layout& layout, const UnitAxes& axes, Options options,
                           ShardContext& context, const std::string& name)
    : layout_(layout), axes_(axes), options_(std::move(options)), context_(context), name_(name) {
  const auto parameters = static_cast<size_t>(layout.entries());
  const bool finishing_moves =
      axes.gradient_level < axes.levels() || !axes.replicas.empty() || options_.offload;
  same_as_[kDone] = kDone;
  same_as_[kCut] = finishing_moves ? kCut : kDone;
  same_as_[kWhole] = axes.gradient_level > 0 ? size_t{kWhole} : same_as_[kCut];
  const int levels[] = {0, axes.gradient_level, axes.levels()};
  for (size_t stop : {kWhole, kCut, kDone}) {
    sums_[stop].level = levels[stop];
    sums_[stop].category =
        stop == kWhole ? MemoryCategory::kGradient : MemoryCategory::kGradientShard;
    sums_[stop].stores.resize(layout.segments().size());
    sums_[stop].holds.assign(parameters, false);
  }
  if (options_.offload) sums_[kDone].category = MemoryCategory::kOffloaded;
  used_.assign(parameters, false);
  trainable_.assign(parameters, true);
  for (const LayoutSegment& segment : layout.segments()) {
    for (int i : segment.entries) trainable_[At(i)] = segment.trainable;
  }
}

void GradientSums::SetTrainable(int i, bool trainable) { trainable_[At(i)] = trainable; }

bool GradientSums::Trains(const LayoutSegment& segment) const {
  return std::any_of(segment.entries.begin(), segment.entries.end(),
                     [this](int i) { return trainable_[At(i)]; });
}

int64_t GradientSums::Elems(size_t segment, int level) const {
  return layout_.segments()[segment].chunk_elems * axes_.Pieces(level, axes_.levels());
}

LayoutPiece GradientSums::PieceAt(int i, int level) const {
  const auto segment = static_cast<size_t>(layout_.segment_of(i));
  const int64_t chunk = Elems(segment, level);
  const int64_t chunk_begin = chunk * axes_.Piece(0, level);
  const int64_t offset = layout_.offset_of(i);
  const int64_t begin = std::max(offset, chunk_begin);
  const int64_t end = std::min(offset + layout_.elems_of(i), chunk_begin + chunk);
  if (begin >= end) return {};
  return {begin - offset, begin - chunk_begin, end - begin};
}

void GradientSums::Allocate(Sum& sum, size_t segment) {
  if (!sum.stores[segment]) {
    const int64_t bytes = Elems(segment, sum.level) * SizeOf(layout_.segments()[segment].dtype);
    sum.stores[segment] = MakeRef<Storage>(context_.device(), bytes, sum.category);
  }
  sum.stores[segment]->Allocate();
}

void GradientSums::Open() {
  context_.WaitReductions(1);
  Sum& whole = sum(kWhole);
  for (size_t s = 0; s < whole.stores.size(); ++s) {
    if (Trains(layout_.segments()[s])) Allocate(whole, s);
  }
  whole.opened = true;
}

UnitGradient GradientSums::Take(int i, const Shape& shape) {
  Sum& whole = sum(kWhole);
  const auto s = static_cast<size_t>(layout_.segment_of(i));
  SHERD_CHECK(whole.stores[s], "a gradient outside a backward scope");
  const bool add = whole.holds[At(i)];
  whole.holds[At(i)] = true;
  used_[At(i)] = true;
  return {Tensor::View(whole.stores[s], layout_.offset_of(i), layout_.segments()[s].dtype, shape),
          add};
}

void GradientSums::Abandon() noexcept {
  if (same_as_[kWhole] != kWhole) return;
  Sum& whole = sum(kWhole);
  std::fill(whole.stores.begin(), whole.stores.end(), Ref<Storage>());
  std::fill(whole.holds.begin(), whole.holds.end(), false);
  whole.opened = false;
}

// What nobody wrote is zero: this rank's contribution to parameters that others may have used.
void GradientSums::ZeroUnwritten(Sum& sum, size_t segment) {
  const LayoutSegment& plan = layout_.segments()[segment];
  for (int i : plan.entries) {
    if (sum.holds[At(i)]) continue;
    const LayoutPiece piece = PieceAt(i, sum.level);
    ZeroElems(sum.stores[segment], plan.dtype, piece.chunk_offset, piece.elems);
  }
  const int64_t chunk = Elems(segment, sum.level);
  const int64_t chunk_begin = chunk * axes_.Piece(0, sum.level);
  for (const LayoutRange& gap : plan.padding) {
    const int64_t begin = std::max(gap.offset, chunk_begin);
    const int64_t end = std::min(gap.offset + gap.elems, chunk_begin + chunk);
    ZeroElems(sum.stores[segment], plan.dtype, begin - chunk_begin, end - begin);
  }
}

bool GradientSums::PrepareTarget(Sum& target, size_t segment) {
  const LayoutSegment& plan = layout_.segments()[segment];
  Allocate(target, segment);
  const bool fresh = std::none_of(plan.entries.begin(), plan.entries.end(),
                                  [&](int i) { return target.holds[At(i)]; });
  if (fresh) return false;
  const bool whole = std::all_of(plan.entries.begin(), plan.entries.end(),
                                 [&](int i) { return target.holds[At(i)]; });
  if (!whole) {
    context_.WaitReductions(0);  // which may be adding to it
    ZeroUnwritten(target, segment);
  }
  return true;
}

GradientSums::Move GradientSums::MoveOf(Stop from, Stop to, size_t segment) {
  Sum& source = sum(from);
  Sum& target = sum(to);
  const LayoutSegment& plan = layout_.segments()[segment];
  // What a reduction left has a sum everywhere; what calls wrote has not.
  if (same_as_[kWhole] == same_as_[from]) ZeroUnwritten(source, segment);
  Move move;
  move.dtype = plan.dtype;
  move.wire = IsFloating(plan.dtype) ? options_.wire.value_or(plan.dtype) : plan.dtype;
  move.elems = Elems(segment, target.level);
  move.what = {.op = "reduce_scatter", .module_path = absl::StrCat("unit '", name_, "'")};
  for (int level = source.level; level < target.level; ++level) {
    const UnitAxis& axis = axes_.cuts[static_cast<size_t>(level)];
    move.cuts.push_back({axis.reduce, Elems(segment, level + 1), axis.index});
  }
  if (to == kDone) {
    for (const UnitAxis& axis : axes_.replicas) move.replicas.push_back(axis.reduce);
  }
  const bool fresh = std::none_of(plan.entries.begin(), plan.entries.end(),
                                  [&](int i) { return target.holds[At(i)]; });
  if (fresh && move.cuts.empty() && source.category == target.category) {
    // The same pieces: the sum only changes its name.
    move.to = target.stores[segment] = std::exchange(source.stores[segment], Ref<Storage>());
    return move;
  }
  move.add = PrepareTarget(target, segment);
  move.to = target.stores[segment];
  move.from = std::exchange(source.stores[segment], Ref<Storage>());
  return move;
}

void GradientSums::Pass(Stop from, Stop to, std::vector<Move>& moves) {
  if (same_as_[from] == same_as_[to] || !sum(from).opened) return;
  Sum& source = sum(from);
  Sum& target = sum(to);
  for (size_t s = 0; s < source.stores.size(); ++s) {
    const LayoutSegment& plan = layout_.segments()[s];
    if (!source.stores[s] || !source.stores[s]->resident()) continue;
    moves.push_back(MoveOf(from, to, s));
    for (int i : plan.entries) target.holds[At(i)] = true;
  }
  std::fill(source.holds.begin(), source.holds.end(), false);
  source.opened = false;
  target.opened = true;
}

void GradientSums::Reduce(bool finish, bool agree) {
  if (same_as_[kWhole] == kDone) {
    ++reductions_;
    return;
  }
  std::vector<Move> moves;
  Pass(kWhole, kCut, moves);
  if (finish) Pass(kCut, kDone, moves);
  if (moves.empty()) return;
  ++reductions_;
  const ErrorContext what = moves.front().what;
  EventLog* const log = context_.events();
  Event event;
  if (log != nullptr) {
    event = {.kind = EventKind::kCollective,
             .lane = EventLane::kReduce,
             .phase = context_.prefetcher().phase(),
             .op = moves.front().cuts.empty() ? EventOp::kAllReduce : EventOp::kReduceScatter,
             .unit = event_unit_,
             .sequence = reductions_};
    for (const Move& move : moves) event.bytes += move.bytes();
    event = log->Enqueue(event);
  }
  std::shared_ptr<std::vector<int32_t>> counts;
  if (agree) {
    counts = std::make_shared<std::vector<int32_t>>(used_.begin(), used_.end());
    use_counts_ = counts;
  }
  // Memory that a device still reads from is the caller's to free, when it has waited.
  std::vector<Ref<Storage>> spent;
  if (context_.device().backend() != nullptr) {
    for (const Move& move : moves) {
      if (move.from) spent.push_back(move.from);
    }
  }
  const bool frees = spent.empty();
  auto job = [this, moves = std::move(moves), counts, log, event, frees] {
    const EventSpan running(log, event);
    for (const Move& move : moves) Run(move, frees);
    if (counts != nullptr) SumOverRanks(*counts, moves.front().what);
  };
  context_.Reduce(what, std::move(job), std::move(spent));
}

void GradientSums::SumOverRanks(std::vector<int32_t>& counts, const ErrorContext& what) const {
  for (const auto* axes : {&axes_.cuts, &axes_.replicas}) {
    for (const UnitAxis& axis : *axes) {
      axis.reduce->AllReduce(counts.data(), static_cast<int64_t>(counts.size()), DType::kI32, what);
    }
  }
}

void GradientSums::TakeAgreement() {
  const auto counts = std::exchange(use_counts_, nullptr);
  if (counts == nullptr) return;
  for (size_t i = 0; i < used_.size(); ++i) used_[i] = (*counts)[i] > 0;
}

void GradientSums::Run(const Move& move, bool frees) {
  const int64_t size = SizeOf(move.dtype);
  const WireTypes types{move.dtype, move.wire, move.dtype};
  char* target = static_cast<char*>(move.to->data());
  char* region = move.from ? static_cast<char*>(move.from->data()) : target;
  // With replicas the sum is complete only after them, so it cannot be added to the target before.
  const bool direct = move.replicas.empty() || !move.add;
  for (size_t k = 0; k < move.cuts.size(); ++k) {
    const Move::Step& cut = move.cuts[k];
    const bool last = k + 1 == move.cuts.size() && direct;
    char* own = last ? target : region + cut.index * cut.elems * size;
    cut.group->ReduceScatter(region, own, cut.elems, types, last && move.add, move.what);
    region = own;
  }
  for (ProcessGroup* group : move.replicas) {
    group->AllReduce(region, move.elems, move.dtype, move.wire, move.what);
  }
  if (region != target) {
    const int64_t offset = (region - static_cast<char*>(move.from->data())) / size;
    kernels::Copy(Tensor::View(move.from, offset, move.dtype, {move.elems}),
                  Tensor::View(move.to, 0, move.dtype, {move.elems}),
                  move.add ? kernels::Write::kAdd : kernels::Write::kOverwrite);
  }
  if (move.from && frees) move.from->Free();
}

bool GradientSums::pending() const {
  return (same_as_[kWhole] != kDone && sum(kWhole).opened) ||
         (same_as_[kCut] != kDone && sum(kCut).opened);
}

Tensor GradientSums::Done(int i) {
  Sum& done = sum(kDone);
  if (!done.holds[At(i)]) return Tensor();
  context_.WaitReductions(0);
  const auto s = static_cast<size_t>(layout_.segment_of(i));
  const LayoutPiece piece = PieceAt(i, done.level);
  return Tensor::View(done.stores[s], piece.chunk_offset, layout_.segments()[s].dtype,
                      {piece.elems});
}

void GradientSums::Clear(int i) {
  used_[At(i)] = false;
  for (Sum& sum : sums_) sum.holds[At(i)] = false;
  // Where finishing only renames sums, their memory comes along: the old one is not needed.
  const bool renames = sums_[kCut].level == sums_[kDone].level && !options_.offload;
  if (same_as_[kCut] != kDone && renames) FreeDone();
}

void GradientSums::FreeDone() {
  Sum& done = sum(kDone);
  if (std::find(done.holds.begin(), done.holds.end(), true) != done.holds.end()) return;
  for (Ref<Storage>& store : done.stores) store = Ref<Storage>();
}

void GradientSums::Drop() {
  ClearAll();
  FreeDone();
}

void GradientSums::ClearAll() {
  use_counts_ = nullptr;
  std::fill(used_.begin(), used_.end(), false);
  for (size_t stop : {kWhole, kCut, kDone}) {
    Sum& sum = sums_[stop];
    std::fill(sum.holds.begin(), sum.holds.end(), false);
    sum.opened = false;
    if (stop == kDone) continue;
    for (Ref<Storage>& store : sum.stores) store = Ref<Storage>();
  }
}

}  // namespace sherd
