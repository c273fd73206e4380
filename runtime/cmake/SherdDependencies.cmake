# Everything Sherd links against, found and never fetched. A parent project's own targets win.

# A project that includes this one links against these targets through ours, so it has to see them.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

find_package(Threads REQUIRED)
if(NOT TARGET absl::status)
  find_package(absl CONFIG REQUIRED)
endif()
if(NOT TARGET gloo)
  find_package(Gloo CONFIG REQUIRED)
endif()
if(NOT TARGET DNNL::dnnl)
  find_package(OneDNN REQUIRED)
endif()
if(SHERD_BUILD_TESTS AND NOT TARGET GTest::gtest)
  find_package(GTest REQUIRED)
endif()
