# Runs one step of the install tests: cmake -DSTEP=... -D... -P run.cmake
#   static    installs the build tree to WORK/static
#   shared    builds TorchAmp shared inside another project (BUILD-subproject), runs its consumer, installs to WORK/shared
#   consumer  configures, builds and runs a consumer of WORK/<KIND>, with find_package(Torch) TORCH=alone|before|after
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(common -G Ninja "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
  "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DTORCHAMP_CUDA=${CUDA}")
if(STEP STREQUAL "static")
  file(REMOVE_RECURSE "${WORK}/static")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/static")
elseif(STEP STREQUAL "shared")
  # Beside BUILD and with its flags: seen from there the sources have the same relative paths, so that a compiler cache serves.
  set(subproject "${BUILD}-subproject")
  file(REMOVE_RECURSE "${WORK}/shared")
  run("${CMAKE_COMMAND}" -S "${SOURCE}/tests/install/subproject" -B "${subproject}" ${common}
    "-DTORCHAMP_SOURCE=${SOURCE}" "-DTorch_ROOT=${TORCH_FOLDER}" "-DTORCHAMP_WERROR=${WERROR}")
  run("${CMAKE_COMMAND}" --build "${subproject}")
  run("${subproject}/consumer")
  run("${CMAKE_COMMAND}" --install "${subproject}" --prefix "${WORK}/shared")
elseif(STEP STREQUAL "consumer")
  set(folder "${WORK}/consumer-${KIND}-${TORCH}")
  file(REMOVE_RECURSE "${folder}")
  if(NOT TORCH STREQUAL "alone")
    include("${CMAKE_CURRENT_LIST_DIR}/torch_package.cmake")
    if(failed)
      return()
    endif()
    list(APPEND common "-DTorch_ROOT=${package}")
  endif()
  run("${CMAKE_COMMAND}" -S "${SOURCE}/tests/install/consumer" -B "${folder}" ${common}
    "-DCMAKE_PREFIX_PATH=${WORK}/${KIND}" "-DTORCH=${TORCH}")
  run("${CMAKE_COMMAND}" --build "${folder}")
  unset(ENV{LD_LIBRARY_PATH})
  run("${folder}/consumer")
  message("${output}")
  run("${folder}/indirect"  # a symbol of base, amp, checkpoint and train
    _ZN8torchamp4base9StateDictC1Ev _ZN8torchamp3amp10GradScaler6updateEv
    _ZN8torchamp10checkpoint4loadERKNSt10filesystem7__cxx114pathERKNS0_11LoadOptionsE _ZN8torchamp5train12machine_infoEv)
endif()
