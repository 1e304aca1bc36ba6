# A Python that can import torch. The tests of checkpoints go both ways with any; where its torch has the version of the
# LibTorch in use, other tests compare with it as they run. Named with -DTORCHAMP_PYTHON_WITH_TORCH=..., else looked for: the
# environment that LibTorch lies in, then python3 on PATH. Without one, golden files stand in.
#
# Results: TORCHAMP_PYTHON_WITH_TORCH, and torchamp_live_python: the same if the versions agree, else empty.

# The version of the torch that `python` imports, or nothing.
function(torchamp_torch_version python out)
  execute_process(
    COMMAND "${python}" -c "import sys, torch; torch.nn.Linear; sys.stdout.write(torch.__version__.split('+')[0])"
    RESULT_VARIABLE failed OUTPUT_VARIABLE version ERROR_QUIET)
  if(failed)
    set(version "")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

if(NOT DEFINED TORCHAMP_PYTHON_WITH_TORCH)
  set(candidates "")
  if(LibTorch_LOCATION MATCHES "^(.*)/lib/python[0-9.]+/site-packages/torch/?$")
    list(APPEND candidates "${CMAKE_MATCH_1}/bin/python")
  endif()
  find_program(system_python python3 NO_CACHE)
  if(system_python)
    list(APPEND candidates "${system_python}")
  endif()
  set(found "")
  foreach(candidate IN LISTS candidates)
    torchamp_torch_version("${candidate}" version)
    if(version)
      set(found "${candidate}")
      break()
    endif()
  endforeach()
  set(TORCHAMP_PYTHON_WITH_TORCH "${found}" CACHE FILEPATH
    "A Python that can import torch, for tests that compare with it; empty: golden files stand in")
  set(TORCHAMP_PYTHON_WAS_LOOKED_FOR ON CACHE INTERNAL "")
endif()

set(torchamp_live_python "")
if(TORCHAMP_PYTHON_WITH_TORCH)
  torchamp_torch_version("${TORCHAMP_PYTHON_WITH_TORCH}" version)
  if(version VERSION_EQUAL LibTorch_VERSION)
    set(torchamp_live_python "${TORCHAMP_PYTHON_WITH_TORCH}")
  elseif(NOT TORCHAMP_PYTHON_WAS_LOOKED_FOR)
    message(FATAL_ERROR "TORCHAMP_PYTHON_WITH_TORCH names '${TORCHAMP_PYTHON_WITH_TORCH}', whose torch is '${version}' (empty: it cannot import torch); LibTorch is ${LibTorch_VERSION}, and the two must agree. Install that torch there, or leave the option out.")
  endif()
endif()
message(STATUS "Python for tests: ${TORCHAMP_PYTHON_WITH_TORCH}; for live comparison: ${torchamp_live_python}")
