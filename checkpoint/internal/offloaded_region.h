#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "sherd/autograd/internal/region.h"
#include "sherd/checkpoint/offload.h"

namespace sherd::internal {

// What one checkpointed call has sent to host memory.
class OffloadedRegion {
 public:
  // Takes the kept values out of `notes` and sends them away, but for those whose storage is in
  // `stays`. `what` names the call in errors.
  OffloadedRegion(std::shared_ptr<Offload> offload, RegionNotes& notes,
                  std::span<const Storage* const> stays, const std::string& what);
  ~OffloadedRegion();
  OffloadedRegion(const OffloadedRegion&) = delete;
  OffloadedRegion& operator=(const OffloadedRegion&) = delete;

  // Puts the values back into the notes, after waiting for them, and begins to fetch those of the
  // calls before. With `retain` the host keeps its copies, for another recompute.
  // Errors: those of the copies, with the name of the call.
  void Restore(RegionNotes& notes, bool retain);
  // After a recompute that retained them: frees the device's copies again.
  void Release(RegionNotes& notes);
  int64_t bytes() const { return bytes_; }

 private:
  struct Value;
  struct Values;
  void BeginFetch(bool retain);

  std::shared_ptr<Offload> offload_;
  std::shared_ptr<Values> values_;  // shared with the jobs
  const std::string what_;
  int64_t bytes_ = 0;
  Work fetched_;
  bool fetching_ = false;
  bool back_ = false;  // on the device for good: fetched for a backward that retained nothing
};

}  // namespace sherd::internal
