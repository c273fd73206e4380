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
  -Wall -Wextra -Wno-missing-field-initializers $<$<BOOL:${SHERD_WARNINGS_AS_ERRORS}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(sherd_compile_options INTERFACE -Wno-restrict)  # GCC bug 105651: "x" + std::string
endif()
if(SHERD_SANITIZE)
  target_compile_options(sherd_compile_options INTERFACE
    -fsanitize=${SHERD_SANITIZE} -fno-sanitize-recover=all -g -fno-omit-frame-pointer)
  target_link_options(sherd_compile_options INTERFACE -fsanitize=${SHERD_SANITIZE})
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
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${SHERD_INCLUDE_ROOT}>)
  target_link_libraries(${target} PUBLIC ${LAYER_PUBLIC} PRIVATE ${LAYER_PRIVATE} $<BUILD_INTERFACE:sherd_compile_options>)
  target_link_libraries(sherd INTERFACE ${target})
  set_property(GLOBAL APPEND PROPERTY SHERD_LAYERS ${target})
endfunction()
