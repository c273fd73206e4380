#include "sherd/runtime/comm/mesh.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/local_group.h"

namespace sherd {

Mesh::Mesh(std::shared_ptr<ProcessGroup> shard_group, std::shared_ptr<Store> store, Device device,
           LogSink log)
    : Mesh(MeshGroups{shard_group, shard_group, MakeLocalGroup(), ""}, std::move(store),
           std::move(device), std::move(log)) {}

Mesh::Mesh(MeshGroups groups, std::shared_ptr<Store> store, Device device, LogSink log)
    : groups_(std::move(groups)),
      store_(std::move(store)),
      device_(std::move(device)),
      log_(std::move(log)),
      slot_(std::make_shared<std::shared_ptr<void>>()) {
  SHERD_CHECK(size() == shard_size() * replicate_size(),
              absl::StrCat(size(), " ranks, ", shard_size(), " x ", replicate_size()));
}

}  // namespace sherd
