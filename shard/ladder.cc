#include "sherd/shard/ladder.h"

#include <utility>

#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {

Ladder::Ladder(const Layout& layout, const UnitAxes& axes, Options options, const Device& device,
               const StorageOwner* owner)
    : layout_(layout), axes_(axes), options_(std::move(options)), device_(device) {
  const int bottom = axes.levels();
  Rung& owned = AddRung(bottom, /*kept=*/true);
  owned.version = 0;
  const size_t segments = layout.segments().size();
  for (size_t s = 0; s < segments; ++s) {
    const DType dtype = layout.segments()[s].dtype;
    shards_.push_back(Tensor::Empty(
        device, dtype, {Elems(s, bottom)},
        options_.offload ? MemoryCategory::kOffloaded : MemoryCategory::kParameterShard));
    owned.stores.push_back(shards_.back().storage());
  }
  if (axes.parameter_level > 0 && axes.parameter_level < bottom) {
    AddRung(axes.parameter_level, /*kept=*/true);
  }
  if (axes.parked_level > 0 && axes.parked_level < axes.parameter_level) {
    AddRung(axes.parked_level, /*kept=*/false);
  }
  const bool refreshed = axes.parameter_level == 0 && bottom > 0;
  AddRung(0, refreshed || !axes.parameters_are_cut);
  for (size_t r = 1; r < rungs_.size(); ++r) {
    Rung& rung = rungs_[r];
    for (size_t s = 0; s < segments; ++s) {
      const int64_t bytes = Elems(s, rung.level) * SizeOf(gathered(s));
      const bool same = bottom == 0 && gathered(s) == shards_[s].dtype() && !options_.offload;
      rung.stores.push_back(same ? MakeRef<Storage>(shards_[s].storage(), bytes)
                                 : MakeRef<Storage>(device, bytes,
                                                    rung.kept ? MemoryCategory::kParameterShard
                                                              : MemoryCategory::kUnsharded));
    }
  }
  for (const Ref<Storage>& store : rungs_.back().stores) store->set_owner(owner);
}

Ladder::~Ladder() {
  for (const Ref<Storage>& store : rungs_.back().stores) store->set_owner(nullptr);
}

Ladder::Rung& Ladder::AddRung(int level, bool kept) {
  return rungs_.emplace_back(Rung{level, kept, -1, {}});
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
  const Storage& source = *from.stores[segment];
  const Storage& target = *to.stores[segment];
  if (source.data() == target.data()) return;
  const DType dtype = gathered(segment);
  const int64_t size = SizeOf(dtype);
  const int64_t own_elems = Elems(segment, from.level);
  if (own_elems == 0) return;
  const int64_t own_offset = axes_.Piece(to.level, from.level) * own_elems;
  const void* piece = source.data();
  const bool owned = &from == &rungs_.front();
  const DType from_dtype = owned ? shards_[segment].dtype() : dtype;
  if (from_dtype != dtype || from.level == to.level) {
    const Tensor own = Tensor::View(to.stores[segment], own_offset, dtype, {own_elems});
    const Tensor given = Tensor::View(from.stores[segment], 0, from_dtype, {own_elems});
    if (from_dtype != dtype) {
      kernels::Cast(given, own);
    } else {
      kernels::Copy(given, own);
    }
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
