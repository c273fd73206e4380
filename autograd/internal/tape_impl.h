#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/autograd/op.h"

namespace sherd::internal {

// One recorded op.
struct Node {
  std::shared_ptr<const Op> op;
  absl::InlinedVector<Ref<Ident>, 3> inputs;  // empty where no gradient is wanted
  absl::InlinedVector<Ref<Ident>, 1> outputs;
  absl::InlinedVector<TensorSpec, 3> input_specs;
  absl::InlinedVector<Tensor, 3> saved_inputs;  // undefined where backward reads nothing
  absl::InlinedVector<Tensor, 1> saved_outputs;
  absl::InlinedVector<Tensor, 1> inner;
  absl::InlinedVector<ParameterRead, 1> reads;
  const Module* module = nullptr;
  CallSite site;
  uint64_t random_key = 0;
  std::shared_ptr<const RandomContext> random;
  Device device;
};

struct Scope {
  ScopeObserver* observer = nullptr;
  const Module* module = nullptr;
  bool always_live = false;
  int64_t close = -1;  // entry index of the closing bracket
};

enum class EntryKind : uint8_t { kNode, kOpen, kClose };
struct Entry {
  EntryKind kind;
  int64_t index;  // of the node or scope
};

// Counters shared by a tape and the tapes nested in it.
struct Family {
  uint64_t births = 0;
  uint64_t marks = 0;
};

class TapeImpl {
 public:
  TapeImpl();
  explicit TapeImpl(std::shared_ptr<Family> family);

  Node& AddNode();
  // The identity of a new variable of `home`.
  Ref<Ident> NewIdent(const Ref<Home>& home);
  int64_t OpenScope(ScopeObserver& observer, const Module* module, bool always_live);
  void CloseScope(int64_t scope);
  void Reset();

  Tape* owner = nullptr;  // null for a recompute's
  std::shared_ptr<Family> family;
  Ref<Home> home;
  std::vector<Entry> entries;
  std::deque<Node> nodes;
  std::vector<Scope> scopes;
  std::vector<int64_t> open_scopes;
  int64_t ops = 0;  // those inside checkpointed regions too
  bool consumed = false;
};

// Gradients on their way, shared by a backward and the backwards nested in it.
class GradTable {
 public:
  // A buffer to write the next contribution to.
  GradTarget Target(Ident& ident, const TensorSpec& spec, const Device& device);
  // Takes a finished contribution; shares its memory when it is the first.
  void Accumulate(Ident& ident, Tensor gradient);
  // Removes and returns; undefined if nothing arrived.
  Tensor Take(const Ident& ident);
  // Moves what arrived at leaves into their grad.
  void CommitLeaves();

 private:
  absl::flat_hash_map<const Ident*, std::pair<Ref<Ident>, Tensor>> grads_;
};

// One backward over one tape.
class Walk {
 public:
  // `level` describes the tape being walked, as the outer level of recomputes.
  Walk(TapeImpl& tape, GradTable& table, Recorder& level)
      : tape_(tape), table_(table), level_(level) {}

  // Adds the seeds, then walks. Errors: see Tape::Backward; entered scopes are abandoned.
  void Run(std::span<const Ref<Ident>> roots, std::vector<Tensor> seeds);

  TapeImpl& tape() { return tape_; }
  GradTable& table() { return table_; }
  Recorder& level() { return level_; }

 private:
  friend class sherd::OpBackward;
  void Mark(std::span<const Ref<Ident>> roots);
  void RunNode(Node& node);
  void CheckVersions(const Node& node) const;

  TapeImpl& tape_;
  GradTable& table_;
  Recorder& level_;
  std::vector<bool> reached_;
  std::vector<bool> live_;
};

}  // namespace sherd::internal
