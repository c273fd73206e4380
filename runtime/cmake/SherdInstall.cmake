# The install step: libraries, headers by layer, and a package file for find_package(sherd).

if(NOT SHERD_INSTALL)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(sherd_layers GLOBAL PROPERTY SHERD_LAYERS)
install(TARGETS ${sherd_layers} EXPORT sherdTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(layer runtime autograd checkpoint shard)
  install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${layer}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd/${layer}
    FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE PATTERN "cmake" EXCLUDE)
endforeach()
install(EXPORT sherdTargets NAMESPACE sherd:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
# What a consumer has to find: all of it where libraries are static, else what public headers name.
set(SHERD_NEEDS_PRIVATE ON)
if(BUILD_SHARED_LIBS)
  set(SHERD_NEEDS_PRIVATE OFF)
endif()
list(TRANSFORM sherd_layers REPLACE "^sherd_" "" OUTPUT_VARIABLE SHERD_COMPONENTS)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/sherdConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/sherdConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/sherdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake ${CMAKE_CURRENT_LIST_DIR}/FindOneDNN.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/sherdConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/sherdConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)

set(SHERD_CMAKE_FOLDER ${CMAKE_CURRENT_LIST_DIR})
include(SherdPkgConfig)
sherd_install_pc()
