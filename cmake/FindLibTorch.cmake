# Finds LibTorch and makes the imported target torchamp::libtorch. TorchConfig.cmake is not used: without a CUDA
# toolkit it fails, with one it enables the CUDA language.
#
# Searched in this order: Torch_ROOT, CMAKE_PREFIX_PATH, the torch of an active Python; else fetched (LibTorchFetch.cmake).
# Result: LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT, torchamp::libtorch (headers, definitions, libraries).
include(FindPackageHandleStandardArgs)

set(_libtorch_hints "")
foreach(hint IN ITEMS "${Torch_ROOT}" "$ENV{Torch_ROOT}" "${LibTorch_ROOT}")
  if(hint)
    list(APPEND _libtorch_hints "${hint}")
  endif()
endforeach()
find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h HINTS ${_libtorch_hints} PATH_SUFFIXES include torch/include)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_libtorch_hints} PATH_SUFFIXES lib torch/lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_libtorch_hints} PATH_SUFFIXES lib torch/lib)
if(LibTorch_INCLUDE_DIR AND EXISTS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h" _libtorch_v REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${_libtorch_v}")
endif()
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET torchamp::libtorch)
  find_package(Threads REQUIRED)
  foreach(part IN ITEMS CPU C10)
    string(TOLOWER ${part} lower)
    add_library(torchamp::libtorch_${lower} SHARED IMPORTED)
    set_target_properties(torchamp::libtorch_${lower} PROPERTIES
      IMPORTED_LOCATION "${LibTorch_${part}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  endforeach()
  add_library(torchamp::libtorch INTERFACE IMPORTED)
  set_target_properties(torchamp::libtorch PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
    INTERFACE_LINK_LIBRARIES "torchamp::libtorch_cpu;torchamp::libtorch_c10;Threads::Threads")
endif()
