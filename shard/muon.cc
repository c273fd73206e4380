#include "sherd/shard/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/internal/pieces.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/optimizer_step.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/newton_schulz.h"

namespace sherd {
namespace {

void Check(const MuonOptions& options) {
  const ErrorContext what{.op = "Muon"};
  if (!(options.momentum >= 0.0 && options.momentum < 1.0)) {
    ThrowInvalidArgument(absl::StrCat("momentum is from 0 to less than 1, got ", options.momentum),
                         what);
  }
  if (options.iterations < 1) {
    ThrowInvalidArgument(absl::StrCat("iterations are at least 1, got ", options.iterations), what);
  }
  if (options.round_elems < 1) {
    ThrowInvalidArgument(absl::StrCat("round_elems is at least 1, got ", options.round_elems),
                         what);
  }
}

bool TakesMuon(const Parameter& parameter, const MuonOptions& options) {
  return parameter.shape().rank() == 2 && parameter.requires_grad() &&
         !(options.leave_to_adamw && options.leave_to_adamw(parameter));
}

std::vector<Parameter> Select(const Module& model, const MuonOptions& options, bool muon) {
  std::vector<Parameter> selected;
  for (const Parameter& parameter : model.parameters()) {
    if (TakesMuon(parameter, options) == muon) selected.push_back(parameter);
  }
  if (muon && selected.empty()) {
    ThrowInvalidArgument(
        "the model has no trainable parameter of two dimensions that is not left to AdamW",
        {.op = "Muon"});
  }
  return selected;
}

double ScaleOf(const Shape& shape, MuonScale scale) {
  const double rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
  if (scale == MuonScale::kMatchAdamW) return 0.2 * std::sqrt(std::max(rows, columns));
  return std::sqrt(std::max(1.0, rows / columns));
}

Tensor Part(const Tensor& flat, int64_t begin, int64_t elems) {
  return Tensor::View(flat.storage(), flat.offset_elems() + begin, flat.dtype(), {elems});
}

}  // namespace

// What one round has in memory.
struct Muon::Work {
  const MuonRound& round;
  DType dtype;  // of what is computed and sent
  int rank;
  int ranks;
  std::vector<Tensor> wholes;  // [R C] of the round's matrices; undefined where another rank owns
  Tensor in;                   // the slots of all ranks
  Tensor out;

  bool Owns(size_t i) const { return round.owners[i] == rank; }
  Tensor Slot(const Tensor& all, int64_t slot, const MatrixMove& move) const {
    return Part(all, move.from * slot + move.at, move.piece.elems);
  }
  const Tensor& WholeOf(const MatrixMove& move) const {
    const auto at = std::find(round.matrices.begin(), round.matrices.end(), move.matrix);
    return wholes[static_cast<size_t>(at - round.matrices.begin())];
  }
  // Which of `moves` brings this piece of the matrix; null if none does.
  static const MatrixMove* Find(const std::vector<MatrixMove>& moves, int matrix, int64_t offset) {
    for (const MatrixMove& move : moves) {
      if (move.matrix == matrix && move.piece.offset == offset) return &move;
    }
    return nullptr;
  }
};

Muon::Muon(Module& model, MuonOptions options)
    : model_(model),
      context_(ContextOf(model)),
      options_((Check(options), std::move(options))),
      matrices_(std::make_unique<internal::OptimizerPieces>(
          Select(model, options_, true),
          internal::PieceOptions{.op = "Muon",
                                 .groups = options_.groups,
                                 .weight_decay = options_.weight_decay,
                                 .states = {"momentum"},
                                 .state_dtype = options_.moment_dtype})),
      parameters_(matrices_->parameters()) {
  std::vector<Parameter> rest = Select(model, options_, false);
  if (rest.empty()) return;
  parameters_.insert(parameters_.end(), rest.begin(), rest.end());
  rest_ = std::make_unique<AdamW>(std::move(rest), options_.adamw);
}

Muon::~Muon() = default;

void Muon::VisitState(OptimizerStateVisitor& visitor) {
  matrices_->VisitState(visitor);
  if (rest_ != nullptr) rest_->VisitState(visitor);
}

void Muon::Step(const StepOptions& options) {
  if (context_ != nullptr) context_->CheckUsable();
  if (places_.empty()) AgreeOnPieces();
  std::vector<int> in_use = AgreeOnUse();
  if (in_use != in_use_) {
    const int ranks = context_ != nullptr ? context_->control().size() : 1;
    rounds_ = PlanMuon(places_, in_use, ranks, options_.round_elems);
    in_use_ = std::move(in_use);
  }
  for (const MuonRound& round : rounds_) Run(round, options);
  if (rest_ != nullptr) rest_->Step(options);
}

// Who holds what is asked, not derived: any way of cutting parameters will do.
void Muon::AgreeOnPieces() {
  const std::vector<Parameter>& matrices = matrices_->parameters();
  std::vector<int64_t> own;
  for (const Parameter& parameter : matrices) {
    if (!parameter.local().defined()) {
      ThrowFailedPrecondition(
          absl::StrCat("parameter '", parameter.name(), "' has no memory yet: initialise it first"),
          {.op = "Muon"});
    }
    own.push_back(parameter.local_offset());
    own.push_back(parameter.local().numel());
  }
  const size_t ranks = context_ != nullptr ? static_cast<size_t>(context_->control().size()) : 1;
  std::vector<int64_t> all(ranks * own.size());
  if (ranks == 1) {
    all = own;
  } else {
    context_->control().AllGather(
        own.data(), all.data(), static_cast<int64_t>(own.size() * sizeof(int64_t)), {.op = "Muon"});
  }
  for (size_t m = 0; m < matrices.size(); ++m) {
    MatrixPlace& place = places_.emplace_back();
    place.elems = matrices[m].numel();
    place.kind = static_cast<int>(ComputeDTypeOf(matrices[m].dtype()));
    for (size_t rank = 0; rank < ranks; ++rank) {
      const int64_t* const piece = &all[rank * own.size() + 2 * m];
      place.pieces.push_back({piece[0], piece[1]});
    }
  }
}

// The matrices that any rank has a gradient of. Marks the parameters of units on all ranks, so that
// AdamW steps alike on them too.
std::vector<int> Muon::AgreeOnUse() {
  const std::vector<Unit*> units = UnitsOf(model_);
  std::vector<int32_t> counts;
  for (Unit* unit : units) {
    for (int i = 0; i < unit->parameters(); ++i) counts.push_back(unit->used(i) ? 1 : 0);
  }
  const size_t outside = counts.size();
  for (const Parameter& parameter : parameters_) {
    if (parameter.state().host != nullptr) continue;
    counts.push_back(parameter.local_grad().defined() ? 1 : 0);
  }
  const int ranks = context_ != nullptr ? context_->control().size() : 1;
  if (ranks > 1) {
    context_->control().AllReduce(counts.data(), static_cast<int64_t>(counts.size()), DType::kI32,
                                  {.op = "Muon"});
  }
  size_t next = 0;
  for (Unit* unit : units) {
    for (int i = 0; i < unit->parameters(); ++i) {
      if (counts[next++] > 0) unit->MarkUsed(i);
    }
  }
  next = outside;
  for (const Parameter& parameter : parameters_) {
    if (parameter.state().host != nullptr) continue;
    const int32_t count = counts[next++];
    if (count == 0 || count == ranks) continue;
    ThrowFailedPrecondition(
        absl::StrCat("parameter '", parameter.name(), "' is in no unit and has a gradient on ",
                     count, " of ", ranks, " ranks"),
        {.op = "Muon"});
  }
  std::vector<int> in_use;
  const std::vector<Parameter>& matrices = matrices_->parameters();
  for (size_t m = 0; m < matrices.size(); ++m) {
    if (matrices[m].local_grad().defined()) in_use.push_back(static_cast<int>(m));
  }
  return in_use;
}

void Muon::Run(const MuonRound& round, const StepOptions& options) {
  const Parameter& first = matrices_->parameters()[static_cast<size_t>(round.matrices.front())];
  const Device& device = first.local().device();
  Work work{round, ComputeDTypeOf(first.dtype()), 0, 1, {}, {}, {}};
  if (context_ != nullptr) {
    work.rank = context_->control().rank();
    work.ranks = context_->control().size();
  }
  const auto empty = [&](int64_t elems) {
    return Tensor::Empty(device, work.dtype, {elems}, MemoryCategory::kWorkspace);
  };
  for (size_t i = 0; i < round.matrices.size(); ++i) {
    const MatrixPlace& place = places_[static_cast<size_t>(round.matrices[i])];
    work.wholes.push_back(work.Owns(i) ? empty(place.elems) : Tensor());
  }
  if (round.in_slot > 0) work.in = empty(work.ranks * round.in_slot);
  TakeMomentum(work, options);
  Gather(work);
  work.in = Tensor();
  for (size_t i = 0; i < round.matrices.size(); ++i) {
    if (!work.Owns(i)) continue;
    const Shape& shape = matrices_->parameters()[static_cast<size_t>(round.matrices[i])].shape();
    Orthogonalize(work.wholes[i].Reshape(shape), options_.iterations);
  }
  if (round.out_slot > 0) work.out = empty(work.ranks * round.out_slot);
  SendBack(work);
  Apply(work, options);
}

// Each piece of momentum goes straight to where the matrix is assembled, or where it is sent from.
void Muon::TakeMomentum(Work& work, const StepOptions& options) {
  for (size_t i = 0; i < work.round.matrices.size(); ++i) {
    const int matrix = work.round.matrices[i];
    const size_t m = static_cast<size_t>(matrix);
    const Parameter& parameter = matrices_->parameters()[m];
    const MatrixPiece& piece = places_[m].pieces[static_cast<size_t>(work.rank)];
    matrices_->CountStep(m);
    if (piece.elems == 0) continue;
    Tensor update;
    if (work.Owns(i)) {
      update = Part(work.wholes[i], piece.offset, piece.elems);
    } else {
      const MatrixMove* move = Work::Find(work.round.in, matrix, piece.offset);
      const bool sends = move != nullptr && move->from == work.rank;
      // Another rank sends the same piece, or the owner has it: only the momentum is wanted here.
      update = sends ? work.Slot(work.in, work.round.in_slot, *move)
                     : Tensor::Empty(parameter.local().device(), work.dtype, {piece.elems},
                                     MemoryCategory::kWorkspace);
    }
    kernels::MomentumStep(update, parameter.local_grad(), matrices_->StateOf(m, 0),
                          {.momentum = options_.momentum,
                           .grad_scale = options.grad_scale,
                           .nesterov = options_.nesterov});
  }
}

void Muon::Gather(Work& work) {
  if (work.round.in_slot == 0) return;
  const int64_t bytes = work.round.in_slot * SizeOf(work.dtype);
  char* const all = static_cast<char*>(work.in.raw());
  context_->control().AllGather(all + work.rank * bytes, all, bytes, {.op = "Muon"});
  for (const MatrixMove& move : work.round.in) {
    const Tensor& whole = work.WholeOf(move);
    if (!whole.defined()) continue;
    kernels::Copy(work.Slot(work.in, work.round.in_slot, move),
                  Part(whole, move.piece.offset, move.piece.elems));
  }
}

void Muon::SendBack(Work& work) {
  if (work.round.out_slot == 0) return;
  for (const MatrixMove& move : work.round.out) {
    if (move.from != work.rank) continue;
    const Tensor& whole = work.WholeOf(move);
    kernels::Copy(Part(whole, move.piece.offset, move.piece.elems),
                  work.Slot(work.out, work.round.out_slot, move));
  }
  const int64_t bytes = work.round.out_slot * SizeOf(work.dtype);
  char* const all = static_cast<char*>(work.out.raw());
  context_->control().AllGather(all + work.rank * bytes, all, bytes, {.op = "Muon"});
}

void Muon::Apply(const Work& work, const StepOptions& options) {
  for (size_t i = 0; i < work.round.matrices.size(); ++i) {
    const int matrix = work.round.matrices[i];
    const size_t m = static_cast<size_t>(matrix);
    const Parameter& parameter = matrices_->parameters()[m];
    const MatrixPiece& piece = places_[m].pieces[static_cast<size_t>(work.rank)];
    const Tensor local = parameter.MutableLocal();
    if (piece.elems == 0) continue;
    const MatrixMove* move =
        work.Owns(i) ? nullptr : Work::Find(work.round.out, matrix, piece.offset);
    const Tensor update = move != nullptr ? work.Slot(work.out, work.round.out_slot, *move)
                                          : Part(work.wholes[i], piece.offset, piece.elems);
    const internal::PieceSettings& settings = matrices_->settings(m);
    // Without a momentum of its own this is decoupled decay and one scaled addition.
    kernels::SgdStep(local, update, Tensor(),
                     {.lr = options.learning_rate * settings.lr_scale,
                      .weight_decay = settings.weight_decay,
                      .grad_scale = ScaleOf(parameter.shape(), options_.scale)});
  }
}

}  // namespace sherd
