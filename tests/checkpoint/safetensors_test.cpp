// safetensors files: those of the reference implementation, byte for byte both ways; headers that
// break a rule of the format; damage.

#include "torchamp/checkpoint/safetensors.h"

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <torch/torch.h>

#include "checkpoint/archive.h"
#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {
namespace {

using base::CheckpointError;
using base::StateDict;
using base::Value;
using std::string_literals::operator""s;

const LoadOptions kMapped = {.mmap = true, .verify = {}};

// A tensor whose bytes are 0, 1, 2, ...; of bool 0, 1, 0, 1, ...
at::Tensor ramp(at::ScalarType dtype, std::vector<int64_t> shape) {
  at::Tensor tensor = torch::empty(shape, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? i % 2 : i);
  }
  return tensor;
}

// The values of tests/golden/checkpoint/make_safetensors.py, in the order of the files.
StateDict dtypes() {
  StateDict dict;
  for (const auto& [name, dtype] : std::initializer_list<std::pair<const char*, at::ScalarType>>{
           {"uint64", at::kUInt64},
           {"int64", at::kLong},
           {"float64", at::kDouble},
           {"complex64", at::kComplexFloat},
           {"float32", at::kFloat},
           {"uint32", at::kUInt32},
           {"int32", at::kInt},
           {"bfloat16", at::kBFloat16},
           {"float16", at::kHalf},
           {"uint16", at::kUInt16},
           {"int16", at::kShort},
           {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
           {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
           {"float8_e8m0fnu", at::kFloat8_e8m0fnu},
           {"float8_e4m3fn", at::kFloat8_e4m3fn},
           {"float8_e5m2", at::kFloat8_e5m2},
           {"int8", at::kChar},
           {"uint8", at::kByte},
           {"bool", at::kBool}}) {
    dict.set(name, ramp(dtype, {2, 3}));
  }
  return dict;
}

StateDict names() {
  StateDict dict;
  dict.set("empty_matrix", ramp(at::kLong, {3, 0}));
  dict.set("B", ramp(at::kFloat, {4}));
  dict.set("b", ramp(at::kFloat, {5}));
  dict.set("empty", ramp(at::kFloat, {0}));
  dict.set("scalar", ramp(at::kFloat, {}));
  dict.set("a.weight", ramp(at::kBFloat16, {3, 1, 2}));
  dict.set("", ramp(at::kByte, {3}));
  dict.set("quote \" backslash \\ slash / line \n tab \t bell \x07 delete \x7f",
           ramp(at::kByte, {1}));
  dict.set(
      "\xc3\xbc"
      "ber.\xe6\xbc\xa2.\xf0\x9f\x98\x80",
      ramp(at::kByte, {2}));
  return dict;
}

StateDict metadata() {
  StateDict dict;
  dict.set("for\xc3\xaat", "pt \"\n");
  return dict;
}

std::string golden_file(const std::string& name) {
  return golden("checkpoint/safetensors/" + name + ".safetensors");
}

// Length, header, data.
std::string file_of(const std::string& header, const std::string& data = "") {
  return little_endian(header.size(), 8) + header + data;
}

// A header with one tensor 'w', for parts that go wrong.
std::string w(const std::string& fields) { return "{\"w\":{" + fields + "}}"; }

// Headers that the reference implementation reads (safetensors 0.8.0), each with tensor 'w' of 4
// bytes. It passes over what it does not know, so that files of later versions stay readable.
const std::vector<std::string>& lenient_headers() {
  static const std::vector<std::string> headers = [] {
    std::vector<std::string> made;
    const std::string known = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
    for (const std::string& field :
         {R"("stride":[1])"s, R"("x":null)"s, R"("x":-1.5e3)"s, R"("x":true,"x":"twice")"s,
          R"("x":123456789012345678901234567890)"s, R"("x":{})"s,
          R"("x":{"dtype":"F64","a":[{"shape":[2,[]]},null,-1,"s"],"data_offsets":{}})"s,
          R"("__metadata__":{"a":3})"s, "\"x\":" + std::string(100, '[') + std::string(100, ']')}) {
      made.push_back(w(known + "," + field));
      made.push_back(w(field + "," + known));
    }
    made.push_back(R"({"__metadata__":null,"w":{)" + known + "}}");
    made.push_back(R"({"w":{)" + known + R"(},"__metadata__":null})");
    return made;
  }();
  return headers;
}

// The error that `bytes` give when read, mapped and not; "" when they are read.
std::string error_of(const std::string& bytes) {
  static MemoryFile file;
  file.write(bytes);
  const auto read = [&](const LoadOptions& options) -> std::string {
    try {
      load_safetensors(file.path(), options);
      return "";
    } catch (const CheckpointError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      EXPECT_NE(text.find(file.path().string()), std::string::npos) << text;
      return text;
    }
  };
  const std::string error = read({});
  EXPECT_EQ(read(kMapped), error);
  return error;
}

void expect_error(const std::string& bytes, const std::string& text) {
  const std::string error = error_of(bytes);
  EXPECT_NE(error.find(text), std::string::npos) << "got: " << error << "\nnot: " << text;
}

template <typename Save>
std::string error_of_saving(Save save) {
  try {
    save();
    return "no error";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  for (const LoadOptions& options : {LoadOptions{}, kMapped}) {
    EXPECT_TRUE(same(load_safetensors(golden_file("dtypes"), options), dtypes()));
    EXPECT_TRUE(same(load_safetensors(golden_file("names"), options), names()));
    EXPECT_TRUE(load_safetensors(golden_file("empty"), options).empty());
  }
  EXPECT_TRUE(same(safetensors_metadata(golden_file("names")), metadata()));
  EXPECT_TRUE(safetensors_metadata(golden_file("dtypes")).empty());
}

TEST(Safetensors, WritesPythonsBytesWhateverTheOrder) {
  const TemporaryFolder folder;
  const auto reversed = [](const StateDict& dict) {
    StateDict result;
    for (size_t i = dict.size(); i-- > 0;) {
      result.set(dict.entries()[i].key, dict.entries()[i].value);
    }
    return result;
  };
  for (const bool is_reversed : {false, true}) {
    save_safetensors(folder / "dtypes", is_reversed ? reversed(dtypes()) : dtypes());
    EXPECT_EQ(read_file(folder / "dtypes"), read_file(golden_file("dtypes")));
    save_safetensors(folder / "names", is_reversed ? reversed(names()) : names(), metadata());
    EXPECT_EQ(read_file(folder / "names"), read_file(golden_file("names")));
  }
  save_safetensors(folder / "empty", {});
  EXPECT_EQ(read_file(folder / "empty"), read_file(golden_file("empty")));
}

TEST(Safetensors, IsKnownByItsContentElseByItsName) {
  const TemporaryFolder folder;
  EXPECT_TRUE(is_safetensors(golden_file("names")));
  EXPECT_TRUE(is_safetensors(golden_file("empty")));
  EXPECT_FALSE(is_safetensors(golden("checkpoint/2.15.0/training.pt")));
  for (const std::string& text : {""s, "short"s, "a text of more than nine bytes"s}) {
    write_file(folder / "a.bin", text);
    EXPECT_FALSE(is_safetensors(folder / "a.bin")) << text;
    for (const char* name : {"a.safetensors", "a.SafeTensors"}) {
      write_file(folder / name, text);
      EXPECT_TRUE(is_safetensors(folder / name)) << name << text;
    }
  }
  // A header of an impossible length is still one.
  write_file(folder / "a.bin", little_endian(UINT64_MAX, 8) + R"({"w":{}})");
  EXPECT_TRUE(is_safetensors(folder / "a.bin"));
  for (const char* name : {"checkpoint/2.15.0/model.pt", "checkpoint/2.15.0/legacy/model.pt"}) {
    write_file(folder / "a.safetensors", read_file(golden(name)));
    EXPECT_FALSE(is_safetensors(folder / "a.safetensors")) << name;
  }
  EXPECT_THROW(is_safetensors(folder / "absent"), CheckpointError);
}

TEST(Safetensors, StridesAndSharedStoragesAreWrittenOut) {
  const TemporaryFolder folder;
  const at::Tensor base = torch::arange(24.0F).reshape({2, 3, 4});
  const at::Tensor complex = torch::view_as_complex(torch::arange(8.0F).reshape({4, 2}));
  StateDict dict;
  dict.set("base", base);
  dict.set("expanded", torch::arange(3.0F).expand({2, 3}));
  dict.set("row", base[1]);
  dict.set("transposed", base.transpose(0, 2));
  dict.set("with_gradient", torch::arange(2.0F).requires_grad_());
  StateDict complexes;
  complexes.set("conjugate", complex.conj());
  complexes.set("negative", torch::imag(complex.conj()));
  save_safetensors(folder / "a", dict);
  EXPECT_TRUE(same(load_safetensors(folder / "a"), dict));
  save_safetensors(folder / "b", complexes);
  const StateDict read = load_safetensors(folder / "b");
  EXPECT_TRUE(torch::equal(read.at("conjugate").to_tensor(), complex.conj().resolve_conj()));
  EXPECT_TRUE(torch::equal(read.at("negative").to_tensor(), -torch::imag(complex)));
}

TEST(Safetensors, MappedTensorsLiveOnAndNeverReachTheFile) {
  const TemporaryFolder folder;
  StateDict dict;
  dict.set("w", torch::arange(1000.0F));
  save_safetensors(folder / "a", dict);
  const std::string before = read_file(folder / "a");
  at::Tensor mapped = load_safetensors(folder / "a", kMapped).at("w").to_tensor();
  mapped.add_(1);
  EXPECT_EQ(read_file(folder / "a"), before);
  dict.set("w", mapped);
  save_safetensors(folder / "a", dict);  // onto the mapped file itself
  std::filesystem::remove(folder / "a");
  EXPECT_TRUE(torch::equal(mapped, torch::arange(1000.0F) + 1));
}

TEST(Safetensors, MisalignedDataIsReadToo) {
  const std::string header = w(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  ASSERT_NE(header.size() % 4, 0U);  // the data begins 8 bytes after its end
  const std::string numbers = "\0\0\x80\x3f\0\0\0\x40"s;
  MemoryFile file;
  file.write(file_of(header, numbers));
  for (const LoadOptions& options : {LoadOptions{}, kMapped}) {
    const at::Tensor read = load_safetensors(file.path(), options).at("w").to_tensor();
    EXPECT_TRUE(same(read, torch::tensor({1.0F, 2.0F})));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.const_data_ptr()) % 4, 0U);
  }
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirData) {
  MemoryFile file;
  file.write(file_of(R"({"b":{"shape":[1],"data_offsets":[1,2],"dtype":"U8"},)"
                     R"( "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                     "\x05\x06"));
  StateDict expected;
  expected.set("a", torch::tensor({5}, at::kByte));
  expected.set("b", torch::tensor({6}, at::kByte));
  EXPECT_TRUE(same(load_safetensors(file.path()), expected));
}

TEST(Safetensors, WhatTheFormatCannotHoldIsRefusedBeforeTheFileIsTouched) {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  const auto expect = [&](const StateDict::Key& key, const Value& value, const std::string& text,
                          const StateDict& metadata = {}) {
    StateDict dict;
    dict.set("good", torch::ones({2}));
    dict.set(key, value);
    const std::string error =
        error_of_saving([&] { save_safetensors(folder / "a", dict, metadata); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  const at::Tensor ones = torch::ones({2, 2});
  expect("x", StateDict(), "entry 'x' is a dict; tensors alone are accepted");
  expect("x", 3, "entry 'x' is an int;");
  expect("x", Value(), "entry 'x' is a NoneType;");
  expect("x", at::Tensor(), "entry 'x' is an undefined tensor");
  expect("x", ones.to_sparse(), "entry 'x' is a sparse, nested or meta tensor");
  expect("x", ones.to("meta"), "entry 'x' is a sparse, nested or meta tensor");
  expect("x", ones.to(at::kComplexDouble), "entry 'x' is a tensor of ComplexDouble; one of BOOL,");
  expect(int64_t{3}, ones, "entry 3 has an int as key; a str is accepted");
  expect("__metadata__", ones, "entry '__metadata__' has the name of the metadata");
  expect("\xff", ones, "is not UTF-8");
  StateDict numbers;
  numbers.set("epoch", 3);
  expect("x", ones, "metadata 'epoch' is an int; a str under a str is accepted", numbers);
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.partial"));
}

TEST(Safetensors, WhatTheSystemRefusesIsToldByTheFunctionCalled) {
  const TemporaryFolder folder;
  const std::string error =
      error_of_saving([&] { save_safetensors(folder / "absent/a.safetensors", {}); });
  EXPECT_EQ(error.find("[checkpoint::save_safetensors] '"), 0U) << error;
  EXPECT_NE(error.find("' was not written: opening its .partial file failed"), std::string::npos);
}

TEST(Safetensors, PythonReadsAndWritesTheSame) {
  const std::string interpreter = TORCHAMP_PYTHON_WITH_TORCH;
  if (interpreter.empty()) GTEST_SKIP() << "no Python with torch was found";
  const TemporaryFolder folder;
  StateDict dict = dtypes();
  dict.set("nan", torch::tensor({NAN, -INFINITY, -0.0F}));
  dict.set("strided", torch::arange(6.0F).reshape({2, 3}).t());
  dict.set("scalar", torch::tensor(2.5));
  dict.set("empty", torch::empty({0, 2}));
  StateDict format;
  format.set("format", "pt");
  for (size_t i = 0; i < lenient_headers().size(); ++i) {
    write_file(folder / ("lenient" + std::to_string(i)),
               file_of(lenient_headers()[i], "\0\0\x80\x3f"s));
  }
  save(folder / "ours.pt", dict);
  save_safetensors(folder / "ours.safetensors", dict, format);
  const std::string command =
      "'" + interpreter + "' '" TORCHAMP_SOURCE_DIR "/tests/checkpoint/safetensors_interop.py' '" +
      folder.path().string() + "'";
  const int status = std::system(command.c_str());
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << interpreter << " has no safetensors";
  EXPECT_EQ(status, 0) << command;
}

TEST(SafetensorsHeader, LengthMustFitFileAndFormat) {
  expect_error("", "the file has 0 bytes; the header's length, 8 bytes, is expected first");
  expect_error("1234567", "the file has 7 bytes");
  expect_error(little_endian(0, 8), "the header does not begin with '{'");
  expect_error(little_endian(3, 8) + "{}", "a header of 3 bytes, and the file ends 2 bytes after");
  expect_error(little_endian(100000001, 8) + "{}", "announce a header of 100000001 bytes; at most");
  expect_error(little_endian(UINT64_MAX, 8) + "{}", "of 18446744073709551615 bytes; at most");
  expect_error("{\"w\":{\"dtype\":\"F32\"", "Is this a safetensors file?");
  expect_error("version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer");
}

TEST(SafetensorsHeader, MustBeOneJsonObjectPaddedWithSpaces) {
  EXPECT_EQ(error_of(file_of("{}")), "");
  EXPECT_EQ(error_of(file_of("{}   ")), "");
  EXPECT_EQ(error_of(file_of("{ \"__metadata__\" : { } }")), "");
  expect_error(file_of(" {}"), "the header does not begin with '{'");
  expect_error(file_of("[]"), "the header does not begin with '{'");
  expect_error(file_of("\xef\xbb\xbf{}"), "the header does not begin with '{'");
  expect_error(file_of("{"), "the header is not JSON at its byte 1");
  expect_error(file_of("{}{}"), "the header is not JSON at its byte 2");
  expect_error(file_of("{}  x"), "the header is not JSON at its byte 4");
  expect_error(file_of("{}\0\0"s), "the header is not JSON at its byte 2");
  expect_error(file_of("{,}"), "the header is not JSON at its byte 1");
  expect_error(file_of("{\"__metadata__\":{},}"), "the header is not JSON");
  expect_error(file_of("{'a':1}"), "the header is not JSON at its byte 1");
  expect_error(file_of("{\"a\xff\":1}"), "at its byte 3, which is not UTF-8");
  expect_error(file_of("{\"a\xc0\x80\":1}"), "which is not UTF-8");
  expect_error(file_of("{\"\\ud800\":{}}"), "the header is not JSON");
  expect_error(file_of("{/**/}"), "the header is not JSON");
}

TEST(SafetensorsHeader, MetadataIsStringsOnly) {
  EXPECT_EQ(error_of(file_of(R"({"__metadata__":{"a":"b","c":""}})")), "");
  const auto expect = [](const std::string& metadata, const std::string& text) {
    expect_error(file_of("{\"__metadata__\":" + metadata + "}"), text);
  };
  expect("3", "__metadata__ has 3 where an object of strings is expected");
  expect("[]", "__metadata__ has an array where");
  expect("\"a\"", "__metadata__ has a string where");
  expect(R"({"a":1})", "entry 'a' of __metadata__ has 1 where a string is expected");
  expect(R"({"a":null})", "entry 'a' of __metadata__ has null where");
  expect(R"({"a":{}})", "entry 'a' of __metadata__ has an object where");
  expect(R"({"a":["b"]})", "entry 'a' of __metadata__ has an array where");
}

TEST(SafetensorsHeader, NamesStandOnce) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_error(file_of("{\"a\":" + entry + ",\"b\":" + entry + ",\"a\":" + entry + "}"),
               "holds tensor 'a' twice; each name is accepted once");
  expect_error(file_of("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}"), "tensor 'a' twice");
  expect_error(file_of(R"({"__metadata__":{},"__metadata__":{}})"), "holds __metadata__ twice");
  expect_error(file_of(R"({"__metadata__":{"a":"b","a":"b"}})"),
               "entry 'a' of its __metadata__ twice");
  expect_error(file_of(w(R"("dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0])")),
               "holds the dtype of tensor 'w' twice");
}

TEST(SafetensorsHeader, TensorsHaveDtypeShapeAndOffsets) {
  const auto expect = [](const std::string& fields, const std::string& text) {
    expect_error(file_of(w(fields), "1234"), text);
  };
  EXPECT_EQ(error_of(file_of(w(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "1234")), "");
  EXPECT_EQ(error_of(file_of(w(R"("dtype":"F32","shape":[],"data_offsets":[0,4])"), "1234")), "");
  expect(R"("shape":[1],"data_offsets":[0,4])", "tensor 'w' has no dtype");
  expect(R"("dtype":"F32","data_offsets":[0,4])", "tensor 'w' has no shape");
  expect(R"("dtype":"F32","shape":[1])", "tensor 'w' has no data_offsets");
  expect(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])",
         "the dtype of tensor 'w' has 'F33' where one of BOOL, U8,");
  expect(R"("dtype":"F4","shape":[8],"data_offsets":[0,4])", "the dtype of tensor 'w' has 'F4'");
  expect(R"("dtype":7,"shape":[1],"data_offsets":[0,4])", "the dtype of tensor 'w' has 7 where");
  expect(R"("dtype":"F32","shape":1,"data_offsets":[0,4])",
         "the shape of tensor 'w' has 1 where an array of at most 64 integers from 0");
  for (const char* size : {"-1", "1.0", "1e0", "\"1\"", "null", "true", "[1]", "{}", "-0",
                           "9223372036854775808", "18446744073709551616"}) {
    expect(R"("dtype":"F32","shape":[)" + std::string(size) + R"(],"data_offsets":[0,4])",
           "the shape of tensor 'w' has ");
  }
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  expect(R"("dtype":"F32","shape":[)" + ones + R"(],"data_offsets":[0,4])", "more than 64 numbers");
  for (const char* offsets : {"[]", "[0]", "[0,4,4]", "[0,-4]", "[0,4.0]", "4", "{}", "[[0,4]]",
                              "[0,18446744073709551616]"}) {
    expect(R"("dtype":"F32","shape":[1],"data_offsets":)" + std::string(offsets),
           "the data_offsets of tensor 'w' has ");
  }
  expect_error(file_of("{\"w\":3}"), "tensor 'w' has 3 where an object of dtype, shape and");
  expect_error(file_of("{\"w\":[]}"), "tensor 'w' has an array where");
  expect_error(file_of("{\"w\":" + std::string(1000000, '[')), "tensor 'w' has an array where");
  expect_error(file_of("{\"w\":" + std::string(1000000, '{')), "the header is not JSON");
}

TEST(SafetensorsHeader, WhatTheReferencePassesOverIsPassedOver) {
  MemoryFile file;
  StateDict expected;
  expected.set("w", torch::tensor({1.0F}));
  for (const std::string& header : lenient_headers()) {
    SCOPED_TRACE(header);
    file.write(file_of(header, "\0\0\x80\x3f"s));
    EXPECT_TRUE(same(load_safetensors(file.path()), expected));
    EXPECT_TRUE(safetensors_metadata(file.path()).empty());
  }
  expect_error(file_of(R"({"__metadata__":null,"__metadata__":{}})"), "__metadata__ twice");
  expect_error(file_of(w(R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "1234"),
               "tensor 'w' has no dtype");
  expect_error(file_of(w(R"("x":"\ud800")")), "the header is not JSON");
  expect_error(file_of(w("\"x\":" + std::string(1000000, '['))), "the header is not JSON");
}

TEST(SafetensorsHeader, DataIsCoveredOnceAndWhole) {
  const auto tensor = [](const std::string& name, int begin, int end) {
    return "\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) +
           R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  const std::string ab = "{" + tensor("a", 0, 4) + "," + tensor("b", 4, 8) + "}";
  EXPECT_EQ(error_of(file_of(ab, "12345678")), "");
  EXPECT_EQ(error_of(file_of("{" + tensor("a", 0, 4) + "," + tensor("b", 4, 4) + "}", "1234")), "");
  expect_error(file_of(ab, "1234567"),
               "tensor 'b' lies at bytes 4 to 8 of the data, and the file ends after 7");
  expect_error(file_of(ab, "123456789"), "the last 1 bytes of the file belong to no tensor");
  expect_error(file_of("{}", "1"), "the last 1 bytes of the file belong to no tensor");
  expect_error(file_of("{" + tensor("a", 0, 4) + "," + tensor("b", 3, 7) + "}", "1234567"),
               "tensor 'b' lies at bytes 3 to 7, inside the tensor before it");
  expect_error(file_of("{" + tensor("a", 0, 4) + "," + tensor("b", 0, 4) + "}", "1234"),
               "tensor 'b' lies at bytes 0 to 4, inside the tensor before it");
  expect_error(file_of("{" + tensor("a", 0, 4) + "," + tensor("b", 5, 8) + "}", "12345678"),
               "tensor 'b' lies at bytes 5 to 8, not at the end of the tensor before it");
  expect_error(file_of("{" + tensor("a", 1, 4) + "}", "1234"), "here at byte 0");
  const std::string backwards = w(R"("dtype":"U8","shape":[0],"data_offsets":[4,0])");
  expect_error(file_of(backwards, "1234"), "an end after the beginning is expected");
}

TEST(SafetensorsHeader, ShapeAndDtypeMustNeedTheBytesThatAreThere) {
  const auto expect = [](const std::string& shape, const std::string& text) {
    expect_error(
        file_of(w(R"("dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8])"), "12345678"),
        text);
  };
  expect("[3]", "tensor 'w' has 8 bytes of data; its dtype and shape need 12");
  expect("[1]", "need 4");
  expect("[]", "need 4");
  expect("[2,0]", "need 0");
  expect("[4611686018427387905]", "need more than all memory");
  expect("[4294967296,4294967296,2]", "need more than all memory");
  expect("[9223372036854775807,9223372036854775807,0]", "need more than all memory");
  const std::string empty = R"("dtype":"F32","shape":[0,1099511627776],"data_offsets":[0,0])";
  EXPECT_EQ(error_of(file_of(w(empty))), "");
}

TEST(SafetensorsHeader, ManyTensorsAreReadInLinearTime) {
  std::string header = "{";
  for (int i = 0; i < 200000; ++i) {
    header += (i ? ",\"" : "\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_EQ(error_of(file_of(header + "}")), "");
}

TEST(DamagedSafetensors, EveryTruncationIsAnError) {
  for (const char* name : {"dtypes", "names", "empty"}) {
    const std::string bytes = read_file(golden_file(name));
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_NE(error_of(bytes.substr(0, size)), "") << name << " " << size;
    }
  }
}

TEST(DamagedSafetensors, EveryChangedByteOfTheHeaderIsAnErrorOrAnotherFile) {
  // An error, or a header that is right in itself: another name, another dtype of the same size.
  for (const char* name : {"names", "empty"}) {
    const std::string bytes = read_file(golden_file(name));
    const size_t end = 8 + static_cast<unsigned char>(bytes[0]) +
                       256 * static_cast<size_t>(static_cast<unsigned char>(bytes[1]));
    size_t num_errors = 0;
    for (size_t i = 0; i < end; ++i) {
      for (const int byte : {0x00, 0x01, 0x20, 0x22, 0x2C, 0x30, 0x39, 0x5B, 0x5C, 0x5D, 0x7B, 0x7D,
                             0x80, 0xFF, bytes[i] ^ 0x01, bytes[i] ^ 0x80}) {
        std::string damaged = bytes;
        damaged[i] = static_cast<char>(byte);
        num_errors += !error_of(damaged).empty();
      }
      std::string damaged = bytes;
      error_of(damaged.erase(i, 1));
    }
    EXPECT_GT(num_errors, 8 * end) << name;
  }
}

}  // namespace
}  // namespace torchamp::checkpoint
