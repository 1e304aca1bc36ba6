#pragma once
// The files of --csv and --json: a line a step, a line an epoch, and a clean continuation after a
// resume.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "torchamp/base/export.h"

namespace torchamp::train {

/// A text file of one record a line, flushed after each.
class TORCHAMP_API MetricsFile {
 public:
  /// A CSV of steps. With `keep_through` >= 0 the rows up to that step stay and the others go, so
  /// that the file reads as if the run had never stopped; with -1 it starts empty.
  ///
  /// Errors: UsageError when the file cannot be opened, or what is kept is no such CSV.
  static MetricsFile csv(const std::filesystem::path& path, int64_t keep_through = -1);
  /// The same with a JSON object an epoch.
  static MetricsFile json_lines(const std::filesystem::path& path, int64_t keep_through = -1);

  /// Adds `line`.
  ///
  /// Errors: base::Error with the system's reason, say a full disk; the lines before stay whole.
  void write(const std::string& line);

 private:
  struct Format;
  struct Close {
    void operator()(std::FILE* file) const;
  };
  MetricsFile(const std::filesystem::path& path, const Format& format, int64_t keep_through);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace torchamp::train
