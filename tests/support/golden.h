#pragma once
// Where golden files lie: beside their generators, or, where the environment variable
// TORCHAMP_GOLDEN names a folder, in that one: tables that Python has just written.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace torchamp::testing {

/// The golden file of that name, or nothing where there is none.
inline std::optional<nlohmann::json> read_golden(const std::string& name) {
  const char* folder = std::getenv("TORCHAMP_GOLDEN");
  const auto path =
      std::filesystem::path(folder != nullptr && *folder != '\0' ? folder : TORCHAMP_GOLDEN_DIR) /
      name;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace torchamp::testing
