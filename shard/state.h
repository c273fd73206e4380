#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/optim/optimizer.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/shard/loss_scaler.h"

// [Note: saved states]
// A state is a folder "step-N" with a manifest and one safetensors file for each rank that had
// something to write: each rank writes the pieces it owns, and of pieces that several ranks own,
// one does. Pieces are intervals of flat parameters, so a state fits any number of ranks, any units
// and stages. The folder is written under another name and renamed when everything is on the disk:
// a folder "step-N" is complete, whenever a run was killed. All ranks need one file system.
namespace sherd {

// What is saved and loaded together.
struct TrainingState {
  // Sharded or not. Of a tied parameter there is one entry. To load into a sharded model it need
  // not have been initialised.
  Module* model = nullptr;
  // Null: its state is not saved, or not loaded.
  Optimizer* optimizer = nullptr;
  LossScaler* scaler = nullptr;  // likewise
  int64_t step = 0;              // optimizer steps made: Accumulation::steps()
  // The caller's own, the same on all ranks: the loader's position, the seed, the options of a run.
  std::map<std::string, std::string> entries;
};

struct SaveOptions {
  // How many of the newest states stay; 0: all. Those of steps that are multiples of keep_every
  // stay too; 0: none. A state goes after a newer one is complete.
  int64_t keep = 0;
  int64_t keep_every = 0;
  // Stands in each state, for whoever finds it: what Describe(world) says. "": DescribeBuild().
  std::string written_by;
};

// Saves states below one folder while training goes on.
//
// Threads: the one that trains; a thread "sherd/saver" writes between Begin and End.
// Ownership: `group` outlives this object. A save that is not ended leaves no state.
class StateSaver {
 public:
  // `root` is made by the first save.
  StateSaver(std::string root, ProcessGroup& group, SaveOptions options = {});
  ~StateSaver();
  StateSaver(const StateSaver&) = delete;
  StateSaver& operator=(const StateSaver&) = delete;

  // Takes the state as it is now and begins to write it. Afterwards the model may change.
  // COLLECTIVE, between steps. Cost: one copy of what this rank writes, and small messages; memory
  //   of the copy until End. Errors, the same on all ranks, with nothing changed: kInvalidArgument
  //   for a negative step; kFailedPrecondition while a save is open, for a parameter without
  //   values, or if ranks have other parameters, entries or steps; what the system says of the
  //   folder.
  absl::Status Begin(const TrainingState& state);
  // Whether End would not wait for this rank's file.
  bool done() const;
  // Waits until all ranks have written, and gives the state its name. Returns its folder.
  // COLLECTIVE. Errors, the same on all ranks, and no state is there then: what a rank met while it
  //   wrote; kFailedPrecondition without Begin, or if rank 0 does not see the files of another.
  absl::StatusOr<std::string> End();
  // Both.
  absl::StatusOr<std::string> Save(const TrainingState& state);

 private:
  struct Open;

  const std::string root_;
  ProcessGroup& group_;
  const SaveOptions options_;
  Device host_;  // where copies from a device with memory of its own wait
  std::unique_ptr<Open> open_;
};

// The newest complete state below `root`; nothing where there is none, or no folder.
// Errors: what the system says of a folder that cannot be read.
absl::StatusOr<std::optional<std::string>> LatestState(const std::string& root);

struct LoadOptions {
  // Whether everything that the model and the optimizer have must be in the state, and the reverse.
  // Other shapes and dtypes are errors in any case.
  bool strict = true;
};

// What was passed over; empty under LoadOptions::strict. "w" is a parameter's value, "m of w" an
// optimizer's tensor or count.
struct LoadReport {
  std::vector<std::string> missing;     // in the state, so left as it was
  std::vector<std::string> unexpected;  // in the model, so not loaded
};

// Sets model, optimizer, scaler, step and entries to those of the state in `folder`, whatever
// number of ranks saved it. What `state` has null is not loaded.
//
// COLLECTIVE, between steps. Cost: each rank reads the manifest, and of the files the blocks that
//   its pieces touch; no memory beside what it fills.
// Errors, the same on all ranks, with nothing changed: kInvalidArgument that lists all that is
//   missing, unexpected or of another shape or dtype, or for a manifest or file that contradicts
//   itself; kDataLoss naming file and tensor for a checksum that is wrong; kNotFound and others for
//   files that a rank cannot read; kFailedPrecondition for a parameter without memory.
absl::StatusOr<LoadReport> LoadState(const std::string& folder, TrainingState& state,
                                     ProcessGroup& group, const LoadOptions& options = {});

}  // namespace sherd
