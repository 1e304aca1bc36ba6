# What every target of this project shares: language level, warnings, sanitizers, precompiled headers, tests.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# ccache makes a second build of the same sources quick; precompiled headers need the last two flags under it.
find_program(TORCHAMP_CCACHE ccache)
mark_as_advanced(TORCHAMP_CCACHE)
if(TORCHAMP_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TORCHAMP_CCACHE}")
endif()

function(torchamp_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${TORCHAMP_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 sees overlaps and overflows in "text" + std::string (its bugs 105651 and 105329).
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-stringop-overflow)
  endif()
  # LibTorch is built with NDEBUG; parts of its headers change meaning without it (RecordFunction inputs assert).
  target_compile_definitions(${target} PRIVATE NDEBUG)
  if(TORCHAMP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TORCHAMP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${TORCHAMP_SANITIZE})
  endif()
endfunction()

# Keeps the static registration objects of a library (TORCH_LIBRARY and the like) in every program that links it, also where
# no symbol of theirs is referred to: an archive is taken whole, a shared library stays in spite of --as-needed. The same
# holds for what links the library through a library of its own.
function(torchamp_keep_registrations target)
  get_target_property(type ${target} TYPE)
  set(state --no-as-needed)
  if(type STREQUAL "STATIC_LIBRARY")
    set(state --whole-archive)
  endif()
  set(file "$<TARGET_FILE:$<TARGET_NAME:${target}>>")  # TARGET_NAME: an export renames it
  target_link_options(${target} INTERFACE "SHELL:-Wl,--push-state,${state} \"${file}\" -Wl,--pop-state")
endfunction()

# How the sanitizers of a TORCHAMP_SANITIZE build run in this program.
function(torchamp_sanitizer_defaults target)
  get_target_property(type ${target} TYPE)
  if(TORCHAMP_SANITIZE AND type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/sanitizer_defaults.cpp")
    set_source_files_properties("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/sanitizer_defaults.cpp" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# One precompiled torch/torch.h for every program of the build; the library has another, see below. The programs
# only call: -O1 compiles them in three quarters of the time of -O3 and leaves every kernel as fast as it was.
function(torchamp_program target)
  torchamp_target(${target})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT TARGET torchamp_pch)
    file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/generated/torchamp_pch.cpp" CONTENT "// holds the precompiled header\n")
    add_library(torchamp_pch OBJECT "${PROJECT_BINARY_DIR}/generated/torchamp_pch.cpp")
    torchamp_target(torchamp_pch)
    target_link_libraries(torchamp_pch PRIVATE torchamp::libtorch)
    target_compile_definitions(torchamp_pch PRIVATE $<TARGET_PROPERTY:torchamp,INTERFACE_COMPILE_DEFINITIONS>)
    target_compile_options(torchamp_pch PRIVATE $<$<CONFIG:Release>:-O1> -fPIC -fpch-preprocess)
    target_precompile_headers(torchamp_pch PRIVATE <torch/torch.h>)
  endif()
  target_compile_options(${target} PRIVATE -fPIC -fpch-preprocess)  # -fPIC, as the header was compiled
  target_precompile_headers(${target} REUSE_FROM torchamp_pch)
  torchamp_sanitizer_defaults(${target})
endfunction()

# torchamp_precompiled(a.cpp ...): library sources of this folder for which LibTorch's modules and optimizers are parsed once,
# in a precompiled header that halves their time. Not for lighter ones, for which reading it takes longer than what it
# saves, nor for any with compile options of its own. Each source still includes what it uses.
function(torchamp_precompiled)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set_property(TARGET torchamp APPEND PROPERTY TORCHAMP_PRECOMPILED ${ARGN})
endfunction()

# Called once all sources of the library are known, in the folder that made the target.
function(torchamp_precompile_library)
  get_target_property(precompiled torchamp TORCHAMP_PRECOMPILED)
  get_target_property(sources torchamp SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS precompiled)
    if(NOT source IN_LIST sources)
      message(FATAL_ERROR "torchamp_precompiled names ${source}, which is no source of the library.")
    endif()
  endforeach()
  list(REMOVE_ITEM sources ${precompiled})
  set_source_files_properties(${sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  set_source_files_properties(${precompiled} PROPERTIES COMPILE_OPTIONS -fpch-preprocess)  # for ccache
  target_precompile_headers(torchamp PRIVATE <torch/nn/module.h> <torch/optim/optimizer.h>)
endfunction()

# torchamp_add_test(<room> SOURCES a_test.cpp ... [LABELS cpu ...] [TIMEOUT seconds] [LIBRARIES ...] [WITHOUT_TORCH])
# Builds torchamp_<room>_tests and registers every suite of it. WITHOUT_TORCH: neither the library nor the precompiled header,
# for a room that knows no torch.
function(torchamp_add_test room)
  cmake_parse_arguments(ARG "WITHOUT_TORCH" "TIMEOUT" "SOURCES;LABELS;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  set(name torchamp_${room}_tests)
  add_executable(${name} ${ARG_SOURCES})
  if(ARG_WITHOUT_TORCH)
    torchamp_target(${name})
    torchamp_sanitizer_defaults(${name})
  else()
    torchamp_program(${name})
    target_link_libraries(${name} PRIVATE torchamp::torchamp)
  endif()
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${name} PRIVATE
    TORCHAMP_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden" TORCHAMP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gtest_main)
  torchamp_discover_suites(${name} "${room}." LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# torchamp_discover_suites(<target> <prefix> <property> <value> ...): one ctest for each suite of a test program. Not one for
# each test, as gtest_discover_tests() would: loading LibTorch takes a third of a second, most tests far less.
function(torchamp_discover_suites target prefix)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake")
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS "${file}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:${target}>" "-DPREFIX=${prefix}" "-DPROPERTIES=${ARGN}" "-DFILE=${file}"
      -P "${PROJECT_SOURCE_DIR}/cmake/DiscoverSuites.cmake")
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake")
  file(WRITE "${include}" "if(EXISTS [=[${file}]=])\n  include([=[${file}]=])\nelse()\n"
    "  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
endfunction()
