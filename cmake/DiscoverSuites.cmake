# Run when a test program has been built: asks it for its suites and writes the file that registers each of them with ctest.
#   cmake -DPROGRAM=... -DPREFIX=room. -DPROPERTIES=LABELS;cpu;TIMEOUT;300 -DFILE=... -P DiscoverSuites.cmake
execute_process(COMMAND "${PROGRAM}" --gtest_list_tests OUTPUT_VARIABLE output RESULT_VARIABLE result TIMEOUT 120)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests ended with ${result}:\n${output}")
endif()
string(REPLACE ";" "\\;" output "${output}")
string(REPLACE "\n" ";" lines "${output}")
set(script "")
foreach(line IN LISTS lines)
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.( *#.*)?$")  # tests stand indented below their suite
    set(suite "${CMAKE_MATCH_1}")
    string(APPEND script
      "add_test([=[${PREFIX}${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=])\n"
      "set_tests_properties([=[${PREFIX}${suite}]=] PROPERTIES ${PROPERTIES})\n")
  endif()
endforeach()
if(script STREQUAL "")
  message(FATAL_ERROR "${PROGRAM} lists no test:\n${output}")
endif()
file(WRITE "${FILE}" "${script}")
