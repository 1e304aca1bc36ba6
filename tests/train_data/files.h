#pragma once
// Data files made by hand for the tests of this folder: a folder that cleans up after itself,
// bytes, and what an error must say.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "support/temporary_folder.h"
#include "torchamp/base/error.h"

namespace torchamp::train::testing {

class ScratchFolder {
 public:
  std::string path() const { return folder_.path().string(); }
  std::string path(const std::string& file) const { return (folder_ / file).string(); }
  void write(const std::string& file, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream out(folder_ / file, std::ios::binary);
    out << bytes;
    out.close();
    ASSERT_TRUE(out.good());
  }
  void remove(const std::string& file) const { std::filesystem::remove(folder_ / file); }

 private:
  TemporaryFolder folder_;
};

inline std::string gzip(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  if (deflateInit2(&stream, 9, Z_DEFLATED, kGzip, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (code != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return out;
}

/// Expects that `run` throws `Error` and that its text, one line, holds each of `words`.
template <typename Error, typename Run>
void expect_error(Run run, const std::vector<std::string>& words) {
  try {
    run();
    ADD_FAILURE() << "no error; one with '" << words[0] << "' was expected";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
    }
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace torchamp::train::testing
