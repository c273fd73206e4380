#include "sherd/runtime/cpu/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "sherd/runtime/base/error.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

TEST(IsaTest, BaselineIsAlwaysAvailableAndLevelsAscend) {
  const auto available = cpu::AvailableIsas();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(available.front(), cpu::Isa::kBaseline);
  for (size_t i = 1; i < available.size(); ++i) EXPECT_LT(available[i - 1], available[i]);
}

TEST(IsaTest, EachDeviceHasItsOwnLevel) {
  const Device a = Device::Cpu(), b = Device::Cpu();
  const cpu::Isa before = cpu::IsaOf(b);
  cpu::SetIsa(a, cpu::Isa::kBaseline);
  EXPECT_EQ(cpu::IsaOf(a), cpu::Isa::kBaseline);
  EXPECT_EQ(cpu::IsaOf(b), before);
}

class IsaEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* value = std::getenv("SHERD_CPU_ISA");
    before_ = value == nullptr ? "" : value;
  }
  void TearDown() override { setenv("SHERD_CPU_ISA", before_.c_str(), 1); }
  std::string before_;
};

TEST_F(IsaEnvironmentTest, TheEnvironmentLowersTheLevelOfNewDevices) {
  setenv("SHERD_CPU_ISA", "baseline", 1);
  EXPECT_EQ(cpu::IsaOf(Device::Cpu()), cpu::Isa::kBaseline);
  setenv("SHERD_CPU_ISA", "", 1);
  EXPECT_EQ(cpu::IsaOf(Device::Cpu()), cpu::AvailableIsas().back());
}

TEST_F(IsaEnvironmentTest, AnUnknownLevelIsAnErrorThatNamesTheOthers) {
  setenv("SHERD_CPU_ISA", "avx1024", 1);
  const Device device = Device::Cpu();
  try {
    cpu::IsaOf(device);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("avx1024"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("baseline"), std::string::npos) << error.what();
  }
  setenv("SHERD_CPU_ISA", "baseline", 1);
  EXPECT_EQ(cpu::IsaOf(device), cpu::Isa::kBaseline) << "the failure must not stick";
}

}  // namespace
}  // namespace sherd::kernels::test
