#include "sherd/shard/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

Layout::Layout(std::span<const LayoutEntry> entries, int ranks) : ranks_(ranks) {
  if (ranks < 1) {
    ThrowInvalidArgument(absl::StrCat("a layout needs at least one rank, got ", ranks),
                         {.op = "layout"});
  }
  for (const LayoutEntry& entry : entries) {
    const int index = static_cast<int>(places_.size());
    if (entry.elems < 0) {
      ThrowInvalidArgument(absl::StrCat("parameter ", index, " has ", entry.elems, " elements"),
                           {.op = "layout"});
    }
    auto same = [&](const LayoutSegment& s) {
      return s.dtype == entry.dtype && s.trainable == entry.trainable;
    };
    auto it = std::find_if(segments_.begin(), segments_.end(), same);
    if (it == segments_.end()) {
      segments_.push_back({entry.dtype, entry.trainable, 0, 0, {}});
      it = std::prev(segments_.end());
    }
    places_.push_back({static_cast<int>(it - segments_.begin()), it->elems, entry.elems});
    it->elems += entry.elems;
    it->entries.push_back(index);
  }
  for (LayoutSegment& segment : segments_)
    segment.chunk_elems = (segment.elems + ranks - 1) / ranks;
}

LayoutPiece Layout::PieceOf(int entry, int rank) const {
  const Place& place = places_[static_cast<size_t>(entry)];
  const int64_t chunk = segments_[static_cast<size_t>(place.segment)].chunk_elems;
  const int64_t chunk_begin = chunk * rank;
  const int64_t begin = std::max(place.offset, chunk_begin);
  const int64_t end = std::min(place.offset + place.elems, chunk_begin + chunk);
  if (begin >= end) return {};
  return {begin - place.offset, begin - chunk_begin, end - begin};
}

int64_t Layout::shard_bytes() const {
  int64_t bytes = 0;
  for (const LayoutSegment& s : segments_) bytes += s.chunk_elems * SizeOf(s.dtype);
  return bytes;
}

int64_t Layout::full_bytes() const { return shard_bytes() * ranks_; }

int64_t Layout::gradient_bytes() const {
  int64_t bytes = 0;
  for (const LayoutSegment& s : segments_) {
    if (s.trainable) bytes += s.padded_elems(ranks_) * SizeOf(s.dtype);
  }
  return bytes;
}

}  // namespace sherd
