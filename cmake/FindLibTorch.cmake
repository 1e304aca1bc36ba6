# Finds LibTorch and makes the imported target torchamp::libtorch (headers, definitions, libraries). TorchConfig.cmake is
# not used: without a CUDA toolkit it fails, with one it enables the CUDA language. All targets are namespaced, so that a
# find_package(Torch) before or after this one changes nothing.
#
# Searched in this order; the first place that holds a LibTorch is taken:
#   1. Torch_ROOT (or Torch_DIR, LibTorch_ROOT), as a CMake or environment variable
#   2. CMAKE_PREFIX_PATH, as a CMake or environment variable
#   3. LibTorch_LOCATION: where the last configure run found it, or what an installed TorchAmp was built with
#   4. the torch of an active Python: VIRTUAL_ENV, CONDA_PREFIX, python3 on PATH (found without importing it)
#   5. a copy fetched with pip (LibTorchFetch.cmake, where that file stands beside this one); with
#      TORCHAMP_FETCH_LIBTORCH=ON this alone
# A LibTorch that the user named (1, 2) and that cannot be used is an error; one that was only met (3, 4) is passed over.
#
# Result: LibTorch_FOUND, LibTorch_VERSION, LibTorch_LOCATION (the folder that holds include/ and lib/), and the targets
# torchamp::libtorch, torchamp::libtorch_cpu, torchamp::libtorch_c10, torchamp::libtorch_openmp; with TORCHAMP_CUDA=ON also
# torchamp::libtorch_cuda, torchamp::libtorch_c10_cuda.
include(FindPackageHandleStandardArgs)
include("${CMAKE_CURRENT_LIST_DIR}/LibTorchChecks.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/LibTorchFetch.cmake" OPTIONAL)

# The folder at or around `place` that looks like a LibTorch: the torch folder itself, its parent (site-packages), its
# share/cmake (torch.utils.cmake_prefix_path), or the root of a Python environment. Half a LibTorch counts, so that the
# checks can say what is missing.
function(_libtorch_folder_at place out)
  file(GLOB of_environment "${place}/lib/python3*/site-packages/torch")
  foreach(folder IN ITEMS "${place}" "${place}/torch" "${place}/libtorch" "${place}/../.." "${place}/../../.." ${of_environment})
    if(EXISTS "${folder}/lib/libtorch_cpu.so" OR EXISTS "${folder}/include/ATen/core/Tensor.h")
      file(REAL_PATH "${folder}" folder)
      if(NOT EXISTS "${folder}/lib/libtorch_cpu.so" AND folder MATCHES "^/usr(/local)?$")
        continue()  # other people's headers, not ours to judge
      endif()
      set(${out} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# The torch package of the Python that is active, or nothing. Importing torch would take seconds and may fail.
function(_libtorch_of_python out)
  set(pythons "")
  foreach(environment IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}")
    if(environment)
      list(APPEND pythons "${environment}/bin/python")
    endif()
  endforeach()
  find_program(TORCHAMP_PYTHON NAMES python3 python)
  mark_as_advanced(TORCHAMP_PYTHON)
  if(TORCHAMP_PYTHON)
    list(APPEND pythons "${TORCHAMP_PYTHON}")
  endif()
  foreach(python IN LISTS pythons)
    execute_process(
      COMMAND "${python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s and s.origin else '')"
      WORKING_DIRECTORY / TIMEOUT 30 RESULT_VARIABLE failed OUTPUT_VARIABLE folder ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed AND folder AND EXISTS "${folder}/lib/libtorch_cpu.so")
      set(${out} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# Walks the places in order. Sets LibTorch_LOCATION, LibTorch_VERSION and, when nothing was found, _libtorch_reason.
function(_libtorch_search)
  set(named "${Torch_ROOT}" "$ENV{Torch_ROOT}" "${LibTorch_ROOT}" "$ENV{LibTorch_ROOT}" "${Torch_DIR}" "$ENV{Torch_DIR}")
  string(REPLACE ":" ";" environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  set(prefixes ${CMAKE_PREFIX_PATH} ${environment_prefixes})
  list(FILTER named EXCLUDE REGEX "^$|-NOTFOUND$")
  if(TORCHAMP_FETCH_LIBTORCH)
    set(named "")
    set(prefixes "")
  endif()

  foreach(place IN LISTS named prefixes)
    _libtorch_folder_at("${place}" folder)
    if(folder)
      _libtorch_problem("${folder}" problem version)
      _libtorch_settle("${folder}" "${version}" "${problem}")
      return()
    endif()
    if(place IN_LIST named AND NOT place STREQUAL Torch_DIR)
      _libtorch_settle("" "" "No LibTorch was found in '${place}', which Torch_ROOT (or Torch_DIR, LibTorch_ROOT) names; the folder that holds include/ATen and lib/libtorch_cpu.so is accepted. Was it moved or removed?")
      return()
    endif()
  endforeach()

  set(met "${LibTorch_LOCATION}")
  if(NOT met)
    _libtorch_of_python(met)
  endif()
  if(met AND NOT TORCHAMP_FETCH_LIBTORCH)
    _libtorch_problem("${met}" problem version)
    if(NOT problem)
      _libtorch_settle("${met}" "${version}" "")
      return()
    endif()
    message(STATUS "LibTorch in ${met} is passed over: ${problem}")
  endif()

  if(COMMAND torchamp_fetch_libtorch)
    torchamp_fetch_libtorch(folder problem)
    set(version "")
    if(NOT problem)
      _libtorch_problem("${folder}" problem version)
    endif()
    _libtorch_settle("${folder}" "${version}" "${problem}")
  else()
    _libtorch_settle("" "" "Name it with -DTorch_ROOT=DIR (the folder that holds include/ATen and lib/libtorch_cpu.so, in Python the folder of the torch package).")
  endif()
endfunction()

# How _libtorch_search answers.
macro(_libtorch_settle folder version problem)
  set(_libtorch_reason "${problem}" PARENT_SCOPE)
  set(_libtorch_settled "${folder}")
  if(NOT "${problem}" STREQUAL "")
    set(_libtorch_settled "")
  endif()
  set(LibTorch_LOCATION "${_libtorch_settled}" CACHE INTERNAL "The LibTorch of this build folder")
  set(LibTorch_VERSION "${version}" PARENT_SCOPE)
endmacro()

_libtorch_platform_problem(_libtorch_reason)
if(NOT _libtorch_reason)
  _libtorch_search()
endif()
string(REPLACE ";" "," _libtorch_reason "${_libtorch_reason}")  # a semicolon would end the argument
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_LOCATION VERSION_VAR LibTorch_VERSION REASON_FAILURE_MESSAGE "${_libtorch_reason}")

# One imported library. GLOBAL, for projects that take TorchAmp in with add_subdirectory.
function(_libtorch_import name file)
  add_library(torchamp::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torchamp::${name} PROPERTIES IMPORTED_LOCATION "${LibTorch_LOCATION}/lib/${file}")
endfunction()

if(LibTorch_FOUND AND NOT TARGET torchamp::libtorch)
  find_package(Threads REQUIRED)
  set_property(TARGET Threads::Threads PROPERTY IMPORTED_GLOBAL TRUE)
  _libtorch_import(libtorch_c10 libc10.so)
  _libtorch_import(libtorch_cpu libtorch_cpu.so)
  add_library(torchamp::libtorch INTERFACE IMPORTED GLOBAL)
  set(_libtorch_include "${LibTorch_LOCATION}/include" "${LibTorch_LOCATION}/include/torch/csrc/api/include")
  set_target_properties(torchamp::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_libtorch_include}" INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_libtorch_include}"
    INTERFACE_COMPILE_FEATURES cxx_std_20 INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1")
  target_link_libraries(torchamp::libtorch INTERFACE torchamp::libtorch_cpu torchamp::libtorch_c10 Threads::Threads)

  # Libraries that libtorch_cpu.so needs and would not find by its own search path (a toolkit elsewhere): linking them
  # into the program has them loaded before libtorch_cpu.so asks.
  _libtorch_needed_elsewhere("${LibTorch_LOCATION}" _libtorch_extra _libtorch_absent)
  foreach(file IN LISTS _libtorch_extra)
    target_link_options(torchamp::libtorch INTERFACE "SHELL:-Wl,--push-state,--no-as-needed \"${file}\" -Wl,--pop-state")
    target_link_libraries(torchamp::libtorch INTERFACE "${file}")
  endforeach()

  # The OpenMP runtime that LibTorch's own threads come from: a second one would have threads and settings of its own.
  file(GLOB _libtorch_openmp "${LibTorch_LOCATION}/lib/libgomp*.so*")
  if(_libtorch_openmp)
    list(GET _libtorch_openmp 0 _libtorch_openmp)
    add_library(torchamp::libtorch_openmp SHARED IMPORTED GLOBAL)
    set_target_properties(torchamp::libtorch_openmp PROPERTIES IMPORTED_LOCATION "${_libtorch_openmp}")
  else()
    add_library(torchamp::libtorch_openmp INTERFACE IMPORTED GLOBAL)
    set_target_properties(torchamp::libtorch_openmp PROPERTIES INTERFACE_LINK_LIBRARIES gomp)
  endif()
  target_link_libraries(torchamp::libtorch INTERFACE torchamp::libtorch_openmp)

  if(TORCHAMP_CUDA)
    _libtorch_import(libtorch_c10_cuda libc10_cuda.so)
    _libtorch_import(libtorch_cuda libtorch_cuda.so)
    target_link_libraries(torchamp::libtorch INTERFACE torchamp::libtorch_cuda torchamp::libtorch_c10_cuda)
    _libtorch_cudart("${LibTorch_LOCATION}" _libtorch_runtime)  # what kernels of our own are launched with
    if(_libtorch_runtime)
      target_link_libraries(torchamp::libtorch INTERFACE "${_libtorch_runtime}")
    endif()
    # No symbol of ours refers to these two: they register their kernels when loaded, so they must stay in the program.
    # Their own dependencies (cuBLAS, cuDNN, ...) need not stand on the machine that builds.
    target_link_options(torchamp::libtorch INTERFACE LINKER:--allow-shlib-undefined
      "SHELL:-Wl,--push-state,--no-as-needed \"${LibTorch_LOCATION}/lib/libtorch_cuda.so\" \"${LibTorch_LOCATION}/lib/libc10_cuda.so\" -Wl,--pop-state")
  endif()
endif()
