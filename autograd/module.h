#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sherd/autograd/parameter.h"

namespace sherd {

class Interceptor;

// A named tree of parameters, and the place where wrappers attach to a module's calls.
//
// A concrete module declares its parameters and children in its constructor and defines a call
// operator through the call seam (call.h). Modules are neither copied nor moved: parameters, tapes
// and wrappers refer to them.
// Ownership: children are usually members. A module that a std::shared_ptr owns is kept alive by
// the checkpoints on a tape that will run its body again, and so is one below such a module.
// REQUIRES: any other module outlives the record of every tape that recorded its calls.
class Module : public std::enable_shared_from_this<Module> {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // The name given by the parent; empty at the root.
  const std::string& name() const { return name_; }
  uint64_t name_hash() const { return name_hash_; }
  // The dotted path from the root: "blocks.3.attention"; empty at the root.
  std::string path() const;
  const Module* parent() const { return parent_; }
  const std::vector<Module*>& children() const { return children_; }
  // Keeps this module alive while it is held: the shared owners of the module and of those above
  // it, as far as there are any.
  std::vector<std::shared_ptr<const Module>> HoldAlive() const;

  // All parameters below this module, each once (tied ones under their first name), parents before
  // children, in order of registration.
  std::vector<Parameter> parameters() const;
  // The parameters registered at this module itself, tied ones included.
  const std::vector<Parameter>& own_parameters() const { return own_parameters_; }

  // Wraps the calls of this module in `interceptor`, around those that are there already.
  void AddInterceptor(std::shared_ptr<Interceptor> interceptor);
  // Outermost first.
  const std::vector<std::shared_ptr<Interceptor>>& interceptors() const { return interceptors_; }

 protected:
  // Declares a parameter; it has no memory before Initialize. Errors: kInvalidArgument for a name
  // that is taken, is empty or has a dot.
  Parameter RegisterParameter(std::string_view name, const Shape& shape, Initializer initializer,
                              DType dtype = DType::kF32);
  // Lists a parameter of another module here too: a tied weight. It keeps its first name.
  void RegisterTied(const Parameter& parameter);
  // Makes `child` a part of this module. Errors: as above, or a child that has a parent.
  void RegisterModule(std::string_view name, Module& child);

 private:
  void CheckName(std::string_view name) const;
  void Collect(std::vector<Parameter>& out) const;

  std::string name_;
  uint64_t name_hash_ = 0;
  Module* parent_ = nullptr;
  std::vector<Module*> children_;
  std::vector<Parameter> own_parameters_;
  std::vector<std::shared_ptr<Interceptor>> interceptors_;
};

// Gives every parameter below `module` memory on `device` if it has none, and its first values.
//
// Sharded parameters fill only the piece this rank owns, with exactly the values an unsharded
// initialisation gives. Cost: no communication.
void Initialize(Module& module, const Device& device, uint64_t seed);

}  // namespace sherd
