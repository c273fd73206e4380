# Ranks as processes, under every launcher that is installed.
add_executable(launch_probe launch_probe.cc)
target_link_libraries(launch_probe PRIVATE sherd::comm sherd_compile_options)
sherd_script_test(launch_test TIMEOUT 300
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/launch_test.sh $<TARGET_FILE:launch_probe>)
sherd_script_test(launch_table_test TIMEOUT 300
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/launch_table_test.sh $<TARGET_FILE:launch_probe>)
sherd_label_targets(launch_probe process)
