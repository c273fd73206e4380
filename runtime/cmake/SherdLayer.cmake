# sherd_layer(<name> DIR <folder> SOURCES <files> [PUBLIC <targets>] [PRIVATE <targets>])
#
# Defines the library sherd_<name>, static unless BUILD_SHARED_LIBS says otherwise, with the alias
# sherd::<name>, and adds it to sherd::sherd, which links every layer. Headers are reached as
# sherd/<layer>/... through links in the build folder, as they are after installation.

set(SHERD_INCLUDE_ROOT ${CMAKE_CURRENT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${SHERD_INCLUDE_ROOT}/sherd)
foreach(layer runtime autograd checkpoint shard)
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${layer} ${SHERD_INCLUDE_ROOT}/sherd/${layer} SYMBOLIC)
endforeach()

# Options every target of this project is compiled with.
add_library(sherd_compile_options INTERFACE)
target_compile_features(sherd_compile_options INTERFACE cxx_std_20)
target_compile_options(sherd_compile_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SHERD_WARNINGS_AS_ERRORS}>>:-Werror>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${SHERD_WARNINGS_AS_ERRORS}>>:-Werror=all-warnings>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(sherd_compile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)  # GCC bug 105651: "x" + std::string
endif()
if(SHERD_SANITIZE)
  target_compile_options(sherd_compile_options INTERFACE
    -fsanitize=${SHERD_SANITIZE} -fno-sanitize-recover=all -g1 -fno-omit-frame-pointer)
  target_link_options(sherd_compile_options INTERFACE -fsanitize=${SHERD_SANITIZE})
endif()

# Shared libraries show what exports.map.in lists, and lack nothing when they are linked. Tests look at
# the insides, so a build with tests shows everything.
set(SHERD_EXPORTS "")
if(BUILD_SHARED_LIBS AND NOT SHERD_BUILD_TESTS AND NOT SHERD_SANITIZE AND CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(SHERD_EXPORTS ${CMAKE_CURRENT_BINARY_DIR}/exports.map)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/exports.map.in ${SHERD_EXPORTS} @ONLY)
endif()

add_library(sherd INTERFACE)
add_library(sherd::sherd ALIAS sherd)
set_property(GLOBAL PROPERTY SHERD_LAYERS sherd)

function(sherd_layer name)
  cmake_parse_arguments(LAYER "" "DIR" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(target sherd_${name})
  list(TRANSFORM LAYER_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/${LAYER_DIR}/)
  add_library(${target} ${LAYER_SOURCES})
  add_library(sherd::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF VISIBILITY_INLINES_HIDDEN ON
    DEFINE_SYMBOL "" INSTALL_RPATH "$ORIGIN"
    SHERD_PUBLIC "${LAYER_PUBLIC}" SHERD_PRIVATE "${LAYER_PRIVATE}"
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${SHERD_INCLUDE_ROOT}>)
  target_link_libraries(${target} PUBLIC ${LAYER_PUBLIC} PRIVATE ${LAYER_PRIVATE} $<BUILD_INTERFACE:sherd_compile_options>)
  if(SHERD_EXPORTS)
    target_link_options(${target} PRIVATE LINKER:--version-script=${SHERD_EXPORTS} LINKER:-z,defs)
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${SHERD_EXPORTS})
  endif()
  target_link_libraries(sherd INTERFACE ${target})
  set_property(GLOBAL APPEND PROPERTY SHERD_LAYERS ${target})
endfunction()
