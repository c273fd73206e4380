# Ranks that die, stop, leave or throw, under every launcher that is installed.
find_program(SHERD_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(SHERD_PYTHON NAMES python3 REQUIRED)
add_executable(fault_probe fault_probe.cc fault_report.cc)
target_include_directories(fault_probe PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(fault_probe PRIVATE sherd::shard sherd_compile_options)
sherd_label_targets(fault_probe process)
foreach(test fault_table_test fault_random_test fault_restart_test)
  sherd_script_test(${test} TIMEOUT 600
    COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/${test}.py $<TARGET_FILE:fault_probe>)
endforeach()
sherd_script_test(fault_table_full_test TIMEOUT 1200 LABELS full
  COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/fault_table_test.py $<TARGET_FILE:fault_probe> full)
