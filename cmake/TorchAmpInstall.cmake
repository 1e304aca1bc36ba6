# cmake --install: the library, its headers, the command, and the package that find_package(torchamp) finds.
include(CMakePackageConfigHelpers)

set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/torchamp")
install(TARGETS torchamp EXPORT torchampTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILE_SET generated DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT torchampTargets NAMESPACE torchamp:: DESTINATION "${_package}")

string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCHAMP_LIBTORCH_SERIES "${LibTorch_VERSION}")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/torchampConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/torchampConfig.cmake" INSTALL_DESTINATION "${_package}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/torchampConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/torchampConfig.cmake" "${PROJECT_BINARY_DIR}/torchampConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake" "${CMAKE_CURRENT_LIST_DIR}/LibTorchChecks.cmake" DESTINATION "${_package}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Installed binaries find LibTorch where this build found it.
set_target_properties(torchamp PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
if(TORCHAMP_BUILD_CLI)
  install(TARGETS torchamp_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  file(RELATIVE_PATH _to_libraries "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(torchamp_cli PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON INSTALL_RPATH "\$ORIGIN/${_to_libraries}")
endif()
