#include "sherd/autograd/tape.h"

#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/internal/tape_impl.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace internal {

TapeImpl::TapeImpl() : TapeImpl(std::make_shared<Family>()) {}

TapeImpl::TapeImpl(std::shared_ptr<Family> shared_family) : family(std::move(shared_family)) {
  home = MakeRef<Home>("a tape that was reset or is another one");
}

TapeImpl::~TapeImpl() { DestroyNodes(); }

Node::~Node() {
  Consume();
  std::destroy(inputs.begin(), inputs.end());
  std::destroy(outputs.begin(), outputs.end());
  std::destroy(saved.begin(), saved.end());
  std::destroy(reads.begin(), reads.end());
}

void Node::Consume() {
  if (op == nullptr) return;
  std::exchange(op, nullptr)->~Op();
  for (Tensor& tensor : saved) tensor = Tensor();
  for (Ref<Ident>& input : inputs) input = Ref<Ident>();
  random = nullptr;
}

Node& TapeImpl::AddNode(const OpValue& op, const NodeSizes& sizes) {
  static_assert(std::is_trivially_destructible_v<TensorSpec>);
  Node& node = *new (arena_.Allocate(sizeof(Node))) Node();
  entries.push_back({EntryKind::kNode, static_cast<int64_t>(nodes.size())});
  nodes.push_back(&node);
  node.inputs = arena_.Array<Ref<Ident>>(sizes.inputs);
  node.outputs = arena_.Array<Ref<Ident>>(sizes.outputs);
  node.input_specs = arena_.Array<TensorSpec>(sizes.specs);
  node.saved = arena_.Array<Tensor>(sizes.saved);
  node.reads = arena_.Array<ParameterRead>(sizes.reads);
  node.op = op.move_to(op.op, arena_.Allocate(op.bytes));
  node.name = node.op->name();
  return node;
}

void TapeImpl::DestroyNodes() {
  for (Node* node : nodes) node->~Node();
  nodes.clear();
  arena_.Reset();
}

Ref<Ident> TapeImpl::NewIdent(const Ref<Home>& variable_home) {
  Ref<Ident> ident = MakeRef<Ident>();
  ident->birth = ++family->births;
  ident->home = variable_home;
  return ident;
}

int64_t TapeImpl::OpenScope(ScopeObserver& observer, const Module* module, bool always_live) {
  const int64_t scope = static_cast<int64_t>(scopes.size());
  scopes.push_back({&observer, module, always_live});
  entries.push_back({EntryKind::kOpen, scope});
  open_scopes.push_back(scope);
  return scope;
}

void TapeImpl::CloseScope(int64_t scope) {
  // A reset inside an open scope forgot it; there is no bracket left to pair.
  if (open_scopes.empty() || open_scopes.back() != scope) return;
  open_scopes.pop_back();
  entries.push_back({EntryKind::kClose, scope});
}

void TapeImpl::Reset() {
  entries.clear();
  DestroyNodes();
  scopes.clear();
  regions.clear();
  open_scopes.clear();
  ops = 0;
  home = MakeRef<Home>(home->description);
}

}  // namespace internal

namespace {

using internal::CurrentThread;

// A tape records into its current home, which Reset changes under a Recording that goes on.
void Refresh(internal::Recorder& recorder) {
  if (recorder.notes == nullptr) recorder.home = recorder.tape->home;
}

}  // namespace

Tape::Tape() : impl_(std::make_unique<internal::TapeImpl>()) { impl_->owner = this; }
Tape::~Tape() = default;

int64_t Tape::ops() const { return static_cast<int64_t>(impl_->nodes.size()); }

void Tape::Reset() {
  if (impl_->walking) {
    ThrowFailedPrecondition("called by a hook of a backward over this tape", {.op = "reset"});
  }
  impl_->Reset();
  for (internal::Recorder* r = CurrentThread().recorder; r != nullptr; r = r->outer) {
    if (r->tape == impl_.get()) Refresh(*r);
  }
}

void Tape::Backward(const Variable& root, double seed, BackwardOptions options, CallSite site) {
  if (!root.defined() || root.value().numel() != 1) {
    ThrowInvalidArgument(absl::StrCat("backward starts from one element, got ",
                                      root.value().ToString(), "; pass seeds for other roots"),
                         {.op = "backward", .site = site});
  }
  Tensor seeds = Tensor::Empty(root.value().device(), root.dtype(), root.shape());
  kernels::Fill(seeds, seed);
  Backward(std::span(&root, 1), std::span(&seeds, 1), options, site);
}

void Tape::Backward(std::span<const Variable> roots, std::span<const Tensor> seeds,
                    BackwardOptions options, CallSite site) {
  const ErrorContext context{.op = "backward", .site = site};
  if (roots.size() != seeds.size()) {
    ThrowInvalidArgument(
        absl::StrCat(roots.size(), " roots need as many seeds, got ", seeds.size()), context);
  }
  if (impl_->walking) {
    ThrowFailedPrecondition("called by a hook of a backward over the same tape", context);
  }
  if (!impl_->open_scopes.empty()) {
    const internal::Scope& scope = impl_->scopes[static_cast<size_t>(impl_->open_scopes.back())];
    ThrowFailedPrecondition(absl::StrCat("called inside the open call of ",
                                         internal::PathOf(scope.module), "; return from it first"),
                            context);
  }
  absl::InlinedVector<Ref<internal::Ident>, 4> idents;
  for (size_t i = 0; i < roots.size(); ++i) {
    const Variable& root = roots[i];
    if (!root.requires_grad()) {
      ThrowFailedPrecondition(
          "the root depends on nothing that wants a gradient, or was not recorded", context);
    }
    if (root.ident()->home && !(root.ident()->home == impl_->home)) {
      ThrowFailedPrecondition(absl::StrCat("the root belongs to ", root.ident()->home->description),
                              context);
    }
    const Tensor& seed = seeds[i];
    if (!seed.defined() || !(root.shape() == seed.shape()) || root.dtype() != seed.dtype() ||
        !(root.value().device() == seed.device())) {
      ThrowInvalidArgument(
          absl::StrCat("a seed has the shape, dtype and device of its root: the root is ",
                       root.value().ToString(), ", the seed is ", seed.ToString()),
          context);
    }
    idents.push_back(root.ident());
  }
  struct Restore {
    bool& flag;
    const bool before;
    explicit Restore(bool& f) : flag(f), before(f) {}
    ~Restore() { flag = before; }
  };
  const Restore walking(impl_->walking), scaled(CurrentThread().scaled);
  impl_->walking = true;
  std::unique_ptr<internal::GradTable> table = std::move(impl_->spare_table);
  if (table == nullptr) table = std::make_unique<internal::GradTable>();
  const internal::RecorderGuard off(nullptr);
  internal::Recorder level;
  level.tape = impl_.get();
  level.home = impl_->home;
  internal::Walk(*impl_, *table, level, options.retain).Run(idents, seeds);
  table->EndScopes();
  table->CommitLeaves();
  impl_->spare_table = std::move(table);
}

struct Recording::State {
  internal::Recorder recorder;
  internal::CallFrame root;
  internal::CallFrame* previous_frame = nullptr;
};

Recording::Recording(Tape& tape, RecordingOptions options) : state_(std::make_unique<State>()) {
  internal::ThreadState& thread = CurrentThread();
  auto random = std::make_shared<internal::RandomContext>();
  random->seed = options.seed;
  random->step = options.step;
  random->samples = std::move(options.samples);
  state_->root.random = std::move(random);
  state_->recorder.outer = thread.recorder;
  state_->recorder.tape = &tape.impl();
  state_->recorder.root = true;
  Refresh(state_->recorder);
  state_->previous_frame = std::exchange(thread.frame, &state_->root);
  thread.recorder = &state_->recorder;
}

Recording::~Recording() {
  CurrentThread().recorder = state_->recorder.outer;
  CurrentThread().frame = state_->previous_frame;
}

void Recording::SetSamples(std::vector<int64_t> samples) {
  auto random = std::make_shared<internal::RandomContext>(*state_->root.random);
  random->samples = std::move(samples);
  state_->root.random = std::move(random);
}

Tape* CurrentTape() {
  for (internal::Recorder* r = CurrentThread().recorder; r != nullptr; r = r->outer) {
    if (r->tape->owner != nullptr) return r->tape->owner;
  }
  return nullptr;
}

bool IsRecording() { return CurrentThread().recorder != nullptr; }

bool InRecompute() { return ScopeGuard::InRecompute(); }

ScopeGuard::ScopeGuard(ScopeObserver& observer, const Module* module, bool always_live) {
  if (!OnTape()) {
    const internal::Recorder* recorder = CurrentThread().recorder;
    if (recorder == nullptr) return;
    region_ = recorder->notes;
    region_->OpenScope(observer, always_live);
    return;
  }
  tape_ = CurrentThread().recorder->tape;
  open_ = tape_->OpenScope(observer, module, always_live);
}

ScopeGuard::~ScopeGuard() {
  if (tape_ != nullptr) tape_->CloseScope(open_);
  if (region_ != nullptr) region_->CloseScope();
}

bool ScopeGuard::OnTape() {
  const internal::Recorder* recorder = CurrentThread().recorder;
  return recorder != nullptr && recorder->notes == nullptr;
}

bool ScopeGuard::InRecompute() {
  for (const internal::Recorder* r = CurrentThread().recorder; r != nullptr; r = r->outer) {
    if (r->recompute) return true;
  }
  return false;
}

}  // namespace sherd
