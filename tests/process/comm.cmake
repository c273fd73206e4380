# Ranks as processes, under every launcher that is installed.
add_executable(launch_probe launch_probe.cc)
target_link_libraries(launch_probe PRIVATE sherd::comm sherd_compile_options)
sherd_script_test(launch_test TIMEOUT 300
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/launch_test.sh $<TARGET_FILE:launch_probe>)
sherd_script_test(launch_table_test TIMEOUT 300
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/launch_table_test.sh $<TARGET_FILE:launch_probe>)
sherd_label_targets(launch_probe process)

# The store's protocol: the corpus and fixed changes of it here, libFuzzer where clang has it.
sherd_test(store_fuzz_test SOURCES store_fuzz_test.cc store_fuzz.cc LIBS sherd::comm sherd_test_fuzz_inputs LABELS fuzz asan)
target_compile_definitions(store_fuzz_test PRIVATE
  SHERD_STORE_CORPUS="${CMAKE_CURRENT_SOURCE_DIR}/store_corpus")
sherd_script_test(fuzz_store_test LABELS fuzz TIMEOUT 180
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_store_test.sh ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/include 30)
