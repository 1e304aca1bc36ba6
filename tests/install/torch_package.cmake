# Sets `package` to a torch folder on which find_package(Torch) can work, or `failed` after saying why there is none.
# A fetched LibTorch lacks the CUDA libraries that its package file insists on: a folder of links with empty libraries in
# their place will do, since the consumer links none of them.
set(package "${TORCH_FOLDER}")
if(NOT EXISTS "${package}/lib/libtorch_cuda.so")
  set(package "${folder}-package/torch")
  file(REMOVE_RECURSE "${folder}-package")
  file(MAKE_DIRECTORY "${package}/lib")
  file(GLOB libraries "${TORCH_FOLDER}/lib/*.so*")
  foreach(file IN LISTS libraries)
    get_filename_component(name "${file}" NAME)
    file(CREATE_LINK "${file}" "${package}/lib/${name}" SYMBOLIC)
  endforeach()
  file(CREATE_LINK "${TORCH_FOLDER}/include" "${package}/include" SYMBOLIC)
  file(CREATE_LINK "${TORCH_FOLDER}/share" "${package}/share" SYMBOLIC)
  file(CREATE_LINK "${TORCH_FOLDER}/../nvidia" "${package}/../nvidia" SYMBOLIC)
  foreach(name IN ITEMS torch_cuda c10_cuda torch_nvshmem)
    if(EXISTS "${package}/lib/lib${name}.so")
      continue()
    endif()
    run("${COMPILER}" -shared -x c++ /dev/null -o "${package}/lib/lib${name}.so")
  endforeach()
endif()

file(WRITE "${folder}-probe/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\nproject(probe LANGUAGES CXX)\nfind_package(Torch REQUIRED)\n")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${folder}-probe" -B "${folder}-probe/build" -G Ninja "-DTorch_ROOT=${package}"
  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(failed)
  message("SKIPPED: find_package(Torch) fails here even alone:\n${output}")
endif()
