#include "sherd/shard/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

// Sizes before they are known to fit; products of an int and an int64 always do.
__extension__ using Wide = __int128;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

[[noreturn]] void Refuse(const std::string& what) { ThrowInvalidArgument(what, {.op = "layout"}); }

// One entry of a segment, in the order in which they lie.
struct Item {
  int entry = 0;
  int64_t elems = 0;
  int64_t granule = 1;
};

Wide RoundUp(Wide n, Wide step) { return (n + step - 1) / step * step; }

// [Note: chunks and granules]
// An entry lies in one stretch. If a border between chunks falls inside, the distance from the
// entry's start must be a multiple of its granule: a gap before the entry, shorter than the
// granule, sees to that. If a second border falls inside, the chunk must be a multiple of the
// granule too. So a chunk size is good if it is a multiple of the granules of all entries longer
// than a chunk, and large enough for all entries and one gap at each border. A rule names the
// entries that may be longer: the first few, by length. Without a rule for each, two long entries
// with coprime granules would cost ranks x the product of these.
struct ChunkRule {
  Wide step = 1;   // the chunk is a multiple of this
  Wide least = 0;  // and at least as long as the longest entry whose granule does not divide it
};

std::vector<ChunkRule> RulesFor(std::vector<Item> items) {
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.elems > b.elems; });
  std::vector<ChunkRule> rules;
  Wide step = 1;
  for (const Item& item : items) {
    const auto common = std::gcd(static_cast<int64_t>(step), item.granule);
    const Wide next = step / common * item.granule;
    if (next != step) rules.push_back({step, item.elems});
    if (next > kMost) return rules;
    step = next;
  }
  rules.push_back({step, 0});
  return rules;
}

// The longest gap that a border can cost. The distance from an entry's start to a border is a
// multiple of `unit`, which holds at the first entry and is carried over each.
int64_t LongestGap(const std::vector<Item>& items, const ChunkRule& rule) {
  int64_t unit = static_cast<int64_t>(rule.step);
  int64_t longest = 0;
  for (const Item& item : items) {
    const int64_t shared = std::gcd(unit, item.granule);
    longest = std::max(longest, item.granule - shared);
    unit = std::gcd(shared == item.granule ? unit : shared, item.elems);
  }
  return longest;
}

// Where each item starts with such chunks; empty if they do not fit or a granule is cut.
std::optional<std::vector<int64_t>> PlaceAll(const std::vector<Item>& items, Wide chunk,
                                             int ranks) {
  std::vector<int64_t> starts;
  Wide at = 0;
  for (const Item& item : items) {
    const Wide border = RoundUp(at, chunk);
    if (at < border && at + item.elems > border) at += (border - at) % item.granule;
    const Wide end = at + item.elems;
    const bool aligned = end <= border || (border - at) % item.granule == 0;
    if (!aligned || (end > border + chunk && chunk % item.granule != 0)) return std::nullopt;
    if (end > chunk * ranks) return std::nullopt;
    starts.push_back(static_cast<int64_t>(at));
    at = end;
  }
  return starts;
}

struct Chunks {
  Wide size = 0;
  Wide bound = 0;  // no rule could have made them longer than this
};

Chunks ChooseChunks(const std::vector<Item>& items, int64_t elems, int ranks) {
  const auto share = [&](Wide n) { return (n + ranks - 1) / ranks; };
  Chunks best;
  for (const ChunkRule& rule : RulesFor(items)) {
    const Wide gaps = Wide{LongestGap(items, rule)} * (ranks - 1);
    const Wide sure = RoundUp(std::max(share(elems + gaps), rule.least), rule.step);
    // What does not fit is refused by whoever asked; here it need not be searched.
    if (sure > kMost / ranks) {
      if (best.bound == 0) best = {sure, sure};
      continue;
    }
    Wide low = RoundUp(share(elems), rule.step) / rule.step;
    Wide high = sure / rule.step;
    while (low < high) {
      const Wide middle = low + (high - low) / 2;
      if (PlaceAll(items, middle * rule.step, ranks).has_value()) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const Wide size = high * rule.step;
    const Wide bound = best.bound == 0 ? sure : std::min(best.bound, sure);
    best = {best.bound == 0 ? size : std::min(best.size, size), bound};
  }
  return best;
}

}  // namespace

Layout::Layout(std::span<const LayoutEntry> entries, int ranks) : ranks_(ranks) {
  if (ranks < 1) Refuse(absl::StrCat("a layout needs at least one rank, got ", ranks));
  for (const LayoutEntry& entry : entries) {
    const int index = static_cast<int>(places_.size());
    if (entry.elems < 0) {
      Refuse(absl::StrCat("parameter ", index, " has ", entry.elems, " elements"));
    }
    if (entry.granule < 1) {
      Refuse(absl::StrCat("parameter ", index, " has a granule of ", entry.granule,
                          " elements; it is 1 or more"));
    }
    auto same = [&](const LayoutSegment& s) {
      return s.dtype == entry.dtype && s.trainable == entry.trainable;
    };
    auto it = std::find_if(segments_.begin(), segments_.end(), same);
    if (it == segments_.end()) {
      segments_.push_back({entry.dtype, entry.trainable});
      it = std::prev(segments_.end());
    }
    places_.push_back({static_cast<int>(it - segments_.begin()), 0, entry.elems});
    if (__builtin_add_overflow(it->elems, entry.elems, &it->elems)) {
      Refuse(absl::StrCat("the elements up to parameter ", index, " overflow an int64"));
    }
    it->entries.push_back(index);
  }
  Wide bytes = 0;
  for (LayoutSegment& segment : segments_) {
    if (segment.elems > 0) Arrange(segment, entries);
    bytes += Wide{segment.chunk_elems} * ranks_ * SizeOf(segment.dtype);
    if (bytes > kMost) Refuse("the bytes of all parameters overflow an int64");
  }
}

void Layout::Arrange(LayoutSegment& segment, std::span<const LayoutEntry> entries) {
  std::stable_sort(segment.entries.begin(), segment.entries.end(), [&](int a, int b) {
    return entries[static_cast<size_t>(a)].granule > entries[static_cast<size_t>(b)].granule;
  });
  std::vector<Item> items;
  for (int i : segment.entries) {
    const LayoutEntry& entry = entries[static_cast<size_t>(i)];
    if (entry.elems > 0)
      items.push_back({i, entry.elems, std::min<int64_t>(entry.granule, entry.elems)});
  }
  const Chunks chunks = ChooseChunks(items, segment.elems, ranks_);
  if (chunks.bound > kMost / ranks_) {
    Refuse(
        absl::StrCat("the padded elements of a segment on ", ranks_, " ranks overflow an int64"));
  }
  const std::optional<std::vector<int64_t>> starts = PlaceAll(items, chunks.size, ranks_);
  SHERD_CHECK(starts.has_value(), "chunks that were chosen do not fit");
  segment.chunk_elems = static_cast<int64_t>(chunks.size);
  segment.padding_bound = static_cast<int64_t>(chunks.bound) * ranks_ - segment.elems;
  int64_t at = 0;
  const auto pad_up_to = [&](int64_t next) {
    if (next > at) segment.padding.push_back({at, next - at});
  };
  for (size_t k = 0; k < items.size(); ++k) {
    pad_up_to((*starts)[k]);
    places_[static_cast<size_t>(items[k].entry)].offset = (*starts)[k];
    at = (*starts)[k] + items[k].elems;
  }
  pad_up_to(segment.padded_elems(ranks_));
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
