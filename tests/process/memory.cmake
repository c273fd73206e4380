# The memory of a step on two ranks that are processes, counted and as the system sees it.
if(NOT TARGET sherd_example_llm)
  return()
endif()
add_executable(memory_step memory_step.cc)
target_link_libraries(memory_step PRIVATE sherd_example_llm sherd_compile_options)
sherd_script_test(memory_test TIMEOUT 300
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/memory_test.sh $<TARGET_FILE:memory_step>)
sherd_label_targets(memory_step process)
