// Files that were damaged, and files made to do harm: an error in one sentence or the right values,
// nothing else.

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/archive.h"
#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::StateDict;
using std::string_literals::operator""s;

// The error that `bytes` give when loaded; "" when they load as `expected`.
std::string error_of(const std::string& bytes, const StateDict* expected = nullptr) {
  static MemoryFile file;
  file.write(bytes);
  try {
    const StateDict read = load(file.path());
    if (expected != nullptr) {
      EXPECT_TRUE(same(read, *expected));
    }
    return "";
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_NE(text.find(file.path().string()), std::string::npos) << text;
    return text;
  }
}

void expect_error(const std::string& bytes, const std::string& text) {
  const std::string error = error_of(bytes);
  EXPECT_NE(error.find(text), std::string::npos) << "got: " << error << "\nnot: " << text;
}

struct File {
  const char* description;
  std::string bytes;
};

// A file of Python's, one of ours, and a plain zip.
std::vector<File> files() {
  StateDict dict;
  dict.set("epoch", 3);
  dict.set("weight", torch::arange(20.0F));
  const TemporaryFolder folder;
  save(folder / "ours.pt", dict);
  return {{"Python", read_file(golden("checkpoint/2.15.0/training.pt"))},
          {"ours", read_file(folder / "ours.pt")},
          {"plain", make_checkpoint("\x80\x02}X\x01\0\0\0aK\x01s."s, "1234")}};
}

StateDict load_bytes(const std::string& bytes) {
  MemoryFile file;
  file.write(bytes);
  return load(file.path());
}

TEST(DamagedCheckpoint, EveryFlippedByteIsAnErrorOrHarmless) {
  for (const File& file : files()) {
    const StateDict expected = load_bytes(file.bytes);
    size_t num_errors = 0;
    for (const unsigned mask : {0x01U, 0xFFU}) {
      for (size_t i = 0; i < file.bytes.size(); ++i) {
        std::string damaged = file.bytes;
        damaged[i] = static_cast<char>(static_cast<unsigned char>(damaged[i]) ^ mask);
        SCOPED_TRACE(std::string(file.description) + " byte " + std::to_string(i));
        num_errors += !error_of(damaged, &expected).empty();
      }
    }
    EXPECT_GT(num_errors, file.bytes.size() / 2) << file.description;
  }
}

TEST(DamagedCheckpoint, EveryTruncationIsAnError) {
  for (const File& file : files()) {
    for (size_t size = 0; size < file.bytes.size(); ++size) {
      EXPECT_NE(error_of(file.bytes.substr(0, size)), "") << file.description << " " << size;
    }
  }
}

TEST(DamagedCheckpoint, EveryMissingOrDoubledBlockIsAnError) {
  for (const File& file : files()) {
    const StateDict expected = load_bytes(file.bytes);
    for (size_t start = 0; start + 64 <= file.bytes.size(); start += 16) {
      SCOPED_TRACE(std::string(file.description) + " block " + std::to_string(start));
      std::string damaged = file.bytes;
      error_of(damaged.erase(start, 64), &expected);
      damaged = file.bytes;
      error_of(damaged.insert(start, file.bytes.substr(start, 64)), &expected);
      damaged = file.bytes;
      error_of(damaged.replace(start, 64, 64, '\0'), &expected);
    }
  }
}

TEST(DamagedCheckpoint, ChangesOfThePickleItselfAreErrorsOrOtherValues) {
  // As above, but with the right checksum, so that the pickle machine sees every change.
  const std::string pickle =
      "\x80\x02}q\x00(X\x01\0\0\0aq\x01K\x01X\x01\0\0\0tq\x02"
      "ctorch._utils\n_rebuild_tensor_v2\nq\x03((X\x07\0\0\0storageq\x04"
      "ctorch\nFloatStorage\nq\x05X\x01\0\0\0"
      "0q\x06X\x03\0\0\0cpuq\x07K\x04tQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89"
      "ccollections\nOrderedDict\n)RtRX\x01\0\0\0l](K\x05NG@\0\0\0\0\0\0\0eu."s;
  const std::string storage(16, '\0');
  EXPECT_EQ(error_of(make_checkpoint(pickle, storage)), "");
  for (size_t i = 0; i < pickle.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string damaged = pickle;
      damaged[i] = static_cast<char>(byte);
      error_of(make_checkpoint(damaged, storage));
    }
    error_of(make_checkpoint(pickle.substr(0, i), storage));
    error_of(make_checkpoint(pickle.substr(0, i) + pickle.substr(i + 1), storage));
  }
}

TEST(DamagedCheckpoint, SaysWhatTheFileIs) {
  expect_error("", "the file is empty; a zip archive is expected");
  expect_error("hello", "does not start as a zip archive does");
  expect_error("\x80", "does not start as a zip archive does");
  expect_error(little_endian(UINT64_MAX, 8) + "{\"w\"", "looks like safetensors");
  expect_error("version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer");
  expect_error(little_endian(2, 8) + "{}", "looks like safetensors");
  const std::string whole = read_file(golden("checkpoint/2.15.0/training.pt"));
  expect_error(whole.substr(0, whole.size() / 2), "directory is missing at the end of");
  expect_error(make_archive({{"readme", "hello"}}), "has no record 'data.pkl'");
  expect_error(make_archive({{"data.pkl", "\x80\x02}."}, {"byteorder", "big"}}),
               "written on a big-endian machine");
}

TEST(DamagedCheckpoint, SaysWhatThePathIs) {
  const TemporaryFolder folder;
  const auto expect = [](const std::filesystem::path& path, const std::string& text) {
    try {
      load(path);
      FAIL() << "no error for " << path;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect(folder / "absent.pt", "absent.pt' does not exist; a checkpoint file is expected");
  expect(folder.path(), "is a folder; a checkpoint file is expected");
  write_file(folder / "file", "x");
  expect(folder / "file/a.pt", "cannot be opened: \"Not a directory\"");
  expect("/dev/null", "is a device or pipe");
}

TEST(HostileCheckpoint, NothingIsCalledByName) {
  expect_error(make_checkpoint("\x80\x02}X\x01\0\0\0acos\nsystem\nX\x02\0\0\0id\x85Rs."s),
               "entry ['a'] is an os.system; None, bool, int");
  expect_error(
      make_checkpoint("\x80\x02}X\x01\0\0\0ac__builtin__\neval\nX\x01\0\0\0001\x85\x81s."s),
      "entry ['a'] is an eval;");
}

TEST(HostileCheckpoint, AValueThatMultipliesItselfIsRefused) {
  // Ten lists, each of ten times the one before: 10^10 items out of 300 bytes.
  std::string pickle = "\x80\x02}X\x01\0\0\0a]q\x00K\x01"s + "a";
  for (int level = 1; level <= 10; ++level) {
    const std::string before = "h" + little_endian(static_cast<uint64_t>(level - 1), 1);
    pickle += "](";
    for (int i = 0; i < 10; ++i) pickle += before;
    pickle += "eq" + little_endian(static_cast<uint64_t>(level), 1);
  }
  // Only the last list is the value; the others are taken out again as a tuple's parts.
  std::string items = "\x80\x02}X\x01\0\0\0a("s + pickle.substr(pickle.find(']')) + "ts.";
  expect_error(make_checkpoint(items), "makes the tree far larger than the pickle");
}

TEST(HostileCheckpoint, DeepNestingAndCyclesAreRefused) {
  const std::string start = "\x80\x02}X\x01\0\0\0a"s;
  constexpr size_t kDepth = 1000000;
  expect_error(
      make_checkpoint(start + std::string(kDepth, ']') + std::string(kDepth - 1, 'a') + "s."),
      "is nested more than 500 deep");
  expect_error(make_checkpoint(start + ")" + std::string(kDepth, '\x85') + "s."),
               "is nested more than 500 deep");
  expect_error(make_checkpoint(start + "]q\x00h\x00"s + "as."), "or holds itself");
  expect_error(make_checkpoint("\x80\x02}q\x00X\x01\0\0\0ah\x00s."s), "or holds itself");
}

TEST(HostileCheckpoint, NumbersBeyondTheFileAreRefused) {
  const std::string start = "\x80\x02}X\x01\0\0\0a"s;
  expect_error(make_checkpoint(start + "K\x01r\xff\xff\xff\xff"s + "s."),
               "keeps a value under a number beyond the file's size");
  expect_error(make_checkpoint(start + "X\xff\xff\xff\xff"s + "s."), "starts a str that the end");
  expect_error(make_checkpoint(start + "j\xff\xff\xff\xffs."), "recalls a value that was not kept");
  expect_error(make_checkpoint(start + "\x8a\xffs."), "starts an int that the end cuts off");
}

// {'a': tensor of `size` and `stride` at `offset`} over a storage that claims `claimed` floats and
// has 4.
std::string tensor_file(const std::string& claimed, const std::string& offset,
                        const std::string& size, const std::string& stride) {
  return make_checkpoint(
      "\x80\x02}X\x01\0\0\0a"
      "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
      "ctorch\nFloatStorage\nX\x01\0\0\0"
      "0X\x03\0\0\0cpu"s +
          claimed + "tQ" + offset + size + stride +
          "\x89"
          "ccollections\nOrderedDict\n)RtRs.",
      std::string(16, '\0'));
}

TEST(HostileCheckpoint, TensorsOutsideTheirStorageAreRefused) {
  const std::string huge = "\x8a\x08\0\0\0\0\0\0\0\x40"s;  // 2^62
  EXPECT_EQ(error_of(tensor_file("K\x04", "K\0"s, "K\x04\x85", "K\x01\x85")), "");
  EXPECT_EQ(error_of(tensor_file("K\x04", "K\x03", "K\x05\x85", "K\0\x85"s)), "");
  expect_error(tensor_file("K\x05", "K\0"s, "K\x04\x85", "K\x01\x85"),
               "claims 5 elements; record 'data/0' holds 16 bytes");
  expect_error(tensor_file(huge, "K\0"s, "K\x04\x85", "K\x01\x85"), "claims 4611686018427387904");
  expect_error(tensor_file("K\x04", "K\x01", "K\x04\x85", "K\x01\x85"),
               "reaches element 4 of a storage of 4");
  expect_error(tensor_file("K\x03", "K\0"s, "K\x04\x85", "K\x01\x85"),
               "reaches element 3 of a storage of 3");
  expect_error(tensor_file("K\x04", huge, "K\x01\x85", "K\x01\x85"), "reaches element 46116");
  expect_error(tensor_file("K\x04", "K\0"s, huge + huge + "\x86", "K\0K\0\x86"s),
               "reaches beyond all memory");
  expect_error(tensor_file("K\x04", "K\0"s, huge + "\x85", "K\0\x85"s), "beyond all memory");
  expect_error(tensor_file("K\x04", "K\0"s, "K\x03\x85", huge + "\x85"), "beyond all memory");
  expect_error(tensor_file("K\x04", "J\xff\xff\xff\xff", "K\x01\x85", "K\x01\x85"),
               "without storage, offset, size and stride");
  expect_error(tensor_file("K\x04", "K\0"s, "J\xff\xff\xff\xff\x85", "K\x01\x85"), "holds -1;");
  expect_error(tensor_file("K\x04", "K\0"s, "K\x01\x85", "J\xff\xff\xff\xff\x85"), "holds -1;");
  expect_error(tensor_file("K\x04", "K\0"s, "K\x01\x85", ")"), "1 sizes and 0 strides");
}

TEST(HostileCheckpoint, RecordsThatShareBytesAreRefused) {
  const std::string pickle = "\x80\x02}."s;
  std::string bytes = make_archive(
      {{"data.pkl", pickle}, {"data/0", std::string(64, 'x')}, {"data/1", std::string(64, 'x')}});
  // The directory's offset of the third record becomes that of the second.
  const size_t second = bytes.find("PK\x03\x04", 4);
  const size_t last_entry = bytes.rfind("PK\x01\x02");
  bytes.replace(last_entry + 42, 4, little_endian(second, 4));
  expect_error(bytes, "overlaps what follows it");
}

TEST(HostileCheckpoint, ARecordTwiceIsRefused) {
  expect_error(make_archive({{"data.pkl", "\x80\x02}."}, {"data.pkl", "\x80\x02}."}}),
               "is in the archive twice");
}

TEST(HostileCheckpoint, NamesThatAreTricksWithPathsAreNamesAlone) {
  // A storage under the key of a file elsewhere, absolute, of several lines, or with a zero byte.
  for (const std::string& key : {"../../../../etc/passwd"s, "/etc/passwd"s, "0\nx"s, "0\0"s}) {
    const std::string pickle =
        "\x80\x02}X\x01\0\0\0a"
        "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
        "ctorch\nFloatStorage\nX"s +
        little_endian(key.size(), 4) + key +
        "X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89"
        "ccollections\nOrderedDict\n)RtRs."s;
    expect_error(make_checkpoint(pickle, std::string(16, '\0')),
                 "the archive has no record 'data/");
    // Where the archive has a record of that name, it is that record.
    EXPECT_EQ(error_of(make_archive({{"data.pkl", pickle}, {"data/" + key, std::string(16, 'x')}})),
              "");
  }
}

TEST(HostileCheckpoint, ManyKeysAreReadInLinearTime) {
  std::string pickle = "\x80\x02}("s;
  for (uint64_t i = 0; i < 200000; ++i) pickle += "J" + little_endian(i, 4) + "N";
  EXPECT_EQ(error_of(make_checkpoint(pickle + "u.")), "");
}

}  // namespace
}  // namespace torchamp::checkpoint
