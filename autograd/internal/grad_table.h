#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/parameter.h"
#include "sherd/autograd/variable.h"

namespace sherd {
class ScopeObserver;
}

namespace sherd::internal {

// Gradients on their way, shared by a backward and the backwards nested in it; dropped on error.
//
// An identity knows its place in the table of the backward that runs, so finding it costs one
// comparison. A leaf may take part in two backwards at once (a hook of one ran the other, on
// another tape); in the second table each of its contributions has a place of its own until they
// are added.
class GradTable {
 public:
  GradTable() = default;
  GradTable(const GradTable&) = delete;
  GradTable& operator=(const GradTable&) = delete;
  ~GradTable() { Clear(); }

  // A buffer to write the next contribution to. Of a parameter, it has the dtype its gradient is
  // kept in, whatever `dtype` says.
  GradTarget Target(Ident& ident, DType dtype, const Shape& shape, const Device& device);
  // Takes a finished contribution; shares its memory when it is the first. Of a parameter, it is
  // cast to the dtype the gradient is kept in.
  void Accumulate(Ident& ident, Tensor gradient);
  // Removes and returns; undefined if nothing arrived.
  Tensor Take(Ident& ident);
  // Runs the hooks of leaves and moves what arrived at leaves into their grad.
  void CommitLeaves();
  // An observer's call was left; for EndScopes, which tells each of them once.
  void NoteScope(ScopeObserver* observer);
  void EndScopes();
  // Forgets everything.
  void Clear();

 private:
  struct Slot {
    Ref<Ident> ident;  // empty: free
    Tensor grad;
  };
  // The slot of `ident`; null if it has none.
  Slot* Find(const Ident& ident);
  Slot& Add(Ident& ident);
  void Release(Slot& slot);

  std::vector<ScopeObserver*> observers_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace sherd::internal
