# Parts of examples/llm.
foreach(test llm_options_test llm_data_test llm_output_test)
  sherd_test(${test} LIBS sherd_example_llm)
endforeach()
