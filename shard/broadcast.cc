#include "sherd/shard/broadcast.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd {
namespace {

constexpr int kRoot = 0;
// Problems that a message spells out.
constexpr size_t kMostNamed = 8;

ErrorContext What() { return {.op = "BroadcastFromRankZero"}; }

// What one rank has found wrong, one sentence for each parameter.
struct Findings {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<std::string> texts;

  void Add(absl::StatusCode as, std::string text) {
    if (texts.empty()) code = as;
    texts.push_back(std::move(text));
  }
  std::string ToString() const {
    std::string all;
    for (size_t i = 0; i < std::min(texts.size(), kMostNamed); ++i) {
      absl::StrAppend(&all, i == 0 ? "" : "; ", texts[i]);
    }
    if (texts.size() > kMostNamed)
      absl::StrAppend(&all, "; and ", texts.size() - kMostNamed, " more");
    return all;
  }
};

std::string Describe(const Parameter& p) {
  return absl::StrCat(std::string(NameOf(p.dtype())), " ", p.shape().ToString(), " on ",
                      p.local().device().id().ToString());
}

// The value of `p`, flat. Errors: kInvalidArgument, or what the source throws.
Tensor ValueOf(const Parameter& p, const ValueSource& source) {
  Tensor value;
  try {
    value = source(p);
  } catch (const std::exception& error) {
    ThrowInvalidArgument(
        absl::StrCat("the source failed for parameter '", p.name(), "': ", error.what()));
  }
  if (!value.defined()) {
    ThrowInvalidArgument(absl::StrCat("parameter '", p.name(), "' has no value"));
  }
  if (!(value.shape() == p.shape()) || value.dtype() != p.dtype() ||
      !(value.device() == p.local().device())) {
    ThrowInvalidArgument(absl::StrCat("parameter '", p.name(), "' is ", Describe(p),
                                      ", its value is ", value.ToString()));
  }
  return kernels::Pack(value).Reshape({p.numel()});
}

Findings Inspect(const std::vector<Parameter>& parameters, bool root, const ValueSource& source) {
  Findings findings;
  for (const Parameter& p : parameters) {
    if (!p.local().defined()) {
      findings.Add(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("parameter '", p.name(), "' has no memory yet"));
      continue;
    }
    if (!root) continue;
    try {
      ValueOf(p, source);
    } catch (const Error& error) {
      findings.Add(absl::StatusCode::kInvalidArgument, error.message());
    }
  }
  return findings;
}

// Tells models of different parameters apart.
uint64_t FingerprintOf(const std::vector<Parameter>& parameters) {
  uint64_t hash = parameters.size();
  for (const Parameter& p : parameters) {
    hash = Mix64(Mix64(hash, HashName(p.name())), static_cast<uint64_t>(p.dtype()));
    for (int64_t extent : p.shape().extents()) hash = Mix64(hash, static_cast<uint64_t>(extent));
  }
  return hash;
}

// Throws the same error on all ranks if any of them found something.
void Agree(const Findings& findings, uint64_t fingerprint, ProcessGroup& group) {
  struct Head {
    uint64_t fingerprint;
    int64_t code;
    int64_t text_bytes;
  };
  const std::string text = findings.ToString();
  const Head mine{fingerprint, static_cast<int64_t>(findings.code),
                  static_cast<int64_t>(text.size())};
  std::vector<Head> heads(static_cast<size_t>(group.size()));
  group.AllGather(&mine, heads.data(), sizeof(Head), What());
  int64_t longest = 0;
  for (size_t r = 0; r < heads.size(); ++r) {
    longest = std::max(longest, heads[r].text_bytes);
    if (heads[r].fingerprint == heads[0].fingerprint) continue;
    ThrowFailedPrecondition(
        absl::StrCat("rank ", r, " has parameters of other names, shapes or dtypes than rank 0"),
        What());
  }
  if (longest == 0) return;
  std::string padded = text;
  padded.resize(static_cast<size_t>(longest), ' ');
  std::string all(padded.size() * heads.size(), ' ');
  group.AllGather(padded.data(), all.data(), longest, What());
  for (size_t r = 0; r < heads.size(); ++r) {
    if (heads[r].text_bytes == 0) continue;
    ThrowError(
        Error(static_cast<absl::StatusCode>(heads[r].code),
              absl::StrCat("rank ", r, ": ",
                           all.substr(r * padded.size(), static_cast<size_t>(heads[r].text_bytes))),
              What()));
  }
}

// Sends one parameter. `value` is flat, and undefined on all ranks but the root.
void Send(const Parameter& p, const Tensor& value, ProcessGroup& group, int64_t buffer_bytes) {
  // Also where the piece is empty: versions rise on all ranks alike.
  const Tensor local = p.MutableLocal();
  const int64_t step = std::max<int64_t>(1, buffer_bytes / SizeOf(p.dtype()));
  const Tensor buffer = Tensor::Empty(local.device(), p.dtype(), {std::min(step, p.numel())},
                                      MemoryCategory::kStaging);
  const int64_t own_begin = p.local_offset(), own_end = own_begin + local.numel();
  for (int64_t begin = 0; begin < p.numel(); begin += step) {
    const int64_t end = std::min(begin + step, p.numel());
    const Tensor part = buffer.Slice(0, 0, end - begin);
    if (value.defined()) kernels::Copy(value.Slice(0, begin, end), part);
    group.Broadcast(part.raw(), part.bytes(), kRoot, What());
    const int64_t first = std::max(begin, own_begin), last = std::min(end, own_end);
    if (first >= last) continue;
    kernels::Copy(part.Slice(0, first - begin, last - begin),
                  local.Slice(0, first - own_begin, last - own_begin));
  }
}

}  // namespace

void BroadcastFromRankZero(const Module& model, ProcessGroup& group, const ValueSource& source,
                           const BroadcastOptions& options) {
  const bool root = group.rank() == kRoot;
  const std::vector<Parameter> parameters = model.parameters();
  Agree(Inspect(parameters, root, source), FingerprintOf(parameters), group);
  for (const Parameter& p : parameters) {
    Tensor value;
    try {
      if (root) value = ValueOf(p, source);
    } catch (const Error& error) {
      const Error named = error.With(What());
      group.Abort(absl::AbortedError(named.what()));
      throw named;
    }
    Send(p, value, group, options.buffer_bytes);
  }
}

}  // namespace sherd
