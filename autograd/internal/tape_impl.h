#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sherd/autograd/internal/arena.h"
#include "sherd/autograd/internal/grad_table.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/autograd/op.h"

namespace sherd::internal {

// One recorded op. Lives in the arena of its tape, with everything its spans point to.
struct Node {
  Op* op = nullptr;  // null: consumed by a backward
  std::string_view name;
  std::span<Ref<Ident>> inputs;  // empty where no gradient is wanted
  std::span<Ref<Ident>> outputs;
  std::span<TensorSpec> input_specs;
  std::span<Tensor> saved;  // inputs that backward reads, then outputs, then inner values
  uint32_t reads_inputs = 0;
  uint32_t reads_outputs = 0;
  std::span<ParameterRead> reads;
  const Module* module = nullptr;
  CallSite site;
  uint64_t random_key = 0;
  uint64_t mark = 0;         // the last walk that reaches it
  bool always_live = false;  // until a backward has run it, whether roots depend on it or not
  std::shared_ptr<const RandomContext> random;
  Device device;

  ~Node();
  // Gives up the op and everything it saved, when backward needs them no more.
  void Consume();
};

struct Scope {
  ScopeObserver* observer = nullptr;
  const Module* module = nullptr;
  bool always_live = false;  // until a backward has entered it
  uint64_t mark = 0;         // the last walk it is live in
  int64_t close = -1;        // entry index of the closing bracket
};

// A region's node and who observes the calls inside, which its backward records and enters. Its
// node keeps them until it is consumed.
struct ObservedRegion {
  const Node* node;
  std::span<ScopeObserver* const> observers;
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

// How many of everything a node has.
struct NodeSizes {
  size_t inputs = 0, outputs = 0, specs = 0, saved = 0, reads = 0;
};

class TapeImpl {
 public:
  TapeImpl();
  explicit TapeImpl(std::shared_ptr<Family> family);
  ~TapeImpl();

  // A new node with spans of those sizes; `op` is moved into the arena.
  Node& AddNode(const OpValue& op, const NodeSizes& sizes);
  // The identity of a new variable of `home`.
  Ref<Ident> NewIdent(const Ref<Home>& home);
  int64_t OpenScope(ScopeObserver& observer, const Module* module, bool always_live);
  void CloseScope(int64_t scope);
  void Reset();

  Tape* owner = nullptr;  // null for a recompute's
  std::shared_ptr<Family> family;
  Ref<Home> home;
  std::vector<Entry> entries;
  std::vector<Node*> nodes;
  std::vector<Scope> scopes;
  std::vector<ObservedRegion> regions;
  std::vector<int64_t> open_scopes;
  int64_t ops = 0;       // those inside checkpointed regions too
  bool walking = false;  // a backward runs
  std::unique_ptr<GradTable> spare_table;

 private:
  void DestroyNodes();
  Arena arena_;
};

// One backward over one tape.
class Walk {
 public:
  // `level` describes the tape being walked, as the outer level of recomputes.
  Walk(TapeImpl& tape, GradTable& table, Recorder& level, bool retain)
      : tape_(tape), table_(table), level_(level), retain_(retain) {}

  // Adds the seeds, scaled as observers say, then walks. Errors: see Tape::Backward; entered scopes
  // are abandoned.
  void Run(std::span<const Ref<Ident>> roots, std::span<const Tensor> seeds);

  TapeImpl& tape() { return tape_; }
  GradTable& table() { return table_; }
  Recorder& level() { return level_; }
  bool retain() const { return retain_; }

 private:
  friend class sherd::OpBackward;
  // A parameter with hooks, and the node whose backward contributes to it last.
  struct Awaited {
    Ref<ParameterState> parameter;
    size_t node = 0;
  };
  void Mark(std::span<const Ref<Ident>> roots);
  void MarkScopes();
  // What the observers of the marked calls multiply the seeds by, and whether `any` has a say.
  double SeedFactor(bool& any) const;
  void RunNode(Node& node);
  void CheckVersions(const Node& node) const;
  void Await(const Node& node, size_t k);
  void RunParameterHooks(size_t node);

  TapeImpl& tape_;
  GradTable& table_;
  Recorder& level_;
  const bool retain_;
  uint64_t mark_ = 0;
  std::vector<Awaited> awaited_;
};

}  // namespace sherd::internal
