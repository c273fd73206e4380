# States that are saved while ranks are killed.
find_program(SHERD_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(SHERD_PYTHON NAMES python3 REQUIRED)
add_executable(state_probe state_probe.cc)
target_link_libraries(state_probe PRIVATE sherd::sherd sherd_compile_options)
sherd_script_test(state_kill_test TIMEOUT 900 LABELS state
  COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/state_kill_test.py $<TARGET_FILE:state_probe>)
sherd_label_targets(state_probe process state)
