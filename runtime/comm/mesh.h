#pragma once

#include <memory>
#include <string>

#include "sherd/runtime/base/log.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/comm/store.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

// The groups of a mesh as one rank sees them.
struct MeshGroups {
  std::shared_ptr<ProcessGroup> all;        // every rank of the mesh
  std::shared_ptr<ProcessGroup> shard;      // holds the pieces of one copy of the parameters
  std::shared_ptr<ProcessGroup> replicate;  // holds the same piece of every copy
  std::string description;                  // of the job, for reports of failures; "" where unknown
};

// Which ranks share what. Along the inner axis, `shard`, ranks hold different pieces of a
// parameter; along the outer one, `replicate`, they hold the same piece. A mesh of one axis has
// one copy, and a replicate group of this rank alone.
//
// A handle: cheap to copy; copies share the groups. Keeps the groups alive, so units made from a
// mesh may outlive the World it came from.
// Threads: reading is safe; the groups have their own rules.
class Mesh {
 public:
  // A mesh of nothing, for members that are set later.
  Mesh() = default;
  // A mesh of one axis, all ranks of `shard_group`.
  // `device` is where this rank computes, `store` is shared by all ranks of the mesh.
  Mesh(std::shared_ptr<ProcessGroup> shard_group, std::shared_ptr<Store> store, Device device,
       LogSink log = {});
  // A mesh of two axes. See World::MakeMesh for one that fits together.
  // REQUIRES: no group is null; all->size() == shard->size() * replicate->size().
  Mesh(MeshGroups groups, std::shared_ptr<Store> store, Device device, LogSink log = {});

  bool defined() const { return groups_.all != nullptr; }
  // All three, to make another mesh of them. The references below stay valid while a copy lives.
  const MeshGroups& groups() const { return groups_; }

  // All ranks. REQUIRES (this and below): defined().
  ProcessGroup& group() const { return *groups_.all; }
  // Ranks that hold the pieces of one copy of the parameters.
  ProcessGroup& shard_group() const { return *groups_.shard; }
  // Ranks that hold the same piece: they sum its gradient after the shard group has.
  ProcessGroup& replicate_group() const { return *groups_.replicate; }
  // The same, for whoever outlives the mesh.
  const std::shared_ptr<ProcessGroup>& shared_group() const { return groups_.all; }
  const std::shared_ptr<ProcessGroup>& shared_shard_group() const { return groups_.shard; }
  const std::shared_ptr<ProcessGroup>& shared_replicate_group() const { return groups_.replicate; }

  int shard_rank() const { return groups_.shard->rank(); }
  int shard_size() const { return groups_.shard->size(); }
  // Which copy this rank has a piece of, and how many there are.
  int replicate_rank() const { return groups_.replicate->rank(); }
  int replicate_size() const { return groups_.replicate->size(); }
  // All ranks, whatever the axes: by this many does a sum over the mesh exceed a mean.
  int size() const { return groups_.all->size(); }

  // Keys set here are seen by every rank; use a prefix of your own.
  Store& store() const { return *store_; }
  // Where this rank computes and keeps its pieces.
  const Device& device() const { return device_; }
  const LogSink& log() const { return log_; }
  // What all copies of this mesh share beside the groups; the shard layer keeps its streams here.
  std::shared_ptr<void>& slot() const { return *slot_; }

 private:
  MeshGroups groups_;
  std::shared_ptr<Store> store_;
  Device device_;
  LogSink log_;
  std::shared_ptr<std::shared_ptr<void>> slot_;
};

}  // namespace sherd
