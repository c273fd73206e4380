# Build options, their defaults, and one line that says what was chosen.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

option(SHERD_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(SHERD_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(SHERD_INSTALL "Install the libraries, headers and package files" ${PROJECT_IS_TOP_LEVEL})
option(SHERD_WARNINGS_AS_ERRORS "Fail on warnings (for continuous integration)" OFF)
set(SHERD_WITH_CUDA AUTO CACHE STRING "CUDA and NCCL: ON, OFF, or AUTO for where both are found")
set_property(CACHE SHERD_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SHERD_SANITIZE "" CACHE STRING "Sanitizers to build with: address, thread, undefined, or empty")

find_program(SHERD_CCACHE ccache)
if(SHERD_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHERD_CCACHE})
endif()

include(SherdCuda)
set(backends cpu)
if(SHERD_CUDA)
  string(APPEND backends ", cuda (${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES})")
else()
  string(APPEND backends "; no cuda: ${SHERD_CUDA_ABSENT}")
endif()
message(STATUS "sherd ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, tests ${SHERD_BUILD_TESTS}, "
               "examples ${SHERD_BUILD_EXAMPLES}, sanitizers '${SHERD_SANITIZE}', backends: ${backends}")
