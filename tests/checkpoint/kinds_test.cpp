// Every kind of value by hand-made pickles, in both containers; and those made to do harm. The
// bytes are what pickle's documentation (pickletools) says of each opcode.

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/archive.h"
#include "checkpoint/checkpoint_support.h"
#include "torchamp/checkpoint/checkpoint.h"

namespace torchamp::checkpoint {
namespace {

using base::BigInt;
using base::Bytes;
using base::CheckpointError;
using base::List;
using base::Set;
using base::StateDict;
using base::Tuple;
using base::Value;
using std::string_literals::operator""s;

// A legacy file: number, version, system, value, keys, and for each storage count and bytes.
std::string make_legacy(const std::string& pickle, const std::string& keys = "]",
                        const std::string& storages = "") {
  return "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0"
         "little_endian\x88s."s +
         pickle + "\x80\x02" + keys + "." + storages;
}

Value read(const std::string& bytes, const LoadOptions& options = {}) {
  static MemoryFile file;
  file.write(bytes);
  return load_value(file.path(), options);
}

// The value of a pickle, `body` between its start and its end, the same from both containers.
Value value_of(const std::string& body) {
  const std::string pickle = "\x80\x02" + body + ".";
  const Value value = read(make_checkpoint(pickle));
  const Value legacy = read(make_legacy(pickle));
  EXPECT_EQ(value.storage().index(), legacy.storage().index());
  return value;
}

std::string error_of(const std::string& bytes) {
  try {
    read(bytes);
    return "";
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
}

// What is said of the entry 'k' whose value is `body`.
void expect_refused(const std::string& body, const std::string& expected) {
  const std::string pickle = "\x80\x02}X\x01\0\0\0k"s + body + "s.";
  for (const std::string& bytes : {make_checkpoint(pickle), make_legacy(pickle)}) {
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find(expected), std::string::npos) << "got: " << error << "\nnot: " << expected;
  }
}

template <typename T>
T get(const std::string& body) {
  const Value value = value_of(body);
  EXPECT_TRUE(value.is<T>()) << value.type_name();
  return value.is<T>() ? std::get<T>(value.storage()) : T{};
}

std::string text(const std::string& value) {  // BINUNICODE
  return "X" + little_endian(value.size(), 4) + value;
}

// SHORT_BINBYTES
std::string bytes(const std::string& value) { return "C" + little_endian(value.size(), 1) + value; }

TEST(CheckpointKinds, IntsAreOfAnySizeAndOfTheFewestBytes) {
  EXPECT_EQ(get<int64_t>("\x8a\0"s), 0);
  EXPECT_EQ(get<int64_t>("\x8a\x01\xff"), -1);
  EXPECT_EQ(get<int64_t>("\x8a\x09\x01\0\0\0\0\0\0\0\0"s), 1);  // more bytes than it needs
  EXPECT_EQ(get<int64_t>("\x8a\x09\0\0\0\0\0\0\0\x80\xff"s), INT64_MIN);
  EXPECT_EQ(get<int64_t>("\x8b\x02\0\0\0\x39\x30"s), 12345);  // LONG4
  const BigInt two63 = get<BigInt>("\x8a\x0b\0\0\0\0\0\0\0\x80\0\0\0"s);
  EXPECT_EQ(two63.bytes, "\0\0\0\0\0\0\0\x80\0"s);
  EXPECT_EQ(two63.to_string(), "9223372036854775808");
  EXPECT_EQ(get<BigInt>("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff").to_string(),
            "-9223372036854775809");
  EXPECT_EQ(get<BigInt>("\x8b" + little_endian(300, 4) + std::string(299, '\0') + "\1").bytes,
            std::string(299, '\0') + "\1");
}

TEST(CheckpointKinds, BytesComeInEveryProtocolsForm) {
  const std::string data = "a\0\xff"s;
  const std::string encoded =
      "c_codecs\nencode\n" + text("a\0\xc3\xbf"s) + text("latin1") + "\x86R";
  for (const std::string& body :
       {"C\x03" + data, "B\x03\0\0\0"s + data, "\x8e\x03\0\0\0\0\0\0\0"s + data,
        "\x96\x03\0\0\0\0\0\0\0"s + data, encoded, "c__builtin__\nbytearray\n" + encoded + "\x85R",
        "c__builtin__\nbytearray\n" + text("a\0\xc3\xbf"s) + text("latin-1") + "\x86R",
        "cbuiltins\nbytearray\nC\x03" + data + "\x85R"}) {
    EXPECT_EQ(get<Bytes>(body).data, data);
  }
  EXPECT_EQ(get<Bytes>("c__builtin__\nbytes\n)R").data, "");
  EXPECT_EQ(get<Bytes>("cbuiltins\nbytearray\n)R").data, "");
  expect_refused("c_codecs\nencode\n" + text("\xc4\x80") + text("latin1") + "\x86R",
                 "entry ['k'] is bytes made of something other than a latin1 str");
  expect_refused("c_codecs\nencode\n" + text("a") + text("utf-16") + "\x86R", "is bytes made of");
  expect_refused("c_codecs\nencode\n)R", "is bytes made of");
  expect_refused("}" + encoded + "K\x01s", "['k'] has a key that is bytes; str and int keys");
  expect_refused("}" + bytes(data) + "K\x01s", "['k'] has a key that is bytes;");
}

TEST(CheckpointKinds, StringsOfPython2AreStr) {
  EXPECT_EQ(get<std::string>("U\x03yes"), "yes");
  EXPECT_EQ(get<std::string>("T\x03\0\0\0yes"s), "yes");
  EXPECT_EQ(get<std::string>("\x8c\x03yes"), "yes");
  EXPECT_EQ(get<std::string>("\x8d\x03\0\0\0\0\0\0\0yes"s), "yes");
}

TEST(CheckpointKinds, SetsComeByCallsAndByOpcodes) {
  for (const std::string& body :
       {"c__builtin__\nset\n](K\x01K\x02\x65\x85R"s, "cbuiltins\nfrozenset\n](K\x01K\x02\x65\x85R"s,
        "\x8f(K\x01K\x02\x90"s, "(K\x01K\x02\x91"s}) {
    const Set set = get<Set>(body);
    ASSERT_EQ(set.items.size(), 2U);
    EXPECT_EQ(set.items[0].to_int(), 1);
    EXPECT_EQ(set.items[1].to_int(), 2);
  }
  EXPECT_EQ(get<Set>("c__builtin__\nset\n)R").items.size(), 0U);
  expect_refused("c__builtin__\nset\nK\x01\x85R", "is a set;");
  expect_refused("](K\x01\x90", "adds to something that is not a set");
}

TEST(CheckpointKinds, DtypesDevicesSizesAndComplex) {
  EXPECT_EQ(get<at::ScalarType>("ctorch\nbfloat16\n"), at::kBFloat16);
  EXPECT_EQ(get<at::ScalarType>(text("torch") + text("uint16") + "\x93"), at::kUInt16);
  const auto device = [](const std::string& body) {
    const Value value = value_of(body);
    return std::get<at::Device>(value.storage()).str();
  };
  EXPECT_EQ(device("ctorch\ndevice\n" + text("cpu") + "\x85R"), "cpu");
  EXPECT_EQ(device("ctorch\ndevice\n" + text("cuda") + "K\x01\x86R"), "cuda:1");
  const auto sizes = get<Tuple>("ctorch\nSize\nK\x02K\x03\x86\x85R").items;
  EXPECT_EQ(sizes.at(1).to_int(), 3);
  EXPECT_EQ(get<c10::complex<double>>("c__builtin__\ncomplex\nG?\xf8\0\0\0\0\0\0G\xc0\0\0\0\0\0\0\0"
                                      "\x86R"s),
            c10::complex<double>(1.5, -2));
  expect_refused("ctorch\nfloat7\n", "is a torch.float7;");
  expect_refused("ctorch\ndevice\n" + text("gpu") + "\x85R", "is the device 'gpu';");
  expect_refused("ctorch\ndevice\n" + text("cuda") + "M\x01\x01\x86R", "is the device 'cuda:257'");
  expect_refused("ctorch\ndevice\n" + text("cuda:99999999999999999999") + "\x85R", "is the device");
  expect_refused("ctorch\ndevice\nK\x01\x85R", "is a torch.device;");
  expect_refused("c__builtin__\ncomplex\nK\x01K\x02\x86R", "is a complex;");
}

TEST(CheckpointKinds, DictsOfOtherClassesAreDicts) {
  for (const std::string& body :
       {"ccollections\ndefaultdict\ncos\nsystem\n\x85R" + text("a") + "K\x01s",
        "ccollections\nCounter\n}" + text("a") + "K\x01s\x85R",
        "ccollections\nOrderedDict\n)R" + text("a") + "K\x01s",
        "ccollections\nOrderedDict\n](](" + text("a") + "K\x01\x65\x65\x85R"}) {
    const StateDict dict = get<StateDict>(body);
    EXPECT_EQ(dict.size(), 1U);
    EXPECT_EQ(dict.at("a").to_int(), 1);
  }
  expect_refused("ccollections\nOrderedDict\nK\x01\x85R",
                 "['k'][items] are an int; a dict or a list");
  expect_refused("ccollections\nOrderedDict\n]K\x01\x61\x85R", "hold an int that is no pair");
  expect_refused("ccollections\nOrderedDict\n)))\x87R", "makes a dict of too many arguments");
}

TEST(CheckpointKinds, OpcodesThatMoveValuesOnly) {
  EXPECT_EQ(get<int64_t>("K\x01K\x02\x30"), 1);                                 // POP
  EXPECT_EQ(get<int64_t>("K\x01(0"), 1);                                        // POP of a mark
  EXPECT_EQ(get<int64_t>("K\x01(K\x02K\x03\x31"), 1);                           // POP_MARK
  EXPECT_EQ(get<Tuple>("K\x07\x32\x86").items.at(1).to_int(), 7);               // DUP
  EXPECT_EQ(get<Tuple>("K\x05\x94K\x06\x94h\0\x87"s).items.at(2).to_int(), 5);  // MEMOIZE
  EXPECT_EQ(get<int64_t>("\x95\x02\0\0\0\0\0\0\0K\x01"s), 1);                   // FRAME
  // A memo with a gap: MEMOIZE numbers by how many there are.
  EXPECT_EQ(get<Tuple>("K\x05q\x03K\x06\x94h\x01\x87").items.at(2).to_int(), 6);
}

TEST(CheckpointKinds, ProtocolsTwoToFive) {
  for (int protocol = 0; protocol < 256; ++protocol) {
    const std::string bytes =
        make_checkpoint("\x80" + little_endian(static_cast<uint64_t>(protocol), 1) + "K\x01.");
    const bool is_known = protocol >= 2 && protocol <= 5;
    EXPECT_EQ(error_of(bytes).find("announces pickle protocol") == std::string::npos, is_known);
  }
}

TEST(CheckpointKinds, OpcodesThatBuildObjectsAreRefusedByName) {
  const std::pair<char, const char*> opcodes[] = {
      {'\x92', "NEWOBJ_EX"}, {'i', "INST"},    {'o', "OBJ"},    {'\x82', "EXT1"},
      {'\x83', "EXT2"},      {'\x84', "EXT4"}, {'P', "PERSID"}, {'\x97', "NEXT_BUFFER"}};
  for (const auto& [opcode, name] : opcodes) {
    expect_refused(std::string(1, opcode), std::string(", ") + name + ", which torch.load");
  }
}

// numpy.<module>.multiarray.scalar(numpy.dtype(name, False, True) in byte order, data)
std::string numpy_dtype(const std::string& name, const std::string& order = "<") {
  return "cnumpy\ndtype\n" + text(name) + "\x89\x88\x87R(K\x03" + text(order) +
         "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s;
}
std::string numpy_scalar(const std::string& name, const std::string& data,
                         const std::string& order = "<", const std::string& module = "_core") {
  return "cnumpy." + module + ".multiarray\nscalar\n" + numpy_dtype(name, order) + bytes(data) +
         "\x86R";
}

TEST(CheckpointKinds, NumpyScalarsArePythonsNumbers) {
  EXPECT_EQ(get<bool>(numpy_scalar("b1", "\1", "|", "core")), true);
  EXPECT_EQ(get<int64_t>(numpy_scalar("i1", "\xfb", "|")), -5);
  EXPECT_EQ(get<int64_t>(numpy_scalar("u1", "\xfb", "|")), 251);
  EXPECT_EQ(get<int64_t>(numpy_scalar("i2", "\x01\x02", ">")), 258);
  EXPECT_EQ(get<int64_t>(numpy_scalar("i4", "\xff\xff\xff\xff")), -1);
  EXPECT_EQ(get<int64_t>(numpy_scalar("u4", "\xff\xff\xff\xff")), 4294967295);
  EXPECT_EQ(get<int64_t>(numpy_scalar("i8", "\0\0\0\0\0\0\0\x80"s)), INT64_MIN);
  EXPECT_EQ(get<int64_t>(numpy_scalar("u8", "\x05\0\0\0\0\0\0\0"s)), 5);
  EXPECT_EQ(get<BigInt>(numpy_scalar("u8", std::string(8, '\xff'))).to_string(),
            "18446744073709551615");
  EXPECT_EQ(get<double>(numpy_scalar("f2", "\0\x3e"s)), 1.5);
  EXPECT_EQ(get<double>(numpy_scalar("f4", "\0\0\xc0\x3f"s)), 1.5);
  EXPECT_EQ(get<double>(numpy_scalar("f8", "\x3f\xf8\0\0\0\0\0\0"s, ">")), 1.5);
  EXPECT_EQ(get<c10::complex<double>>(numpy_scalar("c8", "\x3f\xc0\0\0\xc0\0\0\0"s, ">")),
            c10::complex<double>(1.5, -2));
  EXPECT_EQ(get<Bytes>(numpy_scalar("S4", "ab\0\0"s, "|")).data, "ab");
  EXPECT_EQ(get<std::string>(numpy_scalar("U3", "a\0\0\0\x00\xf6\x01\0\0\0\0\0"s)),
            "a\xf0\x9f\x98\x80");
  // As a key.
  const StateDict dict = get<StateDict>("}" + numpy_scalar("i8", "\x05\0\0\0\0\0\0\0"s) + "Ns");
  EXPECT_TRUE(dict.contains(int64_t{5}));
}

TEST(HostileKinds, NonsenseOfNumpyIsRefused) {
  const std::string start = "cnumpy._core.multiarray\nscalar\n";
  expect_refused(numpy_scalar("O8", std::string(8, 'x')), "is a numpy value of dtype 'O8';");
  expect_refused(numpy_scalar("f16", std::string(16, 'x')), "of dtype 'f16'");
  expect_refused(numpy_scalar("M8", std::string(8, 'x')), "of dtype 'M8'");
  expect_refused(numpy_scalar("f", "1234"), "of dtype 'f'");
  expect_refused(numpy_scalar("", ""), "of dtype ''");
  expect_refused(numpy_scalar("<", ""), "of dtype '<'");
  expect_refused(numpy_scalar("f-4", "1234"), "of dtype 'f-4'");
  expect_refused(numpy_scalar("U4294967295", "1234"), "with 4 bytes of data; 17179869180 are");
  expect_refused(numpy_scalar("S99999999999999999999", "1234"), "with 4 bytes of data; 0 are");
  expect_refused(numpy_scalar("i8", "1234"), "with 4 bytes of data; 8 are expected");
  expect_refused(numpy_scalar("U1", "\xff\xff\xff\xff"), "a character beyond Unicode");
  expect_refused(start + "K\x01K\x02\x86R", "is a numpy value whose dtype is an int;");
  expect_refused(start + "cnumpy\ndtype\n)R" + bytes("x") + "\x86R",
                 "whose dtype is a numpy.dtype");
  expect_refused(start + "cnumpy\ndtype\n" + text("i1") + "\x85RK\x01" + "b" + bytes("x") + "\x86R",
                 "whose dtype has no byte order");
  expect_refused(start + numpy_dtype("i1") + "K\x01\x86R", "whose data is an int;");
  expect_refused(start + ")R", "is a numpy scalar without dtype and bytes");
}

std::string numpy_array(const std::string& shape, const std::string& dtype,
                        const std::string& fortran, const std::string& data) {
  return "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85"s + bytes("b") +
         "\x87R(K\x01" + shape + dtype + fortran + data + "tb";
}

TEST(CheckpointKinds, NumpyArraysAreTensors) {
  const std::string data = bytes("\1\2\3\4\5\6");
  EXPECT_TRUE(same(get<at::Tensor>(numpy_array("K\2K\3\x86", numpy_dtype("i1", "|"), "\x89", data)),
                   torch::tensor({1, 2, 3, 4, 5, 6}).to(at::kChar).reshape({2, 3})));
  EXPECT_TRUE(same(get<at::Tensor>(numpy_array("K\3K\2\x86", numpy_dtype("i1", "|"), "\x88", data)),
                   torch::tensor({1, 4, 2, 5, 3, 6}).to(at::kChar).reshape({3, 2})));
  EXPECT_TRUE(same(get<at::Tensor>(numpy_array("K\3\x85", numpy_dtype("i2", ">"), "\x89", data)),
                   torch::tensor({258, 772, 1286}).to(at::kShort)));
  EXPECT_TRUE(same(get<at::Tensor>("cnumpy._core.numeric\n_frombuffer\n(" + data +
                                   numpy_dtype("u1", "|") + "K\6\x85" + text("C") + "tR"),
                   torch::tensor({1, 2, 3, 4, 5, 6}).to(at::kByte)));
  EXPECT_EQ(get<at::Tensor>(numpy_array(")", numpy_dtype("i1", "|"), "\x89", bytes("\1"))).dim(),
            0);
}

TEST(HostileKinds, NonsenseOfNumpyArraysIsRefused) {
  const std::string i1 = numpy_dtype("i1", "|");
  const std::string huge = "\x8a\x08\0\0\0\0\0\0\0\x40"s;
  expect_refused(numpy_array("K\7\x85", i1, "\x89", bytes("123456")),
                 "needs 7 bytes of data and has 6");
  expect_refused(numpy_array(huge + huge + "\x86", i1, "\x89", bytes("")),
                 "whose shape is not a tuple of sizes");
  expect_refused(numpy_array("J\xff\xff\xff\xff\x85", i1, "\x89", bytes("")), "whose shape");
  expect_refused(numpy_array("K\1", i1, "\x89", bytes("1")), "without shape, dtype and bytes");
  expect_refused(numpy_array("K\1\x85", numpy_dtype("U1"), "\x89", bytes("1234")),
                 "is a numpy array of dtype 'U1'");
  expect_refused("cnumpy.core.multiarray\n_reconstruct\n)R", "without shape, dtype and bytes");
  expect_refused("cnumpy._core.numeric\n_frombuffer\n)R", "without shape, dtype and bytes");
}

TEST(HostileKinds, SizesBeyondTheFileAreRefused) {
  expect_refused("\x8b\xff\xff\xff\x7f", "starts an int that the end cuts off");
  expect_refused("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "starts a str that the end cuts off");
  expect_refused("\x8e\xff\xff\xff\xff\xff\xff\xff\xff", "starts bytes that the end cuts off");
  expect_refused("\x96\0\0\0\0\0\0\0\x80"s, "starts bytes that the end cuts off");
  expect_refused("\x95\xff\xff\xff\xff\xff\xff\xff\xff", "starts a frame that the end cuts off");
  expect_refused("c" + std::string(300, 'x'), "starts a name of more than 255 bytes");
}

TEST(HostileKinds, NamesThatAreNoTextAreRefused) {
  expect_refused("K\1K\2\x93", "names a class by something that is not a str");
  expect_refused(text("a") + "\x93\x93", "names a class by something");
  expect_refused(text("a\nb") + text("c") + "\x93", "names a class by text of several lines");
  expect_refused(text(std::string(300, 'x')) + text("c") + "\x93", "by more than 255 bytes");
  expect_refused("(\x94", "needs a value where there is none");
}

// Each of these recalls something large many times: a few bytes for what would be gigabytes.
TEST(HostileKinds, NothingMultipliesItself) {
  constexpr size_t kMany = 20000;
  const auto repeat = [](const std::string& part) {
    std::string all;
    for (size_t i = 0; i < kMany; ++i) all += part;
    return all;
  };
  const std::string large_list = "](" + repeat("N") + "eq\x01\x30";
  const std::string pairs = "](" + repeat("K\1K\2\x86") + "eq\x01\x30";
  const std::string large_text = text(std::string(1000000, 'x')) + "q\x01\x30";
  const std::string large_bytes =
      "B" + little_endian(1000000, 4) + std::string(1000000, 'x') + "q\x01\x30";
  const std::string refused = "makes the tree far larger than the pickle";
  const auto expect = [&](const std::string& setup, const std::string& part) {
    expect_refused("N0" + setup + "](" + repeat(part) + "e", refused);
  };
  expect(large_list, "h\x01");
  expect(large_list, "c__builtin__\nset\nh\x01\x85R");
  expect(pairs, "ccollections\nOrderedDict\nh\x01\x85R");
  expect(pairs, "ccollections\nCounter\nccollections\nOrderedDict\nh\x01\x85R\x85R");
  expect(large_text, "h\x01");
  expect(large_bytes, "h\x01");
  expect(large_text, "c_codecs\nencode\nh\x01" + text("latin1") + "\x86R");
  expect(large_bytes, "cbuiltins\nbytearray\nh\x01\x85R");
  expect(large_bytes,
         numpy_array("J" + little_endian(1000000, 4) + "\x85", numpy_dtype("i1"), "\x89", "h\x01"));
  expect(large_list + "(h\x01\x91q\x01\x30", "h\x01");
}

// {'k': a tensor of 4 floats over storage 'key'}, by the tensor of `id`'s last parts.
std::string legacy_tensor(const std::string& view = "N", const std::string& size = "K\4",
                          const std::string& offset = "K\0"s) {
  return "\x80\x02}X\x01\0\0\0k"
         "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
         "ctorch\nFloatStorage\nX\x03\0\0\0"
         "keyX\x03\0\0\0cpuK\4"s +
         view + "tQ" + offset + size + "\x85K\1\x85\x89" + "ccollections\nOrderedDict\n)RtRs.";
}

std::string four_floats() {
  const float values[4] = {1, 2, 3, 4};
  return {reinterpret_cast<const char*>(values), sizeof values};
}

TEST(LegacyCheckpoint, HoldsStoragesBehindThePickles) {
  const std::string keys = "]X\3\0\0\0keya"s;
  const std::string storage = little_endian(4, 8) + four_floats();
  for (const LoadOptions& options : {LoadOptions{}, LoadOptions{.mmap = true, .verify = {}}}) {
    for (const std::string& padding : {""s, "0"s, "00"s, "000"s}) {  // moves the storage
      // Bytes that change the pickle's length and not its value.
      std::string filler;
      for (size_t i = 0; i < padding.size(); ++i) filler += "N0";
      const std::string pickle = legacy_tensor();
      const std::string longer = pickle.substr(0, 2) + filler + pickle.substr(2);
      const Value value = read(make_legacy(longer, keys, storage), options);
      EXPECT_TRUE(same(value.to_dict().at("k").to_tensor(), torch::tensor({1.F, 2.F, 3.F, 4.F})));
    }
  }
  // A view: two items from the second on.
  const Value view =
      read(make_legacy(legacy_tensor("X\4\0\0\0viewK\1K\2\x87"s, "K\2"), keys, storage));
  EXPECT_TRUE(same(view.to_dict().at("k").to_tensor(), torch::tensor({2.F, 3.F})));
}

TEST(LegacyCheckpoint, AValueLargerThanTheFirstReadIsRead) {
  const std::string large = text(std::string(3 << 20, 'x'));
  EXPECT_EQ(read(make_legacy("\x80\x02" + large + ".")).to_string().size(), size_t{3} << 20);
}

TEST(HostileLegacy, StoragesThatCannotBeAreRefused) {
  const std::string key = "X\3\0\0\0key"s;
  const std::string keys = "]" + key + "a";
  const std::string storage = little_endian(4, 8) + four_floats();
  const auto expect = [](const std::string& bytes, const std::string& text) {
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find(text), std::string::npos) << "got: " << error << "\nnot: " << text;
  };
  expect(make_legacy(legacy_tensor(), keys, little_endian(5, 8) + four_floats()),
         "storage 'key' claims 5 items of 4 bytes");
  expect(make_legacy(legacy_tensor(), keys, std::string(8, '\xff') + four_floats()),
         "claims -1 items");
  expect(make_legacy(legacy_tensor(), keys, std::string(7, '\xff') + "\x7f" + four_floats()),
         "claims 9223372036854775807 items");
  expect(make_legacy(legacy_tensor(), keys, "1234"), "the file ends at byte");
  expect(make_legacy(legacy_tensor(), "](" + key + key + "e", storage + storage),
         "storage 'key' is in the file twice");
  expect(make_legacy(legacy_tensor(), "]", ""), "the file has no storage 'key'");
  expect(make_legacy(legacy_tensor(), "](" + key + "X\1\0\0\0xe"s, storage), "storage 'x' is in");
  expect(make_legacy(legacy_tensor(), "]K\1a", storage), "is in the file and no tensor");
  expect(make_legacy(legacy_tensor(), "K\1", storage), "no list of storages");
  expect(make_legacy(legacy_tensor(), keys, storage + "x"), "goes on for 1 bytes after its last");
  expect(make_legacy(legacy_tensor("X\1\0\0\0vK\3K\2\x87"s, "K\2"), keys, storage),
         "over elements 3 to 3 + 2 of a storage of 4");
  expect(make_legacy(legacy_tensor("X\1\0\0\0v\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\2\x87"s),
                     keys, storage),
         "only elements inside the storage");
  expect(make_legacy(legacy_tensor("X\1\0\0\0vK\1K\2\x87"s, "K\3"), keys, storage),
         "reaches element 2 of a storage of 2");
  expect(make_legacy(legacy_tensor("X\1\0\0\0vK\1K\0\x87"s, "K\0"s,
                                   "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
                     keys, storage),
         "starts beyond all memory");
  expect(make_legacy(legacy_tensor("K\1"), keys, storage), "is in the file and no tensor");
  std::string version = make_legacy(legacy_tensor(), keys, storage);
  version.replace(version.find("M\xe9\x03"), 3, "M\xea\x03");
  expect(version, "in another version; version 1001 is expected");
}

TEST(HostileLegacy, EveryTruncationAndFlippedByteIsAnErrorOrAnotherValue) {
  const std::string whole =
      make_legacy(legacy_tensor(), "]X\3\0\0\0keya"s, little_endian(4, 8) + four_floats());
  EXPECT_EQ(error_of(whole), "");
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NE(error_of(whole.substr(0, i)), "") << i;
    for (const unsigned mask : {0x01U, 0x80U, 0xFFU}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(static_cast<unsigned char>(damaged[i]) ^ mask);
      error_of(damaged);
    }
  }
}

TEST(LegacyCheckpoint, TarFilesAreRefusedByName) {
  std::string tar(512, '\0');
  tar.replace(0, 8, "storages");
  tar.replace(257, 5, "ustar");
  EXPECT_NE(error_of(tar).find("is a tar archive, as PyTorch 0.1 wrote"), std::string::npos);
}

TEST(CheckpointKinds, StoragesByThemselvesAreRefusedByName) {
  expect_refused(
      "(" + text("storage") + "ctorch.cuda\nHalfStorage\n" + text("0") + text("cpu") + "K\0tQ"s,
      "entry ['k'] is a torch.cuda.HalfStorage;");
}

TEST(CheckpointKinds, AnyRootIsReadAndLoadAsksForADict) {
  EXPECT_EQ(value_of("K\x05").to_int(), 5);
  MemoryFile file;
  file.write(make_checkpoint("\x80\x02K\x05."));
  try {
    load(file.path());
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("the file holds an int; a dict is expected"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace torchamp::checkpoint
