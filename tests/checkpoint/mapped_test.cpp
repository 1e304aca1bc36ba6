// How bytes come from the file: checksums, maps, threads; and what a mapped tensor does to the file
// (nothing).

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/archive.h"
#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/crc32.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::StateDict;
using std::string_literals::operator""s;

constexpr LoadOptions kMapped{.mmap = true, .verify = {}};
constexpr LoadOptions kMappedVerified{.mmap = true, .verify = true};

std::string error_of(const std::function<void()>& read) {
  try {
    read();
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

std::string noise(size_t size) {
  std::string bytes;
  uint32_t state = 12345;
  for (size_t i = 0; i < size; ++i) {
    state = state * 1664525U + 1013904223U;
    bytes.push_back(static_cast<char>(state >> 24));
  }
  return bytes;
}

TEST(Crc32, AgreesWithTheBitwiseOneForEveryLengthAndMisalignment) {
  const std::string bytes = noise(400);
  for (size_t start = 0; start < 17; ++start) {
    for (size_t size = 0; size <= 300; ++size) {
      const uint32_t expected = bitwise_crc32(bytes.substr(start, size));
      ASSERT_EQ(crc32(0, bytes.data() + start, size), expected) << start << " " << size;
      ASSERT_EQ(crc32_by_table(0, bytes.data() + start, size), expected) << start << " " << size;
    }
  }
}

TEST(Crc32, GoesOnFromAndCombinesPieces) {
  const std::string bytes = noise(5000);
  const uint32_t expected = bitwise_crc32(bytes);
  for (const size_t first : {0, 1, 63, 64, 65, 200, 2500, 4936, 4999, 5000}) {
    const uint32_t left = crc32(0, bytes.data(), first);
    const uint32_t right = crc32(0, bytes.data() + first, bytes.size() - first);
    EXPECT_EQ(crc32(left, bytes.data() + first, bytes.size() - first), expected) << first;
    EXPECT_EQ(crc32_by_table(left, bytes.data() + first, bytes.size() - first), expected) << first;
    EXPECT_EQ(crc32_combine(left, right, bytes.size() - first), expected) << first;
  }
}

StateDict state() {
  StateDict dict;
  dict.set("epoch", 3);
  dict.set("weight", torch::arange(3000000.0F));  // more than one piece of a thread
  dict.set("view", dict.at("weight").to_tensor().slice(0, 10, 20));
  dict.set("half", torch::arange(7).to(at::kHalf));
  dict.set("empty", torch::empty({0}));
  return dict;
}

TEST(MappedCheckpoint, HoldsWhatAReadOneHolds) {
  const TemporaryFolder folder;
  save(folder / "a.pt", state());
  for (const LoadOptions& options : {kMapped, kMappedVerified, LoadOptions{}}) {
    const StateDict read = load(folder / "a.pt", options);
    EXPECT_TRUE(same(read, state()));
    EXPECT_TRUE(read.at("view").to_tensor().is_alias_of(read.at("weight").to_tensor()));
  }
  for (const char* name : {"training", "tensors", "model"}) {
    const std::string path = golden("checkpoint/2.15.0/"s + name + ".pt");
    EXPECT_TRUE(same(load(path, kMapped), load(path))) << name;
  }
}

TEST(MappedCheckpoint, WritingToATensorLeavesTheFileAsItIs) {
  const TemporaryFolder folder;
  save(folder / "a.pt", state());
  const std::string before = read_file(folder / "a.pt");
  const StateDict first = load(folder / "a.pt", kMapped);
  first.at("weight").to_tensor().zero_();
  EXPECT_EQ(first.at("view").to_tensor().sum().item<float>(), 0);  // the same memory
  EXPECT_EQ(read_file(folder / "a.pt"), before);
  EXPECT_TRUE(same(load(folder / "a.pt", kMapped), state()));
}

TEST(MappedCheckpoint, TensorsOutliveTheFilesName) {
  const TemporaryFolder folder;
  save(folder / "a.pt", state());
  at::Tensor weight = load(folder / "a.pt", kMapped).at("weight").to_tensor();
  StateDict other;
  other.set("weight", torch::zeros({4}));
  save(folder / "a.pt", other);
  EXPECT_TRUE(same(weight, torch::arange(3000000.0F)));
  std::filesystem::remove(folder / "a.pt");
  EXPECT_TRUE(same(weight, torch::arange(3000000.0F)));
}

// {'a': a tensor of 4 floats over storage 0}
std::string four_floats() {
  return "\x80\x02}X\x01\0\0\0a"
         "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
         "ctorch\nFloatStorage\nX\x01\0\0\0"
         "0X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89"
         "ccollections\nOrderedDict\n)RtRs."s;
}

TEST(MappedCheckpoint, AStorageAtAnyByteIsReadRight) {
  const float values[4] = {1, 2, 3, 4};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
  for (size_t shift = 0; shift < 8; ++shift) {
    MemoryFile file;
    file.write(make_archive(
        {{"pad", std::string(shift, 'x')}, {"data.pkl", four_floats()}, {"data/0", bytes}}));
    const at::Tensor read = load(file.path(), kMapped).at("a").to_tensor();
    EXPECT_TRUE(same(read, torch::tensor({1.0F, 2.0F, 3.0F, 4.0F})));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.const_data_ptr()) % 4, 0U) << shift;
  }
}

TEST(MappedCheckpoint, ComparesTheChecksumsOfDataWhenAsked) {
  const TemporaryFolder folder;
  save(folder / "a.pt", state());
  std::string bytes = read_file(folder / "a.pt");
  bytes[bytes.size() / 2] ^= 1;  // within weight
  write_file(folder / "a.pt", bytes);
  const auto read = [&](const LoadOptions& options) {
    return error_of([&] { load(folder / "a.pt", options); });
  };
  const std::string text = "does not have the checksum written with it";
  EXPECT_EQ(read(kMapped), "");
  EXPECT_EQ(read({.mmap = false, .verify = false}), "");
  EXPECT_NE(read(kMappedVerified).find("record 'data/0' (12000000 bytes"), std::string::npos);
  EXPECT_NE(read({}).find(text), std::string::npos);
  const std::string verified = error_of([&] { verify(folder / "a.pt"); });
  EXPECT_NE(verified.find("[checkpoint::verify] '"), std::string::npos) << verified;
  EXPECT_NE(verified.find(text), std::string::npos) << verified;
}

TEST(VerifiedCheckpoint, EveryRecordIsCompared) {
  const TemporaryFolder folder;
  save(folder / "a.pt", state());
  EXPECT_EQ(error_of([&] { verify(folder / "a.pt"); }), "");
  // A record that no tensor uses.
  std::string bytes = make_archive(
      {{"data.pkl", four_floats()}, {"data/0", std::string(16, 'x')}, {"unused", "unused bytes"}});
  write_file(folder / "a.pt", bytes);
  EXPECT_EQ(error_of([&] { verify(folder / "a.pt"); }), "");
  bytes[bytes.find("unused bytes")] ^= 1;
  write_file(folder / "a.pt", bytes);
  EXPECT_EQ(error_of([&] { load(folder / "a.pt"); }), "");
  EXPECT_NE(error_of([&] { verify(folder / "a.pt"); }).find("record 'unused'"), std::string::npos);
  // A tensor that reaches past its storage.
  write_file(folder / "a.pt", make_checkpoint(four_floats(), std::string(12, 'x')));
  EXPECT_NE(error_of([&] { verify(folder / "a.pt"); }).find("claims 4 elements"),
            std::string::npos);
}

TEST(MappedCheckpoint, OverlapsAndPlacesPastTheEndAreRefused) {
  std::string bytes = make_archive({{"data.pkl", four_floats()},
                                    {"data/0", std::string(64, 'x')},
                                    {"data/1", std::string(64, 'x')}});
  const size_t last_entry = bytes.rfind("PK\x01\x02");
  MemoryFile file;
  std::string shared = bytes;
  shared.replace(last_entry + 42, 4, little_endian(bytes.find("PK\x03\x04", 4), 4));
  file.write(shared);
  EXPECT_NE(error_of([&] { load(file.path(), kMapped); }).find("overlaps what follows"),
            std::string::npos);
  std::string beyond = bytes;
  beyond.replace(last_entry + 20, 8, little_endian(0x10000, 4) + little_endian(0x10000, 4));
  file.write(beyond);
  EXPECT_NE(error_of([&] { load(file.path(), kMapped); }).find("reaches past"), std::string::npos);
}

// A zip64 archive with one storage of `size` zero bytes that take no room on the disk, unchecked.
void write_sparse(const std::filesystem::path& path, uint64_t size) {
  const std::string pickle =
      "\x80\x02}X\x01\0\0\0a"
      "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
      "ctorch\nFloatStorage\nX\x01\0\0\0"
      "0X\x03\0\0\0cpu"s +
      "\x8a\x08" + little_endian(size / 4, 8) + "tQK\0\x8a\x08"s + little_endian(size / 4, 8) +
      "\x85K\x01\x85\x89"
      "ccollections\nOrderedDict\n)RtRs.";
  const std::string first = "a/data.pkl";
  const std::string second = "a/data/0";
  const std::string sizes = little_endian(bitwise_crc32(pickle), 4) +
                            little_endian(pickle.size(), 4) + little_endian(pickle.size(), 4);
  std::string start = "PK\x03\x04" + little_endian(45, 2) + little_endian(0, 8) + sizes +
                      little_endian(first.size(), 2) + little_endian(0, 2) + first + pickle;
  const uint64_t second_offset = start.size();
  const uint64_t padding = 64 - (second_offset + 30 + second.size()) % 64;
  start += "PK\x03\x04" + little_endian(45, 2) + little_endian(0, 12) +
           little_endian(0xFFFFFFFF, 4) + little_endian(0xFFFFFFFF, 4) +
           little_endian(second.size(), 2) + little_endian(padding, 2) + second +
           std::string(padding, 'Z');
  const uint64_t end = start.size() + size;
  const std::string directory =
      "PK\x01\x02" + little_endian(45, 2) + little_endian(45, 2) + little_endian(0, 8) + sizes +
      little_endian(first.size(), 2) + little_endian(0, 16) + first + "PK\x01\x02" +
      little_endian(45, 2) + little_endian(45, 2) + little_endian(0, 12) +
      little_endian(0xFFFFFFFF, 4) + little_endian(0xFFFFFFFF, 4) +
      little_endian(second.size(), 2) + little_endian(20, 2) + little_endian(0, 10) +
      little_endian(second_offset, 4) + second + little_endian(1, 2) + little_endian(16, 2) +
      little_endian(size, 8) + little_endian(size, 8);
  const std::string tail =
      "PK\x06\x06" + little_endian(44, 8) + little_endian(0x2D002D, 4) + little_endian(0, 8) +
      little_endian(2, 8) + little_endian(2, 8) + little_endian(directory.size(), 8) +
      little_endian(end, 8) + "PK\x06\x07" + little_endian(0, 4) +
      little_endian(end + directory.size(), 8) + little_endian(1, 4) + "PK\x05\x06" +
      little_endian(0, 4) + little_endian(2, 2) + little_endian(2, 2) +
      little_endian(0xFFFFFFFF, 4) + little_endian(0xFFFFFFFF, 4) + little_endian(0, 2);
  write_file(path, start);
  std::filesystem::resize_file(path, end);
  std::ofstream(path, std::ios::app | std::ios::binary) << directory << tail;
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

TEST(MappedCheckpoint, TenGigabytesOpenAtOnceAndTakeNoMemory) {
  constexpr uint64_t kSize = 10'000'000'000;
  const TemporaryFolder folder;
  write_sparse(folder / "a.pt", kSize);
  const size_t memory_before = resident_bytes();
  const auto start = std::chrono::steady_clock::now();
  const StateDict read = load(folder / "a.pt", kMapped);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const at::Tensor tensor = read.at("a").to_tensor();
  EXPECT_EQ(tensor.numel(), 2'500'000'000);
  EXPECT_EQ(tensor[2'499'999'999].item<float>(), 0.0F);
  tensor[1'000'000'000] = 1.0F;
  EXPECT_EQ(tensor[1'000'000'000].item<float>(), 1.0F);
  EXPECT_LT(ms, 50);
  EXPECT_LT(resident_bytes() - memory_before, size_t{16} << 20);
}

}  // namespace
}  // namespace torchamp::checkpoint
