#pragma once

#include <cstdint>
#include <span>

#include "sherd/autograd/module.h"

namespace sherd {

class Unit;

// Which norm of all gradients together, as one long vector.
enum class NormType : uint8_t {
  kOne,  // the sum of magnitudes
  kTwo,  // the root of the sum of squares
  kInf,  // the largest magnitude
};

// How many numbers the ranks sum to agree on a norm: 1, or one for each rank for kInf, since
// collectives only sum and a maximum needs every rank's own.
int64_t NormSlots(NormType type, int ranks);

// Writes what this rank knows of the norm of the model's gradients into `slots`, to be summed over
// the ranks, in whatever message is on its way anyhow, and given to TotalNorm.
//
// Every element counts once: pieces of units on the first of the ranks that hold the same piece,
// parameters outside of units on rank 0, tied parameters under their first name. Sums are taken in
// f64, whatever the gradients' dtype. Frozen parameters and those nobody used count nothing; what
// only other ranks used counts where its pieces are.
// Shapes: slots has NormSlots(type, ranks) elements.
// Cost: one pass over the local gradients; waits for reductions.
// REQUIRES: gradients are finished (Unit::FinishGradients); parameters outside of units have the
// same gradient on all ranks.
void LocalNormPart(const Module& model, NormType type, int rank, std::span<double> slots);
// The same for who knows UnitsOf(model) already.
void LocalNormPart(const Module& model, std::span<Unit* const> units, NormType type, int rank,
                   std::span<double> slots);

// The norm of the summed slots: the same bits on all ranks. NaN or infinity if any gradient is.
double TotalNorm(NormType type, std::span<const double> slots);

// What gradients are multiplied with so that their norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), and 1 for a norm that is not finite.
// Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks"; the small
// number keeps a norm of zero from dividing and is the one that PyTorch uses.
double ClipCoefficient(double norm, double max_norm);

// Multiplies the gradients that this rank holds, whether it counts them or not.
void ScaleGradients(const Module& model, double factor);

struct ClipGradOptions {
  NormType norm_type = NormType::kTwo;
};

// Scales all gradients in place by ClipCoefficient of their norm, the same on all ranks, and
// returns the norm before. A norm that is not finite is returned and nothing is scaled.
//
// For loops without a window; a window's Finish does this itself, without a message of its own.
// COLLECTIVE over the ranks of the model's units: one all-reduce of NormSlots numbers, after the
//   reductions that backwards without synchronisation have left.
// Errors: kInvalidArgument for a max_norm that is negative or NaN (infinity only measures);
//   kFailedPrecondition after a failed step.
double ClipGradNorm(Module& model, double max_norm, ClipGradOptions options = {});

}  // namespace sherd
