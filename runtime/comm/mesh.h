#pragma once

#include <memory>
#include <utility>

#include "sherd/runtime/base/log.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/comm/store.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

// Which ranks share what: the ranks along the shard axis hold different pieces of a parameter.
//
// A handle: cheap to copy; copies share the group. Keeps the group alive, so units made from a mesh
// may outlive the World it came from.
// Threads: reading is safe; the group has its own rules.
class Mesh {
 public:
  // A mesh of nothing, for members that are set later.
  Mesh() = default;
  // A mesh of one axis, all ranks of `shard_group`.
  // `device` is where this rank computes, `store` is shared by all ranks of the mesh.
  Mesh(std::shared_ptr<ProcessGroup> shard_group, std::shared_ptr<Store> store, Device device,
       LogSink log = {})
      : shard_group_(std::move(shard_group)),
        store_(std::move(store)),
        device_(std::move(device)),
        log_(std::move(log)),
        slot_(std::make_shared<std::shared_ptr<void>>()) {}

  bool defined() const { return shard_group_ != nullptr; }
  // Ranks that hold the pieces of one copy of the parameters. REQUIRES (this and below): defined().
  ProcessGroup& shard_group() const { return *shard_group_; }
  // The same, for whoever outlives the mesh.
  const std::shared_ptr<ProcessGroup>& shared_shard_group() const { return shard_group_; }
  int shard_rank() const { return shard_group_->rank(); }
  int shard_size() const { return shard_group_->size(); }
  // All ranks, whatever the axes: by this many does a sum over the mesh exceed a mean.
  int size() const { return shard_group_->size(); }

  // Keys set here are seen by every rank; use a prefix of your own.
  Store& store() const { return *store_; }
  // Where this rank computes and keeps its pieces.
  const Device& device() const { return device_; }
  const LogSink& log() const { return log_; }
  // What all copies of this mesh share beside the group; the shard layer keeps its streams here.
  std::shared_ptr<void>& slot() const { return *slot_; }

 private:
  std::shared_ptr<ProcessGroup> shard_group_;
  std::shared_ptr<Store> store_;
  Device device_;
  LogSink log_;
  std::shared_ptr<std::shared_ptr<void>> slot_;
};

}  // namespace sherd
