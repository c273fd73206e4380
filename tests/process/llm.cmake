# The language model of examples/llm: its parts, and the program as its users start it.
if(NOT TARGET sherd_example_llm)
  return()
endif()
foreach(test llm_options_test llm_data_test llm_output_test)
  sherd_test(${test} LIBS sherd_example_llm)
endforeach()
sherd_test(llm_model_test LIBS sherd_example_llm sherd_test_support)

find_program(SHERD_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(SHERD_PYTHON NAMES python3 REQUIRED)
foreach(test llm_init_test llm_input_test llm_run_test llm_state_test)
  sherd_script_test(${test} TIMEOUT 900
    COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/${test}.py $<TARGET_FILE:sherd_train_llm>)
endforeach()
sherd_label_targets(sherd_train_llm process)
sherd_label_targets(sherd_generate_llm process)

sherd_script_test(two_forwards_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/two_forwards_test.sh $<TARGET_FILE:sherd_two_forwards>)
sherd_label_targets(sherd_two_forwards process)
sherd_script_test(custom_op_test COMMAND ${CMAKE_CURRENT_LIST_DIR}/custom_op_test.sh $<TARGET_FILE:sherd_custom_op>)
sherd_label_targets(sherd_custom_op process)
