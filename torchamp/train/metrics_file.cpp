#include "torchamp/train/metrics_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "torchamp/base/error.h"
#include "torchamp/train/metrics.h"

namespace torchamp::train {

struct MetricsFile::Format {
  const char* option;  // for messages
  std::string header;  // first line; empty: none
  /// The step or epoch of a line, or false when it is no line of this format.
  bool (*key)(std::string_view line, int64_t& value);
};

namespace {

std::string reason() { return std::strerror(errno); }

bool csv_key(std::string_view line, int64_t& value) {
  long long epoch = 0;
  long long step = 0;
  if (std::sscanf(std::string(line).c_str(), "%lld,%lld,", &epoch, &step) != 2) return false;
  value = step;
  return true;
}

bool json_key(std::string_view line, int64_t& value) {
  long long epoch = 0;
  if (std::sscanf(std::string(line).c_str(), "{\"epoch\": %lld", &epoch) != 1) return false;
  value = epoch;
  return true;
}

// The lines of `path` up to the record `keep_through`; a last line without its end was cut off.
template <typename Format>
std::vector<std::string> kept_lines(const std::filesystem::path& path, const Format& format,
                                    int64_t keep_through) {
  std::vector<std::string> kept;
  std::ifstream in(path, std::ios::binary);
  std::string line;
  bool is_first = true;
  while (std::getline(in, line) && !in.eof()) {
    int64_t key = 0;
    if (is_first && !format.header.empty()) {
      is_first = false;
      if (line == format.header) continue;
    } else if (format.key(line, key)) {
      if (key <= keep_through) kept.push_back(line);
      continue;
    }
    throw base::UsageError(std::string("[") + format.option + "] '" + path.string() +
                           "' is to be continued, but holds the line '" + line.substr(0, 40) +
                           "', which is none of this run's; a file that an earlier part of the run "
                           "wrote is accepted. Is it another file?");
  }
  return kept;
}

}  // namespace

void MetricsFile::Close::operator()(std::FILE* file) const { std::fclose(file); }

MetricsFile MetricsFile::csv(const std::filesystem::path& path, int64_t keep_through) {
  return MetricsFile(path, {"--csv", csv_header(), csv_key}, keep_through);
}

MetricsFile MetricsFile::json_lines(const std::filesystem::path& path, int64_t keep_through) {
  return MetricsFile(path, {"--json", "", json_key}, keep_through);
}

MetricsFile::MetricsFile(const std::filesystem::path& path, const Format& format,
                         int64_t keep_through)
    : path_(path) {
  std::vector<std::string> kept;
  std::error_code ignored;
  const bool is_regular = std::filesystem::is_regular_file(path, ignored);
  if (keep_through >= 0 && is_regular) kept = kept_lines(path, format, keep_through);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);

  // The kept lines go to a second file first: a stop in between loses none of them.
  std::filesystem::path target = path;
  if (!kept.empty()) target += ".tmp";
  errno = 0;
  // A pipe without a reader would block here for good: O_NONBLOCK makes it an error (ENXIO).
  const int descriptor =
      ::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor >= 0) {
    ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
    file_.reset(::fdopen(descriptor, "wb"));
  }
  if (!file_) {
    throw base::UsageError(std::string("[") + format.option + "] '" + path.string() +
                           "' cannot be opened for writing: " + reason() + ".");
  }
  if (!format.header.empty()) write(format.header);
  for (const std::string& line : kept) write(line);
  if (target != path) std::filesystem::rename(target, path);
}

void MetricsFile::write(const std::string& line) {
  errno = 0;
  if (std::fprintf(file_.get(), "%s\n", line.c_str()) < 0 || std::fflush(file_.get()) != 0) {
    throw base::Error("[train] '" + path_.string() + "' could not be written: " + reason() +
                      ". After making room, --resume goes on from the last checkpoint.");
  }
}

}  // namespace torchamp::train
