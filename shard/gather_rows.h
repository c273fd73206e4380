#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/variable.h"
#include "sherd/autograd/visit.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// [Note: collectives on the tape]
// Ops that talk to other ranks, as any other op: recorded, with a gradient, inside modules and
// checkpointed regions. Each runs once for each forward and once for each backward; the recompute
// of a region takes what its first pass kept and sends nothing.
//
// The gradient of a collective is one too, so it has to run on every rank: a backward on all ranks,
// of roots that depend on the result on all of them. A rank without rows of its own still has a
// loss, of no items, and gives it to its backward. If x wants a gradient on any rank, all record
// the call, those with a constant too.
//
// COLLECTIVE, all of them, on the thread of the caller, in one order on all ranks with whatever
// else uses `group`; with a mesh the channel is the mesh's own for small agreements. Ownership: the
// group, or the mesh and what is sharded over it, outlives the tape's record.
// Errors: sherd::Error. kInvalidArgument on all ranks, naming the rank, for x that do not fit
// together or if some ranks record and others do not; then the group goes on to be usable. Those of
// a collective if ranks make different calls, one is gone, or one aborts its group, which is what a
// rank that throws in between has to do, and a sharded model does. An undefined x aborts it.

// The rows of all ranks, in rank order.
struct GatheredRows {
  Variable rows;                // [sum of counts, ...]
  std::vector<int64_t> counts;  // rows by rank
  int64_t begin = 0;            // the first of this rank's own
};
inline void VisitVariables(GatheredRows& gathered, const VariableVisitor& visit) {
  visit(gathered.rows);
}

// Puts the rows of all ranks one after another, in rank order.
//
// The gradient of x is the SUM of what the ranks' losses want of its rows: what each rank's
// backward has for the gathered rows is reduce-scattered to the owners, summed in rank order.
// Shapes: x [rows, ...], with any number of rows on each rank, also none; the rest is the same on
//   all ranks. Dtypes: any; only floats have a gradient, and sums of 16 bits are taken in f32.
// Cost: one exchange of 88 bytes a rank, in which the lengths are agreed on. With W ranks and n =
//   the most rows of one: forward and backward send (W - 1) n rows each from every rank, so ranks
//   of very different lengths pay for the longest. Equal lengths: gathered in place, without a
//   copy, and reduced from the gradient itself. Others: W n rows of staging, freed at once.
// Nothing is kept for the backward.
GatheredRows AllGatherRows(const Variable& x, ProcessGroup& group,
                           CallSite site = CallSite::Here());
GatheredRows AllGatherRows(const Variable& x, const Mesh& mesh, CallSite site = CallSite::Here());

// The same without a gradient, for labels and ids.
Tensor GatherRowsOf(const Tensor& x, ProcessGroup& group, CallSite site = CallSite::Here());
Tensor GatherRowsOf(const Tensor& x, const Mesh& mesh, CallSite site = CallSite::Here());

// The sum of the ranks' x, on all ranks; the gradient is the sum of the ranks' gradients.
//
// Shapes: one shape on all ranks. Dtypes: floats. Cost: as AllGatherRows' exchange, then one
// all-reduce forward and one backward; one copy each.
Variable AllReduceSum(const Variable& x, ProcessGroup& group, CallSite site = CallSite::Here());
Variable AllReduceSum(const Variable& x, const Mesh& mesh, CallSite site = CallSite::Here());

}  // namespace sherd
