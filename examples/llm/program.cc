#include "llm/program.h"

#include <sys/prctl.h>

#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/failure_file.h"

namespace llm {
namespace {

// What this rank alone may know, in one piece since all ranks share stderr.
void Complain(const std::string& name, const sherd::LaunchInfo& launch, const std::string& text) {
  const std::string who = launch.size > 1 ? absl::StrCat(" rank ", launch.rank) : "";
  const std::string line = absl::StrCat(name, who, ": ", text, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// torchrun shows the text of the rank that failed first.
void TellAgent(const std::string& name, const sherd::LaunchInfo& launch, const absl::Status& why) {
  const absl::Status written = sherd::WriteErrorFile(launch.error_file, why);
  if (!written.ok()) Complain(name, launch, std::string(written.message()));
}

// Says what this rank alone may know, and tells the agent. Returns the exit code.
int FailAlone(const std::string& name, const sherd::LaunchInfo& launch, const absl::Status& why,
              const std::string& text) {
  std::fflush(stdout);
  Complain(name, launch, text);
  TellAgent(name, launch, why);
  return kFailure;
}

// The other ranks are told why this one ends before its world is taken down.
absl::StatusOr<int> RunOrAbort(const std::function<absl::StatusOr<int>(sherd::World&)>& body,
                               sherd::World& world) {
  try {
    return body(world);
  } catch (const sherd::Error& error) {
    world.group().Abort(error.status());
    throw;
  }
}

}  // namespace

int Fail(const std::string& name, const sherd::LaunchInfo& launch, const absl::Status& why,
         int code) {
  if (launch.rank == 0) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", name.c_str(), std::string(why.message()).c_str());
  }
  return code;
}

int RunInWorld(const std::string& name, const sherd::LaunchInfo& launch,
               const sherd::WorldOptions& options,
               const std::function<absl::StatusOr<int>(sherd::World&)>& body) {
  // A rank whose launcher was killed would hold its memory and wait for peers that are gone.
  if (launch.launcher != sherd::Launcher::kNone) prctl(PR_SET_PDEATHSIG, SIGTERM);
  try {
    absl::StatusOr<sherd::World> world = sherd::World::FromLaunch(launch, options);
    if (!world.ok()) {
      return FailAlone(name, launch, world.status(), std::string(world.status().message()));
    }
    const absl::StatusOr<int> code = RunOrAbort(body, *world);
    if (!code.ok()) {
      TellAgent(name, launch, code.status());
      return Fail(name, launch, code.status(), kFailure);
    }
    if (absl::Status left = world->Finish(); !left.ok()) {
      return FailAlone(name, launch, left, std::string(left.message()));
    }
    return *code;
  } catch (const sherd::Error& error) {
    return FailAlone(name, launch, error.status(), error.what());
  }
}

}  // namespace llm
