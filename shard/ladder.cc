#include "sherd/shard/ladder.h"

#include <utility>

#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {

Ladder::Ladder(const Layout& layout, const UnitAxes& axes, Options options, const Device& device,
               const StorageOwner* owner)
    : layout_(layout), axes_(axes), options_(std::move(options)), device_(device) {
  const int bottom = axes.levels();
  rungs_.push_back({bottom, /*kept=*/true, 0, {}});
  if (axes.parameter_level > 0 && axes.parameter_level < bottom) {
    rungs_.push_back({axes.parameter_level, /*kept=*/true, -1, {}});
  }
  if (axes.parked_level > 0 && axes.parked_level < axes.parameter_level) {
    rungs_.push_back({axes.parked_level, /*kept=*/false, -1, {}});
  }
  const bool refreshed = axes.parameter_level == 0 && bottom > 0;
  rungs_.push_back({0, refreshed || !axes.parameters_are_cut, -1, {}});
  for (size_t s = 0; s < layout.segments().size(); ++s) MakeStores(s);
  for (const Ref<Storage>& store : rungs_.back().stores) store->set_owner(owner);
}

Ladder::~Ladder() {
  for (const Ref<Storage>& store : rungs_.back().stores) store->set_owner(nullptr);
}

// The owned pieces lie inside the rung that is kept above them, where it has their dtype; alone on
// their level they are the whole.
void Ladder::MakeStores(size_t segment) {
  const DType dtype = layout_.segments()[segment].dtype;
  const bool same = gathered(segment) == dtype && !options_.offload;
  const auto make = [&](int level, DType of, MemoryCategory category) {
    return MakeRef<Storage>(device_, Elems(segment, level) * SizeOf(of), category);
  };
  const int bottom = rungs_[0].level;
  const bool inside = same && rungs_[1].kept && bottom > 0;
  const Ref<Storage> owned =
      make(inside ? rungs_[1].level : bottom, dtype,
           options_.offload ? MemoryCategory::kOffloaded : MemoryCategory::kParameterShard);
  owned->Allocate();
  const int64_t elems = Elems(segment, bottom);
  const int64_t offset = inside ? axes_.Piece(rungs_[1].level, bottom) * elems : 0;
  shards_.push_back(Tensor::View(owned, offset, dtype, {elems}));
  rungs_[0].stores.push_back(owned);
  for (size_t r = 1; r < rungs_.size(); ++r) {
    Rung& rung = rungs_[r];
    if (inside && r == 1) {
      rung.stores.push_back(owned);
    } else if (same && bottom == 0) {
      rung.stores.push_back(MakeRef<Storage>(owned, Elems(segment, 0) * SizeOf(dtype)));
    } else {
      rung.stores.push_back(
          make(rung.level, gathered(segment),
               rung.kept ? MemoryCategory::kParameterShard : MemoryCategory::kUnsharded));
    }
  }
}

int64_t Ladder::Elems(size_t segment, int level) const {
  return layout_.segments()[segment].chunk_elems * axes_.Pieces(level, axes_.levels());
}

bool Ladder::Prepare(int64_t version) {
  climb_from_ = 0;
  for (size_t r = 1; r < rungs_.size(); ++r) {
    if (rungs_[r].version == version) climb_from_ = r;
  }
  try {
    for (size_t r = climb_from_ + 1; r < rungs_.size(); ++r) {
      for (const Ref<Storage>& store : rungs_[r].stores) store->Allocate();
      rungs_[r].version = version;
    }
  } catch (...) {
    Invalidate();
    Drop(/*park=*/false);
    throw;
  }
  return rungs_[climb_from_].level > 0;
}

int64_t Ladder::climb_bytes() const {
  int64_t bytes = 0;
  for (size_t r = climb_from_ + 1; r < rungs_.size(); ++r) {
    if (rungs_[r - 1].level == rungs_[r].level) continue;
    for (const Ref<Storage>& store : rungs_[r].stores) bytes += store->bytes();
  }
  return bytes;
}

void Ladder::Climb(const ErrorContext& what) {
  for (size_t r = climb_from_; r + 1 < rungs_.size(); ++r) {
    for (size_t s = 0; s < shards_.size(); ++s) ClimbOne(s, rungs_[r], rungs_[r + 1], what);
  }
}

void Ladder::ClimbOne(size_t segment, const Rung& from, const Rung& to,
                      const ErrorContext& what) const {
  const Storage& target = *to.stores[segment];
  const DType dtype = gathered(segment);
  const int64_t size = SizeOf(dtype);
  const int64_t own_elems = Elems(segment, from.level);
  if (own_elems == 0) return;
  const int64_t own_offset = axes_.Piece(to.level, from.level) * own_elems;
  const Tensor given = &from == &rungs_.front()
                           ? shards_[segment]
                           : Tensor::View(from.stores[segment], 0, dtype, {own_elems});
  const void* piece = given.raw();
  if (given.dtype() != dtype || from.level == to.level) {
    const Tensor own = Tensor::View(to.stores[segment], own_offset, dtype, {own_elems});
    if (own.raw() == piece) return;
    kernels::Cast(given, own);
    piece = own.raw();
  }
  for (int level = from.level; level > to.level; --level) {
    const UnitAxis& axis = axes_.cuts[static_cast<size_t>(level - 1)];
    const int64_t elems = Elems(segment, level);
    // Where the piece of the level above begins in the target, and in it this rank's.
    const int64_t above = axes_.Piece(to.level, level - 1) * elems * axis.size;
    char* full = static_cast<char*>(target.data()) + above * size;
    axis.gather->AllGather(piece, full, elems * size, what);
    piece = full;
  }
}

void Ladder::Drop(bool park) {
  for (size_t r = 1; r < rungs_.size(); ++r) {
    Rung& rung = rungs_[r];
    const bool top = r + 1 == rungs_.size();
    if (rung.kept || (park && !top)) continue;
    for (const Ref<Storage>& store : rung.stores) store->Free();
    rung.version = -1;
  }
}

void Ladder::Invalidate() {
  for (size_t r = 1; r < rungs_.size(); ++r) rungs_[r].version = -1;
}

}  // namespace sherd
