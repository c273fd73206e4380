# cuda_emulator                    see README.md; sherd_test_cuda_emulator is the same
# sherd_emulated_sources(<name> SOURCES <files> [LIBS <targets>] [OBJECT])
#
# Defines the static library <name>, or an object library, of sources written for CUDA, compiled by the C++
# compiler against the emulator, with SHERD_CUDA_EMULATED defined. Where no emulator can be, this file is
# not included; test with if(COMMAND sherd_emulated_sources).

set(SHERD_CUDA_EMULATOR ${CMAKE_CURRENT_LIST_DIR})
set(sources block.cc copy.cc cublas_lt.cc driver.cc exchange.cc fiber.cc memory.cc mma.cc nccl.cc runtime.cc stream.cc)
list(TRANSFORM sources PREPEND ${SHERD_CUDA_EMULATOR}/)
find_package(Threads REQUIRED)
add_library(cuda_emulator STATIC ${sources})
add_library(sherd_test_cuda_emulator ALIAS cuda_emulator)
target_include_directories(cuda_emulator BEFORE PUBLIC ${SHERD_CUDA_EMULATOR}/include PRIVATE ${SHERD_CUDA_EMULATOR})
target_include_directories(cuda_emulator PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_definitions(cuda_emulator PUBLIC SHERD_CUDA_EMULATED=1)
target_link_libraries(cuda_emulator PUBLIC Threads::Threads PRIVATE sherd_compile_options)

function(sherd_emulated_sources name)
  cmake_parse_arguments(EMULATED "OBJECT" "" "SOURCES;LIBS" ${ARGN})
  set(kind STATIC)
  if(EMULATED_OBJECT)
    set(kind OBJECT)
  endif()
  foreach(source IN LISTS EMULATED_SOURCES)
    if(source MATCHES "[.]cu$")
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX
        COMPILE_OPTIONS "-x;c++;-Wno-unknown-pragmas;-Wno-maybe-uninitialized")
    endif()
  endforeach()
  add_library(${name} ${kind} EXCLUDE_FROM_ALL ${EMULATED_SOURCES})
  target_include_directories(${name} BEFORE PUBLIC ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/include)
  target_link_libraries(${name} PUBLIC cuda_emulator ${EMULATED_LIBS} PRIVATE sherd_compile_options)
endfunction()
